"""The invariants of claims, elements and ports, which ``test_topology_machine.py`` checks after each step."""

from collections import defaultdict
from collections.abc import Iterable, Sequence
from typing import Any

from sqlalchemy import inspect, select
from support.sbf_fakes.busy_world import WorldWithHosts
from support.sbf_fakes.edges import FakeEdge
from support.sbf_fakes.ethernet_segments import find_networks, is_on_path, list_carried_vlans
from support.sbf_fakes.recomputed_state import RecomputedState
from support.sbf_fakes.switches import FakeSwitch

from sbf_service.domain.gateway_access import OUTSIDE_LINK
from sbf_service.domain.paths import LiveCluster
from sbf_service.store.clusters.cluster_lists import ClusterFilter, list_newest
from sbf_service.store.elements.elements import read_wanted_revision
from sbf_service.store.elements.revisions import increment_revisions
from sbf_service.store.elements.unchecked_elements import declare_element_clean
from sbf_service.store.networks.cluster_gateways import read_cluster_gateways
from sbf_service.store.networks.networks import read_clusters_on
from sbf_service.store.tables.cluster_tables import ClusterRow, PlacementRow
from sbf_service.store.tables.columns import equals_any
from sbf_service.store.tables.gateway_tables import NetworkRouterRow
from sbf_service.store.tables.tables import ElementRow, PortRow, SiteRow
from sbf_service.store.tables.vlan_tables import ClaimRow, ForeignVlanRow, FreeVlanRow
from sbf_service.store.topology.current_topology import read_topology
from sbf_service.store.topology.topology_elements import is_other_device
from sbf_service.store.unit_of_work import Unit
from sbf_service.store.vlans.ports import adopt_ports, release_ports
from sbf_service.store.vlans.transport_vlans import list_collisions
from virtcloud.model.cluster import ENDED_STATES, WANTED_STATES, ClusterState
from virtcloud.model.edge import EdgeDifference, EdgeWanted
from virtcloud.model.element import ElementKind, Switch
from virtcloud.model.port_use import PortRelease, PortUse
from virtcloud.model.switch_state import SwitchDifference, SwitchWanted
from virtcloud.model.topology import Topology
from virtcloud.model.values import Name, PortName
from virtcloud.model.views import ClusterView
from virtcloud.model.vlans import VlanSet

OFFICES = "offices"
"""The name of each VLAN that an administrator created."""
OLD_VLAN = 103
"""A VLAN that another SBF configured on a switch, before this switch replaced a switch of the tested SBF."""


def list_replaced(former: Topology, topology: Topology) -> set[str]:
    """Return the names of switches that replaced another element of the same name in the former topology."""
    pairs = [(former.elements.get(name), one) for name, one in topology.elements.items() if isinstance(one, Switch)]
    return {one.name for before, one in pairs if before is not None and is_other_device(before, one)}


