"""What other programs and administrators do on a host: rules of `test_host_network_machine`."""

import socket
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any, TypeVar

from support.hosts.host_network_checks import BRIDGED, HostNetworkChecks
from support.hosts.host_network_world import SYSCTL, UPLINKS, is_ours, is_renamed_port, read_sysctls, write_sysctls
from virtcloud.agent.network import names
from virtcloud.agent.network.interfaces import KernelInterface
from virtcloud.model.errors import Refused

VLAN = 100, 101, 1234
PORT = tuple(sorted(UPLINKS))
INDEX = range(20)
BOTH = False, True
T = TypeVar("T", bound=Callable[..., None])
FOREIGN_TABLES = "table inet filter { chain input { type filter hook input priority 0; }; }; table bridge other { }\n"
NAMESAKE = "table bridge virtcloud { chain other { }; }\n"
NFT_CHANGES = (
    "flush ruleset",
    "flush ruleset",
    "delete table bridge virtcloud",
    "flush chain bridge virtcloud guest",
    "flush set bridge virtcloud guests",
    "flush set bridge virtcloud ports",
    "delete chain bridge virtcloud ingress",
    "add table bridge virtcloud { flags dormant; }",
    'add element bridge virtcloud routers { "vc100-00000000" }',
    "add rule bridge virtcloud ingress accept",
    'add element bridge virtcloud ports { "vc100-00000000" comment "x" }',
)
UPLINK_CHANGES: tuple[dict[str, Any], ...] = ({"state": "down"}, {"state": "up"}, {"mtu": 1450}, {"mtu": 9000})
LINK_CHANGES: tuple[dict[str, Any], ...] = ({"state": "down"}, {"mtu": 1280}, {"mtu": 1499}, {"master": 0})
RULES: dict[str, tuple[int, dict[str, Sequence[Any]]]] = {}
"""The weight and the possible arguments of each rule, by name."""


def rule(weight: int = 1, **choices: Sequence[Any]) -> Callable[[T], T]:
    """Register a method as a rule. ``choices`` are the values of its arguments."""

    def add(method: T) -> T:
        RULES[method.__name__] = weight, choices
        return method

    return add


