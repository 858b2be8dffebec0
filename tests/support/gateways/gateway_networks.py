"""The networks and devices of a simulated gateway, as SBF wants them, and checks of the gateway."""

from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Final

from support.gateways.fake_openvpn import Connection, Device, FakeOpenvpn
from support.gateways.simulated_gateway import SimulatedGateway
from support.gateways.vpn_documents import make_server
from virtcloud.agent.network import names
from virtcloud.model.vpn import VpnGrant, VpnProtocol, VpnServer
from virtcloud.model.wanted import HostWanted, Segment

DEVICES = tuple(Device(f"p{number}", f"{number:x}" * 64) for number in range(4))
ADDRESSES = "192.0.2.1", "192.0.2.2"
LEASE: Final = timedelta(hours=2)


@dataclass
class Network:
    """A cluster's network as SBF wants it. ``grants`` maps a device to its address in the network."""

    id: str
    expires_at: datetime
    grants: dict[Device, str] = field(default_factory=dict)
    mtu: int | None = None


class GatewayNetworks:
    """The wanted state of a gateway, and the checks of the gateway."""

    def __init__(self) -> None:
        self.networks: dict[int, Network] = {}
        """The networks by VLAN ID."""
        self.ports: dict[VpnProtocol, int] = {}
        self.renewals, self.count = 0, 0
        self.granted: set[tuple[str, str]] = set()
        """The pairs of a network's ID and a profile that ever had a grant."""
        self.foreign: dict[str, int] = {}
        """The indices of other programs' interfaces, by name."""
        self.gateway = SimulatedGateway()

    def check_confirmed(self) -> None:
        for server, _, connection in self.connections:
            if connection.vlan is None:
                continue
            network = self.find_network(server, connection)
            wanted = self.networks.get(connection.vlan)
            is_granted = wanted is not None and connection.device in self.fingerprints(wanted)
            assert connection.ends_at is not None or is_granted, "a profile without a grant is connected"
            assert network is None or (wanted is not None and is_granted and network == wanted.id), "wrong network"
            if connection.ends_at is None and wanted is not None:
                known = {device.profile: one.partition("/")[0] for device, one in wanted.grants.items()}
                assert connection.addresses == (known[connection.device.profile],), "a device has a former address"
        filtered = {port.port for port in self.gateway.filters.ports}
        ports = {one.name for one in self.gateway.kernel.list_interfaces() if names.vlan_of_vpn_port(one.name)}
        expected = {
            f"vpn-{protocol}.{vlan}" for protocol in self.ports for vlan, one in self.networks.items() if one.grants
        }
        assert ports - self.foreign.keys() == expected == filtered
        assert {server.tap_name for server in self.running} == {f"vpn-{protocol}" for protocol in self.ports}

    def check_connections(self) -> None:
        """Check that no profile has two connections.

        If the agent has the latest document, also check that no profile is connected to a network whose lease has
        ended. Ignore connections that the agent has not yet admitted, and connections that the agent is ending.
        """
        lasting = [one for _, _, one in self.connections if one.vlan is not None and one.ends_at is None]
        profiles = [one.device.profile for one in lasting]
        assert len(profiles) == len(set(profiles)), "a profile has two connections"
        for network in self.networks.values() if self.gateway.has_latest_document else ():
            if network.expires_at <= self.gateway.now:
                assert not {device.profile for device in network.grants} & set(profiles), "a lease has ended"

    def check_addresses(self) -> None:
        """Check that each connection in the agent's report has the present outer address of its device."""
        known = {(one.device.profile, f"{one.device.address}:5000") for _, _, one in self.connections}
        assert {(one.profile, one.remote) for one in self.gateway.vpn.connections} <= known

    @property
    def running(self) -> list[FakeOpenvpn]:
        return [server for server in self.gateway.servers if server.is_alive]

    @property
    def hanging(self) -> bool:
        return any(server.hangs or server.refuses for server in self.running)

    @property
    def is_blocked(self) -> bool:
        return len(self.foreign) > 1

    @property
    def connections(self) -> list[tuple[FakeOpenvpn, int, Connection]]:
        return [(server, number, one) for server in self.running for number, one in server.clients.items()]

    def server(self, index: int) -> FakeOpenvpn:
        return self.running[index % len(self.running)]

    def pick(self, index: int) -> int:
        return sorted(self.networks)[index % len(self.networks)]

    def fingerprints(self, network: Network) -> set[Device]:
        return {device._replace(address=address) for device in network.grants for address in ADDRESSES}

    def give(self, network: Network, device: Device) -> None:
        """Grant a device access to one network. A profile belongs to one cluster."""
        for other in self.networks.values():
            other.grants.pop(device, None)
        network.grants[device] = f"10.0.0.{10 + DEVICES.index(device)}/24"

    def connect(self, server: FakeOpenvpn, device: Device, *, is_answered: bool = True) -> None:
        server.connect(device, self.gateway.uptime)
        if is_answered:
            self.gateway.run_threads()

    def add_foreign(self, name: str) -> None:
        self.foreign[name] = self.gateway.kernel.put(name=name, kind="dummy", up=True)

    def find_network(self, server: FakeOpenvpn, connection: Connection) -> str | None:
        """Return the network that a connection's frames reach, or None."""
        interfaces = self.gateway.kernel.by_index
        port = next(
            (one for one in interfaces.values() if (one.parent, one.vlan) == (server.tap, connection.vlan)), None
        )
        bridge = interfaces.get(port.master or 0) if port is not None and port.up else None
        is_open = bridge is not None and server.tap in interfaces and interfaces[server.tap].up
        return names.cluster_of_alias(bridge.alias) if bridge is not None and is_open else None

    def want(self) -> None:
        """Send the agent a new document."""
        segments = tuple(
            Segment.model_validate(
                {
                    "id": one.id,
                    "key": f"k{one.id}",
                    "vlan": vlan,
                    "port": "eth0",
                    "mtu": one.mtu,
                    "grants": [make_grant(one, device, address) for device, address in one.grants.items()],
                }
            )
            for vlan, one in sorted(self.networks.items())
        )
        self.granted |= {(one.id, device.profile) for one in self.networks.values() for device in one.grants}
        former = self.gateway.api.document
        wanted = HostWanted(segments=segments, vpn=self.make_vpn())
        self.gateway.api.document = former.model_copy(update={"revision": former.revision + 1, "wanted": wanted})

    def make_vpn(self) -> VpnServer | None:
        return make_server(ports=self.ports, authority=f"a{self.renewals}") if self.ports else None


def make_grant(network: Network, device: Device, address: str) -> VpnGrant:
    return VpnGrant.model_validate(
        {
            "profile": device.profile,
            "cluster": network.id,
            "user": "alice",
            "device": "laptop",
            "fingerprint": device.fingerprint,
            "addresses": (address,),
            "expires_at": network.expires_at,
        }
    )