class TopologyInvariants:
    """SBF and its devices.

    - ``occupied``: each port that an administrator configured for something other than clusters, with its use.
    - ``offices``: the VLANs that an administrator created on each switch.
    - ``used``: the switches that replaced other switches. They may carry ``OLD_VLAN``.
    - ``losses``: the devices that may have lost their configuration, with the confirmed revision at that time.
    - ``former``: at the last check, the topology, and the clusters that an element must carry or must still remove.
    """

    world: WorldWithHosts
    recomputed: RecomputedState
    names: Sequence[str]
    occupied: dict[tuple[str, str], PortUse]
    offices: dict[str, set[int]]
    used: set[str]
    losses: dict[str, int]
    former: tuple[Topology, list[LiveCluster]] | None = None

    # Invariants after every step.

    def all_invariants_hold(self) -> None:
        with self.world.store.read() as unit:
            live = self.recomputed.check(unit)
            assert not list_collisions(unit.connection)
            owners = {(claim.site, claim.vlan): claim.cluster_id for claim in unit.session.query(ClaimRow)}
            elements = {row.name: (row.site, row.kind) for row in unit.session.query(ElementRow)}
            ports = {(row.element, row.port) for row in unit.session.query(PortRow)}
            topology = read_topology(unit)
            self.confirmed_clusters_are_carried(unit, live)
            self.exactly_the_unclaimed_ids_are_free(unit, owners)
            self.only_present_elements_have_foreign_vlans(unit, topology)
            unsettled = read_clusters_on(unit, topology.elements)
        if self.former is not None:
            self.another_switch_has_no_port_records(self.former[0], topology, ports)
            self.changed_access_links_lead_to_members(self.former[0], topology, owners, [*self.former[1], *unsettled])
        self.former = topology, unsettled
        for name, vlans in list_carried_vlans(self.world, self.world.segments):
            lost = {vlan for vlan in vlans if (elements[name][0], vlan) not in owners}
            assert not lost, f"{name} carries VLANs {lost} without a network"
        for segment, networks in find_networks(self.world, topology, owners, self.world.segments).items():
            assert len(networks) < 2, f"two networks share the Ethernet segment {segment}"
        self.other_uses_are_unchanged(elements, ports)

    def confirmed_clusters_are_carried(self, unit: Unit, clusters: list[LiveCluster]) -> None:
        """An element carries each cluster that it has confirmed, except after a loss that SBF has not noticed."""
        elements = {row.name: row for row in unit.session.query(ElementRow)}
        confirmed = {name: row.confirmed_revision for name, row in elements.items()}
        self.losses = {name: revision for name, revision in self.losses.items() if confirmed[name] == revision}
        carried = defaultdict(set)
        for name, vlans in list_carried_vlans(self.world, self.world.segments):
            carried[name] |= vlans
        parts = unit.session.query(PlacementRow).filter(PlacementRow.removed_revision.is_(None))
        added = [part for part in parts if not part.blocked and part.added_revision <= confirmed[part.element]]
        live = {one.id: one for one in clusters}
        for part in added:
            if part.cluster_id in live and part.element not in self.losses:
                cluster = live[part.cluster_id]
                vlan = int(cluster.vlans[Name(elements[part.element].site)])
                assert vlan in carried[part.element], f"{part.element} lacks VLAN {vlan} of {cluster.key}"

    def expect_loss(self, name: str) -> None:
        """Record that a device will lose its configuration without a notice to SBF."""
        with self.world.store.read() as unit:
            row = unit.session.get(ElementRow, name)
            if row is not None:
                self.losses[name] = row.confirmed_revision

    def exactly_the_unclaimed_ids_are_free(self, unit: Unit, owners: dict[tuple[str, int], str]) -> None:
        used = defaultdict(set)
        for site, vlan in (*owners, *unit.session.execute(select(ForeignVlanRow.site, ForeignVlanRow.vlan))):
            used[site].add(vlan)
        free = defaultdict(set)
        for site, vlan in unit.session.execute(select(FreeVlanRow.site, FreeVlanRow.vlan)):
            free[site].add(vlan)
        for site, pool in unit.session.execute(select(SiteRow.name, SiteRow.pool)):
            assert free[site] == set(map(int, pool)) - used[site], f"wrong VLAN IDs are free at {site}"

    @staticmethod
    def only_present_elements_have_foreign_vlans(unit: Unit, topology: Topology) -> None:
        for name, site in unit.session.execute(select(ForeignVlanRow.element, ForeignVlanRow.site)):
            assert name in {one.name for one in topology.site(site).elements}, f"{name} has VLANs, but is not at {site}"

    @staticmethod
    def another_switch_has_no_port_records(former: Topology, topology: Topology, ports: set[tuple[str, str]]) -> None:
        """If a switch was replaced since the last check, SBF has no port records under the switch's name."""
        stale = list_replaced(former, topology) & {name for name, _ in ports}
        assert not stale, f"SBF has records of the ports of former {stale}"

    def changed_access_links_lead_to_members(
        self, former: Topology, topology: Topology, owners: dict[tuple[str, int], str], live: list[LiveCluster]
    ) -> None:
        """If an access port's link changes, the port carries only networks that use the port in the new topology."""
        replaced = list_replaced(former, topology)
        for port, peer in topology.peers.items():
            before, switch = (former.peers.get(port), port in former.access_ports), self.find_devices(port.element)[0]
            if before == (peer, port in topology.access_ports) or port.element in replaced:
                continue
            for vlan in switch.ports.get(port.port, ()) if port.port in switch.access else ():
                owner = owners[topology.site_of[port.element].name, vlan]
                users = [one for one in live if one.network.id == owner and is_on_path(topology, one, port)]
                assert users, f"{peer} is linked to {port}, which carries the network {owner} of others"

    def other_uses_are_unchanged(self, elements: dict[str, tuple[str, str]], ports: set[tuple[str, str]]) -> None:
        """Ports in other use change only after their adoption. VLANs that an administrator created never change."""
        for (name, port), use in list(self.occupied.items()):
            if elements.get(name, ("", ""))[1] != ElementKind.SWITCH:
                del self.occupied[name, port]  # another device has this name now
            elif (name, port) not in ports:
                switch = self.world.switches[name]
                assert switch.uses is not None
                assert switch.uses.get(port) == use, f"port {port} of {name} is no longer {use}"
                assert not switch.ports.get(port), f"port {port} of {name} is {use}, and carries clusters"
        for name, vlans in self.offices.items():
            table, carried = self.world.switches[name].table or {}, self.world.switches[name].ports.values()
            assert {vlan for vlan, title in table.items() if title == OFFICES} == vlans
            assert not any(vlans & on_port for on_port in carried), f"a port of {name} was added to a foreign VLAN"

    def only_wanted_is_added(
        self, name: str, of_switch: Iterable[SwitchDifference], of_edge: Iterable[EdgeDifference]
    ) -> None:
        with self.world.store.read() as unit:
            wanted = read_wanted_revision(unit, name).wanted if name in read_topology(unit).elements else None
        ports = wanted.ports if isinstance(wanted, SwitchWanted) else {}
        circuits = wanted.circuits if isinstance(wanted, EdgeWanted) else ()
        for port, vlans in (item for one in of_switch for item in one.add.items()):
            assert not vlans - ports.get(port, VlanSet()), f"VLAN {vlans} was added to {name}:{port}, and is not wanted"
        assert all(circuit in circuits for one in of_edge for circuit in one.add), f"{name} got circuits of no cluster"

    # The end of each sequence.

    def without_faults_everything_is_reached_and_ends(self) -> None:
        for name in self.names:
            self.end_faults(name)
        self.world.dead_hosts.clear()
        self.end_other_uses()
        self.settle_without_faults()
        assert all(view.state in {ClusterState.ACTIVE, *ENDED_STATES} for view in self.views())
        with self.world.store.read() as unit:
            self.routers_have_a_link(unit, read_topology(unit))
        for view in self.views():
            if view.state not in ENDED_STATES:
                self.world.delete(view.key)
        self.settle_without_faults()
        assert all(view.state in ENDED_STATES and not view.vlans for view in self.views())
        assert not any(vlans for _, vlans in list_carried_vlans(self.world, self.world.segments))
        self.release_all_ports()
        self.settle_without_faults()
        tables = {name: self.world.switches[name].table for name in self.names}
        assert {name: table for name, table in tables.items() if table != {1: "default"}} == {}
        for (name, port), use in self.occupied.items():
            assert (self.world.switches[name].uses or {}).get(port) == use, f"{name}:{port} is not {use} again"

    def end_faults(self, name: str) -> None:
        for device in self.find_devices(name):
            device.cut_off = device.refuses = device.lies = device.unsafe = False
            device.cut_off_after = None

    def end_other_uses(self) -> None:
        """Delete the VLANs of administrators, declare all elements clean, and adopt all ports in other use."""
        for name, vlans in self.offices.items():
            table = self.world.switches[name].table
            assert table is not None
            for vlan in vlans:
                del table[vlan]
            vlans.clear()
        topology = self.world.topology()
        for name in self.used:
            is_switch = isinstance(topology.elements.get(Name(name)), Switch)
            if not is_switch or OLD_VLAN not in self.world.site(topology.site_of[Name(name)].name).pool:
                (self.world.switches[name].table or {}).pop(OLD_VLAN, None)  # SBF manages only VLANs of the pool
        for name, port in list(self.occupied):
            self.adopt(name, port)
        with self.world.store.change(who="operator") as unit:
            elements = read_topology(unit).elements
            for name in elements:
                declare_element_clean(unit, name, "checked")
            increment_revisions(unit, elements)

    def settle_without_faults(self) -> None:
        self.world.clock.advance(301)
        for _ in range(3):
            self.world.settle()
            self.all_invariants_hold()

    def routers_have_a_link(self, unit: Unit, topology: Topology) -> None:
        """The router of a network has a link to the outside if any gateway of the network has such a link."""
        rows = select(NetworkRouterRow.network_id, NetworkRouterRow.gateway).join(
            ClusterRow, ClusterRow.id == NetworkRouterRow.network_id
        )
        for network, router in unit.session.execute(rows.where(equals_any(ClusterRow.state, WANTED_STATES))):
            able = [one for one in read_cluster_gateways(unit, [network])[network] if OUTSIDE_LINK.has(topology, one)]
            assert not able or router in able, f"{router} is a router without a link, instead of {able}"

    def release_all_ports(self) -> None:
        with self.world.store.read() as unit:
            ports = [(row.element, row.port) for row in unit.session.query(PortRow)]
            elements = read_topology(unit).elements
        for name, port in ports:
            if isinstance(elements.get(Name(name)), Switch):
                self.release(name, port)

    # Calls of administrators about ports.

    def adopt(self, name: str, port: str) -> None:
        with self.world.store.change(who="operator") as unit:
            switch, uses = read_topology(unit).elements.get(Name(name)), self.world.switches[name].uses or {}
            if isinstance(switch, Switch) and port in switch.ports:
                adopt_ports(unit, switch, {PortName(port): uses.get(port, PortUse())})

    def release(self, name: str, port: str, *, forget: bool = False) -> None:
        """Release a port. For an access port, also forget the original use: SBF otherwise refuses the release."""
        with self.world.store.change(who="operator") as unit:
            switch = read_topology(unit).elements.get(Name(name))
            if isinstance(switch, Switch):
                wanted = self.read_wanted(unit, name)
                release = PortRelease(ports=(PortName(port),), forget=forget or PortName(port) in wanted.access)
                if release.forget:
                    self.occupied.pop((name, port), None)
                release_ports(unit, switch, wanted, release)

    @staticmethod
    def read_wanted(unit: Unit, name: str) -> SwitchWanted:
        wanted = read_wanted_revision(unit, name).wanted
        assert isinstance(wanted, SwitchWanted)
        return wanted

    # Queries.

    def views(self) -> list[ClusterView]:
        with self.world.store.read() as unit:
            return list_newest(unit, ClusterFilter(ended=True), 1000)

    def find_devices(self, name: str) -> tuple[FakeSwitch, FakeEdge]:
        return self.world.switches[name], self.world.edges[name]

    def count_applied(self, name: str) -> int:
        switch, edge = self.find_devices(name)
        return len(switch.applied) + len(edge.applied)

    def read_database(self) -> dict[str, Sequence[Any]]:
        with self.world.store.read() as unit:
            names = inspect(unit.connection).get_table_names()
            return {name: unit.connection.exec_driver_sql(f"SELECT * FROM {name}").all() for name in names}  # noqa: S608
