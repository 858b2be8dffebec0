"""Tests of a gateway's VPN under any sequence of changes by SBF, faults, and actions of devices and other programs.

The agent is real. Its kernel, disk, clock and OpenVPN servers are simulated (`simulated_gateway`). Each run has new
sequences.
"""

from datetime import timedelta

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule
from support.exploration import make_settings
from support.gateways.fake_openvpn import Device
from support.gateways.gateway_networks import ADDRESSES, DEVICES, LEASE, GatewayNetworks, Network

from virtcloud.agent.gateway.device_control import STATUS_S
from virtcloud.model.vpn import VpnProtocol

VLANS = (100, 101, 102)
INDEX = st.integers(0, 7)
PORTS: tuple[dict[VpnProtocol, int], ...] = (
    {VpnProtocol.UDP: 1194, VpnProtocol.TCP: 443},
    {VpnProtocol.UDP: 1194},
    {VpnProtocol.UDP: 1195, VpnProtocol.TCP: 8443},
    {},
)


class GatewayMachine(RuleBasedStateMachine, GatewayNetworks):
    """A state machine whose rules run in any order."""

    def __init__(self) -> None:
        RuleBasedStateMachine.__init__(self)

    @initialize()
    def begin(self) -> None:
        GatewayNetworks.__init__(self)
        self.ports = PORTS[0]
        self.gateway.start_agent()
        self.add_foreign("office0")
        self.a_cluster_appears(VLANS[0], set(DEVICES[:2]))
        self.a_cluster_appears(VLANS[1], set(DEVICES[2:]))
        assert self.gateway.reconcile()
        for number, device in enumerate(DEVICES[1:]):
            self.connect(self.server(number), device)

    def teardown(self) -> None:
        if hasattr(self, "gateway"):
            try:
                self.without_faults_the_wanted_state_is_reached()
                self.at_the_end_nothing_remains()
            finally:
                self.gateway.close()

    # SBF's changes.

    @rule(vlan=st.sampled_from(VLANS), devices=st.sets(st.sampled_from(DEVICES), max_size=3))
    def a_cluster_appears(self, vlan: int, devices: set[Device]) -> None:
        """A new cluster replaces the cluster with this VLAN ID, if any."""
        self.count += 1
        self.networks[vlan] = Network(f"c{self.count}", self.gateway.now + LEASE)
        for device in sorted(devices):
            self.give(self.networks[vlan], device)
        self.want()

    @precondition(lambda self: self.networks)
    @rule(index=INDEX)
    def a_cluster_ends(self, index: int) -> None:
        del self.networks[self.pick(index)]
        self.want()

    @precondition(lambda self: self.networks)
    @rule(index=INDEX, vlan=st.sampled_from(VLANS))
    def a_cluster_gets_another_vlan(self, index: int, vlan: int) -> None:
        if vlan not in self.networks:
            self.networks[vlan] = self.networks.pop(self.pick(index))
            self.want()

    @precondition(lambda self: self.networks)
    @rule(index=INDEX, device=st.sampled_from(DEVICES))
    def a_profile_changes(self, index: int, device: Device) -> None:
        """SBF grants or revokes a profile."""
        network = self.networks[self.pick(index)]
        if network.grants.pop(device, None) is None:
            self.give(network, device)
        self.want()

    @precondition(lambda self: self.networks)
    @rule(index=INDEX, mtu=st.sampled_from([None, 1400]))
    def a_network_changes(self, index: int, mtu: int | None) -> None:
        network = self.networks[self.pick(index)]
        network.mtu, devices = mtu, list(network.grants)
        for device in devices:  # a device can get another device's former address
            network.grants[device] = f"10.0.0.{10 + (DEVICES.index(device) + self.count) % 4}/24"
        self.count += 1
        self.want()

    @precondition(lambda self: self.networks)
    @rule(index=INDEX)
    def a_lease_is_extended(self, index: int) -> None:
        self.networks[self.pick(index)].expires_at = self.gateway.now + LEASE
        self.want()

    @rule(ports=st.sampled_from(PORTS))
    def the_servers_change(self, ports: dict[VpnProtocol, int]) -> None:
        self.ports = ports
        self.want()

    @rule()
    def the_authority_is_renewed(self) -> None:
        self.renewals += 1
        self.want()

    # The agent.

    @rule()
    def the_agent_reconciles(self) -> None:
        is_sound = not (self.gateway.disk_is_full or self.gateway.busy or self.is_blocked or self.hanging)
        is_confirmed = self.gateway.reconcile()
        if is_confirmed:
            self.check_confirmed()
        elif is_sound:
            self.gateway.reconcile()
            assert self.gateway.reconcile(), self.gateway.api.messages[-1:]

    @rule(effect=st.integers(1, 60))
    def the_agent_is_killed_while_it_reconciles(self, effect: int) -> None:
        self.gateway.kill_at = self.gateway.effects + effect
        if self.gateway.reconcile():
            self.check_confirmed()
        self.gateway.kill_at = 0

    @rule(effect=st.integers(1, 60))
    def the_kernel_refuses_a_change(self, effect: int) -> None:
        self.gateway.refused_effect = self.gateway.effects + effect
        if self.gateway.reconcile():
            self.check_confirmed()
        self.gateway.refused_effect = 0

    @rule(is_killed=st.booleans())
    def the_agent_restarts(self, *, is_killed: bool) -> None:
        (self.gateway.end_agent if is_killed else self.gateway.stop_agent)()
        self.gateway.start_agent()

    @rule()
    def the_gateway_reboots(self) -> None:
        self.gateway.reboot()
        self.foreign = {}
        self.add_foreign("office0")

    # The programs and devices.

    @precondition(lambda self: self.running)
    @rule(index=INDEX)
    def a_server_dies(self, index: int) -> None:
        self.server(index).end()

    @precondition(lambda self: self.running)
    @rule(index=INDEX)
    def a_server_hangs_or_continues(self, index: int) -> None:
        server = self.server(index)
        if server.hangs:
            server.resume(self.gateway.uptime)
        else:
            server.hangs = True

    @precondition(lambda self: self.running)
    @rule(index=INDEX)
    def a_server_refuses_programs(self, index: int) -> None:
        self.server(index).refuses = True

    @precondition(lambda self: self.running)
    @rule(index=INDEX, line=st.sampled_from([">STATE:", "CLIENT_LIST\t", ">CLIENT:CONNECT", ">CLIENT:ENV,END", "END"]))
    def a_server_sends_wrong_lines(self, index: int, line: str) -> None:
        program = self.server(index).program
        if program is not None and not self.server(index).hangs:
            program.receive_line(line)

    @precondition(lambda self: self.running)
    @rule(index=INDEX, device=st.sampled_from(DEVICES), address=st.sampled_from(ADDRESSES), is_answered=st.booleans())
    def a_device_connects(self, index: int, device: Device, address: str, *, is_answered: bool) -> None:
        self.connect(self.server(index), device._replace(address=address), is_answered=is_answered)

    @precondition(lambda self: self.running)
    @rule(index=INDEX)
    def all_devices_connect(self, index: int) -> None:
        for number, device in enumerate(DEVICES):
            self.connect(self.server(index + number), device)

    @precondition(lambda self: self.connections)
    @rule(index=INDEX)
    def a_device_disconnects(self, index: int) -> None:
        server, number, _ = self.connections[index % len(self.connections)]
        if not server.hangs:
            server.disconnect(number)

    @precondition(lambda self: self.connections)
    @rule(index=INDEX)
    def a_device_renews_its_keys(self, index: int) -> None:
        server, number, _ = self.connections[index % len(self.connections)]
        server.renew_keys(number, self.gateway.uptime)

    @precondition(lambda self: self.connections)
    @rule(index=INDEX, address=st.sampled_from(ADDRESSES))
    def a_device_gets_another_address(self, index: int, address: str) -> None:
        server, number, _ = self.connections[index % len(self.connections)]
        server.float_device(number, address)

    # Time, the disk, and other programs.

    @rule(seconds=st.sampled_from([0.3, 0.6, 5.1, 11.0, 31.0, 3700.0]))
    def time_passes(self, seconds: float) -> None:
        self.gateway.sleep(seconds)
        self.gateway.run_threads(2)
        if not any(server.hangs or server.program is None for server in self.running):
            self.check_connections()
            if seconds > STATUS_S:
                self.check_addresses()

    @rule(hours=st.sampled_from([-30, -1, 1]))
    def the_clock_jumps(self, hours: int) -> None:
        self.gateway.now += timedelta(hours=hours)

    @rule()
    def the_disk_fills_or_is_cleared(self) -> None:
        self.gateway.disk_is_full = not self.gateway.disk_is_full

    @rule()
    def another_program_takes_or_frees_a_port(self) -> None:
        self.gateway.busy ^= {1194}

    @rule(index=st.integers(0, 20))
    def another_program_removes_an_interface(self, index: int) -> None:
        found = [one for one in self.gateway.kernel.list_interfaces() if one.name not in {"eth0", *self.foreign}]
        if found:
            self.gateway.kernel.remove(found[index % len(found)].index)

    @rule()
    def another_program_flushes_nftables(self) -> None:
        self.gateway.filters.ports = ()
        self.gateway.tables.present.clear()

    @rule(vlan=st.sampled_from(VLANS), tap=st.booleans())
    def another_program_takes_a_name(self, vlan: int, *, tap: bool) -> None:
        name = f"vpn-tcp.{vlan}" if tap else f"br{vlan}"
        if self.gateway.kernel.find(name) is None:
            self.add_foreign(name)

    @rule()
    def another_program_frees_the_names(self) -> None:
        for name in [name for name in self.foreign if name != "office0"]:
            self.gateway.kernel.remove(self.foreign.pop(name))

    # Invariants after each step.

    @invariant()
    def devices_reach_only_networks_that_granted_their_profile(self) -> None:
        for server, _, connection in self.connections:
            network = self.find_network(server, connection)
            assert network is None or (network, connection.device.profile) in self.granted

    @invariant()
    def foreign_interfaces_stay(self) -> None:
        for name, index in self.foreign.items():
            found = self.gateway.kernel.by_index[index]
            assert (found.name, found.alias, found.up, found.master) == (name, None, True, None)

    def without_faults_the_wanted_state_is_reached(self) -> None:
        gateway = self.gateway
        gateway.disk_is_full, gateway.busy, gateway.kill_at, gateway.refused_effect = False, set(), 0, 0
        self.another_program_frees_the_names()
        for server in self.running:
            server.refuses = False
            server.resume(gateway.uptime)
        results = [gateway.reconcile() for _ in range(3)]
        assert results[-1], gateway.api.messages[-1:]
        self.check_confirmed()
        before = gateway.effects
        gateway.reconciler.reconcile_once()
        assert gateway.effects == before, "a second reconciliation changed the gateway"

    def at_the_end_nothing_remains(self) -> None:
        self.networks, self.ports = {}, {}
        self.want()
        assert [self.gateway.reconcile() for _ in range(2)][-1], self.gateway.api.messages[-1:]
        assert self.running == []
        assert {one.name for one in self.gateway.kernel.list_interfaces()} == {"eth0", "office0"}
        assert (self.gateway.tables.present, self.gateway.filters.ports) == ({}, ())
        assert [path for path in (self.gateway.folder / "vpn").rglob("*") if path.is_file()] == []


GatewayMachine.TestCase.settings = make_settings(60, steps=40)
test_gateway_machine = GatewayMachine.TestCase