class OtherPrograms(HostNetworkChecks):
    """The rules of other programs. The names of foreign links begin with ``other``, or are names of the agent.

    ``count`` numbers new clusters and renamed links.
    """

    count: int

    @rule(index=INDEX)
    def a_link_of_the_agent_is_deleted(self, index: int) -> None:
        self.change_own(index, lambda one: self.world.link("del", one.name), with_guests=False)

    @rule(index=INDEX, changes=LINK_CHANGES)
    def a_link_of_the_agent_is_changed(self, index: int, changes: dict[str, Any]) -> None:
        def change(one: KernelInterface) -> None:
            if "mtu" not in changes or one.kind != "vlan":
                self.world.link("set", one.name, **changes)

        self.change_own(index, change)

    @rule(index=INDEX)
    def a_link_of_the_agent_is_renamed(self, index: int) -> None:
        self.count += 1
        self.change_own(
            index, lambda one: self.world.link("set", one.name, ifname=f"renamed{self.count}"), with_guests=False
        )

    @rule(setting=("ipv6/disable_ipv6", "ipv4/rp_filter", "ipv4/arp_ignore"))
    def a_program_sets_a_sysctl_of_all_links(self, setting: str) -> None:
        self.call(lambda: write_sysctls("all", {setting: "0"}))

    @rule(index=INDEX, bridge=INDEX)
    def a_port_of_the_agent_gets_another_bridge(self, index: int, bridge: int) -> None:
        def change(one: KernelInterface) -> None:
            bridges = [other for other in self.world.list_links().values() if is_ours(other) and other.kind == "bridge"]
            if one.kind != "bridge" and bridges:
                self.world.link("set", one.name, master=bridges[bridge % len(bridges)].index)
                self.is_mixed = True

        self.change_own(index, change)

    @rule(index=INDEX, setting=[{"ipv6/disable_ipv6": "0"}, {"ipv4/rp_filter": "0"}])
    def a_sysctl_of_a_link_is_changed(self, index: int, setting: dict[str, str]) -> None:
        self.change_own(index, lambda one: write_sysctls(one.name, setting))

    @rule(index=INDEX, option=["br_nf_call_iptables", "br_nf_call_arptables"])
    def an_option_of_a_bridge_is_set(self, index: int, option: str) -> None:
        def change(one: KernelInterface) -> None:
            if one.kind == "bridge":
                self.world.link("set", one.name, kind="bridge", **{option: 1})

        self.change_own(index, change)

    def change_own(self, index: int, change: Callable[[KernelInterface], None], *, with_guests: bool = True) -> None:
        def work() -> None:
            if found := self.find_own(index, with_guests=with_guests):
                change(found)

        self.call(work)

    @rule(vlan=VLAN, port=PORT, kind=["bridge", "tagged", "namesake", "port"])
    def a_foreign_link_appears(self, vlan: int, port: str, kind: str) -> None:
        def work() -> None:
            links, tagged = self.world.list_links(), names.tagged_interface_name(port, vlan)
            if kind == "bridge" and f"br{vlan}" not in links:
                self.world.link("add", ifname=f"br{vlan}", kind="bridge")
            elif kind == "namesake" and tagged not in links:
                self.world.link("add", ifname=tagged, kind="tuntap", mode="tap")
            elif kind == "port" and f"br{vlan}" in links and "other1" not in links:
                self.world.link("add", ifname="other1", kind="tuntap", mode="tap")
                self.world.link("set", "other1", master=f"br{vlan}")
            elif kind == "tagged" and port in links and "other2" not in links:
                same = [one for one in links.values() if (one.parent, one.vlan) == (links[port].index, vlan)]
                if not same:
                    self.world.link("add", ifname="other2", kind="vlan", link=links[port].index, vlan_id=vlan, mtu=1280)

        self.call(work)

    @rule(port=PORT, changes=UPLINK_CHANGES)
    def an_uplink_is_changed(self, port: str, changes: dict[str, Any]) -> None:
        self.change_uplink(port, lambda: self.world.link("set", port, **changes))

    @rule(port=PORT, again=BOTH)
    def an_uplink_is_removed(self, port: str, again: bool) -> None:
        def change() -> None:
            self.world.link("del", port)
            if again:
                self.world.add_uplink(port)

        self.change_uplink(port, change)

    @rule(port=PORT)
    def an_uplink_gets_an_address(self, port: str) -> None:
        def change() -> None:
            self.world.route.addr("replace", index=socket.if_nametoindex(port), address="192.0.2.7", prefixlen=24)

        self.change_uplink(port, change)

    @rule(port=PORT)
    def an_uplink_gets_a_foreign_bridge(self, port: str) -> None:
        def change() -> None:
            if "other3" not in self.world.list_links():
                self.world.link("add", ifname="other3", kind="bridge")
            self.world.link("set", port, master="other3")

        self.change_uplink(port, change)

    def change_uplink(self, port: str, change: Callable[[], None]) -> None:
        def work() -> None:
            if port in self.world.list_links():
                change()

        self.call(work)

    @rule(commands=NFT_CHANGES)
    def a_program_changes_the_packet_filter(self, commands: str) -> None:
        self.call(lambda: self.try_nft(commands))
        self.is_filter_intact = False

    @rule()
    def a_program_adds_tables(self) -> None:
        self.call(lambda: self.try_nft(FOREIGN_TABLES))

    @rule()
    def a_program_adds_a_table_of_the_agents_name(self) -> None:
        def work() -> None:
            if "table bridge virtcloud" not in self.list_tables():
                self.try_nft(NAMESAKE)

        self.call(work)

    @rule()
    def docker_is_installed(self) -> None:
        self.call(lambda: BRIDGED.write_text("1"))

    @rule(weight=3)
    def the_administrator_removes_what_is_in_the_way(self) -> None:
        self.call(self.tidy)

    def try_nft(self, commands: str) -> None:
        with suppress(Refused):  # the table or chain is missing, or in use
            self.world.nft(commands)

    def tidy(self) -> None:
        for path in (SYSCTL / "bridge").glob("bridge-nf-call-*"):
            path.write_text("0")
        self.world.hypervisor.stubborn.clear()
        self.world.hypervisor.immortal.clear()
        for name, one in self.world.list_links().items():
            if (not is_ours(one) or is_renamed_port(one)) and name not in {
                "lo",
                *UPLINKS,
                *(f"p{port}" for port in UPLINKS),
            }:
                self.world.link("del", name)
        links = self.world.list_links()
        for name, mtu in UPLINKS.items():
            if name not in links:
                self.world.add_uplink(name)
            self.world.link("set", name, mtu=mtu, state="up")
            self.world.route.flush_addr(index=socket.if_nametoindex(name), family=socket.AF_INET)
        if not self.has_own_table():
            self.try_nft("delete table bridge virtcloud")

    def find_own(self, index: int, *, with_guests: bool) -> KernelInterface | None:
        """Return a link of the agent, or None. With ``with_guests``, the link may be a guest's port.

        No agent can restore the port of a guest.
        """
        links = [one for one in self.world.list_links().values() if is_ours(one)]
        found = [one for one in links if with_guests or not names.is_guest_port(one.name)]
        return found[index % len(found)] if found else None

    def everything_ends(self) -> None:
        def work() -> None:
            self.tidy()
            self.wanted = {}
            self.world.sbf.want()
            self.reconcile_and_check()
            links = self.world.list_links()
            assert not [one for one in links.values() if is_ours(one)]
            assert "table bridge virtcloud" not in self.list_tables()
            for name in UPLINKS:
                host_ip = ("2", "2") if name == "eth1" else (read_default("rp_filter"), read_default("arp_ignore"))
                assert tuple(read_sysctls(name).values()) == (*host_ip, "0", "0"), name
                assert not links[name].master
            # After a reboot, the agent ignores earlier records (`virtcloud/agent/network/interfaces.py`).
            assert self.world.agent.records.all() == []

        self.call(work)


def read_default(name: str) -> str:
    return (SYSCTL / "ipv4/conf/default" / name).read_text().strip()
