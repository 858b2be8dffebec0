"""The invariants of a host's network, for `test_host_network_machine`."""

import re
from collections import Counter
from collections.abc import Callable
from typing import Any, Final

from support.hosts.host_network_world import SYSCTL, UPLINKS, HostNetworkWorld, is_ours, is_renamed_port
from virtcloud.agent.network import names
from virtcloud.agent.network.interfaces import KernelInterface
from virtcloud.model.wanted import Segment

Links = dict[str, KernelInterface]
BRIDGED: Final = SYSCTL / "bridge/bridge-nf-call-iptables"
LINK_SCOPE: Final = 253
"""RT_SCOPE_LINK (linux/rtnetlink.h)."""


class HostNetworkChecks:
    """The wanted networks of a host, and the checks of the host.

    - ``is_mixed``: another program moved a port to another network's bridge.
    - ``is_filter_intact``: no other program changed the packet filter.
    - ``attached``: the uplinks that were access ports.
    - ``owners``: the cluster of each guest's port.
    - ``outcomes``: the number of checks that found no obstacle to segments (``free``), or an obstacle (``blocked``).
    """

    def __init__(self) -> None:
        self.world = HostNetworkWorld()
        self.call = self.world.call
        self.wanted: dict[str, Segment] = {}
        self.was_open: set[str] = set()
        self.is_mixed, self.is_filter_intact = False, True
        self.attached: set[str] = set()
        self.owners: dict[str, str] = {}
        self.outcomes: Counter[str] = Counter()
        self.before: Any = None

    def snapshot(self) -> Any:
        """Return the foreign links, tables and addresses, without the IP settings of uplinks that were access ports."""
        links = self.world.list_links()
        ours = {one.index for one in links.values() if is_ours(one)}
        addresses = sorted(
            (one["index"], one.get_attr("IFA_ADDRESS"))
            for one in self.world.route.get_addr()
            if one["scope"] < LINK_SCOPE
        )
        kept = {
            name: (
                *(one.index, one.kind, one.alias, one.parent, one.vlan, one.mtu, one.up),
                (one.master if one.master not in ours else 0) or 0,
                name in self.attached or one.host_ip_disabled,
            )
            for name, one in links.items()
            if not is_ours(one)
        }
        tables = self.world.nft("list ruleset").split("table ")
        if self.has_own_table():
            tables = [table for table in tables if not table.startswith("bridge virtcloud ")]
        return kept, addresses, tables

    def list_tables(self) -> set[str]:
        return set(self.world.nft("list tables").splitlines())

    def has_own_table(self) -> bool:
        """Return whether the agent may replace the table with its name: the table is the agent's, or has no chain."""
        if "table bridge virtcloud" not in self.list_tables():
            return False
        text = self.world.nft("list table bridge virtcloud")
        return "set ports {" in text or "chain " not in text

    def watch(self, left: int = 0, fault: Callable[[str], None] | None = None) -> bool:
        """Reconcile. Check that the agent changed nothing foreign, and logged no internal error."""
        self.before = self.snapshot()
        confirmed = self.world.reconcile(left, fault)
        assert self.world.errors == []
        after = self.snapshot()
        assert after == self.before, [pair for pair in zip(self.before, after, strict=True) if pair[0] != pair[1]]
        self.no_bridge_has_two_networks()
        self.guests_are_filtered()
        return confirmed

    def reconcile_and_check(self) -> None:
        before = self.world.list_links()
        immortal = bool(self.world.hypervisor.immortal)
        blocked = {one.id for one in self.wanted.values() if self.find_obstacle(one, before)}
        remains = self.find_remains(before)
        confirmed = self.watch()
        links = self.world.list_links()
        for segment in self.wanted.values():
            if segment.id not in blocked and not immortal:
                self.check_segment(segment, links)
        if blocked or remains or immortal:
            self.outcomes["blocked"] += 1
            return
        self.outcomes["free"] += 1
        assert confirmed, self.world.sbf.messages[-1:]
        expected = {name for one in self.wanted.values() for name in self.list_names(one)}
        assert {name for name, one in links.items() if is_ours(one)} == expected
        self.check_filters()
        self.is_mixed, self.is_filter_intact = False, True
        count = len(self.world.meter.changes)
        assert self.world.reconcile()
        assert self.world.meter.changes[count:] == []

    def find_obstacle(self, segment: Segment, links: Links) -> bool:
        """Return whether something prevents the agent from building a segment."""
        if BRIDGED.read_text().strip() != "0" or any(is_renamed_port(one) for one in links.values()):
            return True
        if "table bridge virtcloud" in self.list_tables() and not self.has_own_table():
            return True
        uplink = links.get(segment.port)
        return uplink is None or not uplink.up or self.is_in_use(segment, uplink, links)

    def is_in_use(self, segment: Segment, uplink: KernelInterface, links: Links) -> bool:
        master = next((one for one in links.values() if one.index == uplink.master), None)
        if (master and not is_ours(master)) or (segment.untagged and uplink.addressed):
            return True
        own_names = {f"br{segment.vlan}", names.tagged_interface_name(segment.port, segment.vlan)}
        for one in links.values():
            same_tag = (one.kind, one.parent, one.vlan) == ("vlan", uplink.index, segment.vlan)
            if not is_ours(one) and (one.name in own_names or same_tag):
                return True
        return any(
            bridge.name == f"br{segment.vlan}" or names.uplink_of_alias(bridge.alias) == segment.port
            for bridge in self.find_remains(links)
        )

    def find_remains(self, links: Links) -> list[KernelInterface]:
        """Return the agent's bridges with foreign ports."""
        masters = {one.master for one in links.values() if not is_ours(one) and one.name not in UPLINKS}
        return [one for one in links.values() if is_ours(one) and one.index in masters]

    def list_names(self, segment: Segment) -> set[str]:
        ports = {names.guest_port_name(segment.id, guest.name, segment.vlan) for guest in segment.guests}
        tagged = set() if segment.untagged else {names.tagged_interface_name(segment.port, segment.vlan)}
        return {f"br{segment.vlan}", *ports, *tagged}

    def check_segment(self, segment: Segment, links: Links) -> None:
        bridge, uplink = links[f"br{segment.vlan}"], links[segment.port]
        mtu = min(segment.mtu or 65535, uplink.mtu)
        assert (bridge.up, bridge.mtu, bridge.packet_filtered) == (True, mtu, False)
        port = uplink if segment.untagged else links[names.tagged_interface_name(segment.port, segment.vlan)]
        assert (port.master, port.up, port.host_ip_disabled) == (bridge.index, True, True)
        assert bridge.host_ip_disabled
        if not segment.untagged:
            assert (port.parent, port.vlan, port.mtu) == (uplink.index, segment.vlan, mtu)
        for guest in segment.guests:
            port = links[names.guest_port_name(segment.id, guest.name, segment.vlan)]
            assert (port.master, port.mtu) == (bridge.index, mtu if segment.mtu else port.mtu)

    def check_filters(self) -> None:
        guests = {
            (names.guest_port_name(one.id, guest.name, one.vlan), guest.mac)
            for one in self.wanted.values()
            if one.filters != "open"
            for guest in one.guests
        }
        found = self.list_filtered()
        assert found == guests

    def list_filtered(self) -> set[tuple[str, str]]:
        if "table bridge virtcloud" not in self.list_tables():
            return set()
        _, _, text = self.world.nft("list table bridge virtcloud").partition("set guests {")
        text, _, _ = text.partition("set ")
        return set(re.findall(r'"([^"]+)" \. ([0-9a-f:]{17})', text))

    def no_bridge_has_two_networks(self) -> None:
        if self.is_mixed:
            return
        links = self.world.list_links()
        clusters: dict[int, set[str]] = {}
        for one in links.values():
            cluster = names.cluster_of_alias(one.alias) or self.owners.get(one.name)
            if cluster:
                clusters.setdefault(one.index if one.kind == "bridge" else one.master or -one.index, set()).add(cluster)
        assert all(len(found) == 1 for found in clusters.values()), clusters

    def guests_are_filtered(self) -> None:
        if not self.is_filter_intact:
            return
        links, filtered = self.world.list_links(), self.list_filtered()
        ports = {name for name, one in links.items() if names.is_guest_port(name) and one.master}
        assert {one for one in ports if self.owners[one] not in self.was_open} <= {port for port, _ in filtered}
