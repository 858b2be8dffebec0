"""The switches, edges and hosts of a world: the VLAN IDs that they carry, and manual changes by administrators."""

from collections import defaultdict
from dataclasses import dataclass, field

from support.sbf_fakes.edges import FakeEdge, FakeEdges
from support.sbf_fakes.restores import CarryingHosts
from support.sbf_fakes.switches import FakeSwitch, FakeSwitches
from support.sbf_fakes.world import SITES
from virtcloud.model.vlans import VlanSet
from virtcloud.model.wanted import WantedDocument

SWITCHES = [f"{site}-sw1" for site in SITES]
EDGES = [f"{site}-pe1" for site in SITES]
DEVICES = [*SWITCHES, *EDGES]
HOSTS = [f"{site}-h{number}" for site in SITES for number in (1, 2)]
ELEMENTS = [*DEVICES, *HOSTS]
OFFICES = "offices"
"""The name of each VLAN that an administrator created."""


def site_of(element: str) -> str:
    return element.split("-", maxsplit=1)[0]


@dataclass
class Carriers:
    """Each site has a switch, an edge and two hosts."""

    switches: FakeSwitches
    edges: FakeEdges
    hosts: CarryingHosts = field(default_factory=CarryingHosts)
    fetched: dict[str, WantedDocument] = field(default_factory=dict)
    """By host: the document that the host's agent has fetched, but not applied yet."""
    offices: dict[str, set[int]] = field(default_factory=lambda: {name: set() for name in SWITCHES})
    """By switch: the VLANs that an administrator created."""
    rebooted: dict[str, int] = field(default_factory=dict)
    """By device: the number of the device's calls before its last reboot."""

    def __post_init__(self) -> None:
        for name in SWITCHES:
            self.switches[name].table = {1: "default"}
        for name in EDGES:
            self.edges[name].checks_services = True

    def device(self, name: str) -> FakeSwitch | FakeEdge:
        return self.edges[name] if name in EDGES else self.switches[name]

    def table(self, name: str) -> dict[int, str]:
        table = self.switches[name].table
        assert table is not None
        return table

    def carried_on(self, name: str) -> VlanSet:
        """Return the VLAN IDs that an element carries, or would carry after a reboot."""
        if name in HOSTS:
            return VlanSet(vlan for _, vlan in self.hosts.carried.get(name, ()))
        device = self.device(name)
        if isinstance(device, FakeEdge):
            return VlanSet(one.vlan for one in device.circuits | device.startup)
        ports = (*device.ports.values(), *device.startup[0].values())
        return VlanSet(vlan for vlans in ports for vlan in vlans)

    def services_on(self, edge: str) -> set[int]:
        return {one.service for one in self.edges[edge].circuits | self.edges[edge].startup}

    def is_reboot_unnoticed(self, name: str) -> bool:
        return name in self.rebooted and "read" not in self.device(name).calls[self.rebooted[name] :]

    def list_segments(self) -> list[set[str]]:
        """Return the IDs of the networks on each Ethernet segment.

        A segment consists of the hosts whose VLANs are connected by switches, or by a service of the edges.
        """
        by_vlan = defaultdict[tuple[str, int], set[str]](set)
        for host, segments in self.hosts.carried.items():
            for network, vlan in segments:
                by_vlan[site_of(host), vlan].add(network)
        by_service = defaultdict[int, set[str]](set)
        for name in EDGES:
            for one in self.edges[name].circuits:
                by_service[one.service] |= by_vlan[site_of(name), int(one.vlan)]
        return [*by_vlan.values(), *by_service.values()]

    def reboot(self, name: str) -> None:
        device = self.device(name)
        if isinstance(device, FakeSwitch):
            device.reboot()
        else:
            device.circuits = set(device.startup)
        self.rebooted[name] = len(device.calls)

    def end_faults(self) -> None:
        for name in DEVICES:
            device = self.device(name)
            device.cut_off = device.refuses = False
        for name, vlans in self.offices.items():
            for vlan in sorted(vlans):
                self.change_office(name, vlan)
        self.hosts.stuck.clear()
        self.fetched.clear()

    # Changes by hand.

    def change_office(self, name: str, vlan: int) -> None:
        """Delete the administrator's VLAN with this ID, or create one if no VLAN has this ID."""
        table = self.table(name)
        if vlan in self.offices[name]:
            self.offices[name].remove(vlan)
            del table[vlan]
        elif vlan not in table and vlan not in self.carried_on(name):
            self.offices[name].add(vlan)
            table[vlan] = OFFICES

    def remove_by_hand(self, site: str, vlan: int) -> None:
        """Remove SBF's VLAN from all elements of a site, also from startup configurations."""
        switch, edge, table = self.switches[f"{site}-sw1"], self.edges[f"{site}-pe1"], self.table(f"{site}-sw1")
        for vlans in (*switch.ports.values(), *switch.startup[0].values()):
            vlans.discard(vlan)
        if table.get(vlan) == f"vc-{vlan}":
            del table[vlan]
        edge.circuits = {one for one in edge.circuits if one.vlan != vlan}
        edge.startup = frozenset(one for one in edge.startup if one.vlan != vlan)
        for host in [host for host in HOSTS if site_of(host) == site]:
            self.fetched.pop(host, None)
            self.hosts.carried[host] = {one for one in self.hosts.carried.get(host, set()) if one[1] != vlan}

    def replace(self, name: str) -> None:
        """Replace an element by an element without configuration."""
        if name in HOSTS:
            self.fetched.pop(name, None)
            self.hosts.carried[name] = set()
            return
        device = self.device(name)
        device.restart()
        if isinstance(device, FakeEdge):
            device.startup = frozenset()
        else:
            device.startup, device.table = ({}, set()), {1: "default"}
            self.offices[name].clear()
