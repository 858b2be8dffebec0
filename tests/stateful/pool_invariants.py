"""The invariants of pools, claims and elements, which ``test_pool_machine.py`` checks after each step.

An element is *unchecked* if SBF has not read the element since a restore.
"""

from collections.abc import Iterator
from contextlib import contextmanager

from sqlalchemy import func, select
from support.sbf_fakes.carriers import DEVICES, EDGES, ELEMENTS, OFFICES, SWITCHES, Carriers, site_of
from support.sbf_fakes.world import SITES, World

from sbf_service.store.clusters.cluster_lists import ClusterFilter, list_newest
from sbf_service.store.elements.elements import read_wanted_revision
from sbf_service.store.elements.unchecked_elements import declare_element_clean
from sbf_service.store.tables.service_tables import AuditRow
from sbf_service.store.tables.tables import ElementRow
from sbf_service.store.tables.vlan_tables import FreeVlanRow
from sbf_service.store.users.quotas import NO_LIMITS, find_limits
from virtcloud.model.cluster import ENDED_STATES, ClusterState
from virtcloud.model.errors import Conflict, Forbidden, Gone, IllegalTransition, NotFound
from virtcloud.model.values import Name, VlanId
from virtcloud.model.views import ClusterView
from virtcloud.model.vlans import VlanSet


class PoolInvariants:
    """SBF with its elements. ``behind`` are the seconds by which the clock was stepped back."""

    world: World
    carriers: Carriers
    pools: dict[str, str]
    behind: float

    # Invariants after every step.

    def all_invariants_hold(self) -> None:
        """All invariants are checked with the same views of the clusters, because a query takes longer than a check."""
        views = self.views()
        self.no_id_is_claimed_twice(views)
        self.exactly_the_unclaimed_ids_are_free(views)
        self.checked_elements_carry_only_claimed_ids(views)
        self.no_two_networks_share_a_segment()
        self.active_clusters_are_present(views)
        self.ended_clusters_keep_only_quarantined_ids(views)
        self.foreign_vlans_are_unchanged()

    def no_id_is_claimed_twice(self, views: list[ClusterView]) -> None:
        own = [view for view in views if view.network is None]
        vlans = [(site, vlan) for view in own for site, vlan in view.vlans.items()]
        services = [view.joined.service for view in own if view.joined is not None and view.joined.service]
        assert len(vlans) == len(set(vlans))
        assert len(services) == len(set(services))
        assert all(vlan in VlanSet.parse(self.pools[site]) for site, vlan in vlans)

    def exactly_the_unclaimed_ids_are_free(self, views: list[ClusterView]) -> None:
        with self.world.store.read() as unit:
            rows = unit.session.execute(select(FreeVlanRow.site, FreeVlanRow.vlan)).all()
        for site in SITES:
            free = VlanSet(row.vlan for row in rows if row.site == site)
            foreign = VlanSet(use.vlan for use in self.world.site(site).other_use)
            assert free == VlanSet.parse(self.pools[site]) - self.claimed_at(site, views) - foreign

    def checked_elements_carry_only_claimed_ids(self, views: list[ClusterView]) -> None:
        """The cluster that claims a carried VLAN ID may have ended: its VLAN IDs are then in quarantine."""
        services = {view.joined.service for view in views if view.joined is not None}
        unknown = self.find_unknown()
        for name in {*ELEMENTS} - self.find_unchecked():
            carried = self.carriers.carried_on(name) - unknown.get(name, VlanSet())
            assert carried <= self.claimed_at(site_of(name), views), name
            if name in EDGES:
                assert self.carriers.services_on(name) <= services

    def no_two_networks_share_a_segment(self) -> None:
        assert all(len(networks) <= 1 for networks in self.carriers.list_segments())

    def active_clusters_are_present(self, views: list[ClusterView]) -> None:
        """An active cluster is present on all its elements, except devices whose reboot SBF has not noticed."""
        for view in views:
            for part in view.placements if view.state is ClusterState.ACTIVE else ():
                vlan = view.vlans[Name(site_of(part.element))]
                assert self.carriers.is_reboot_unnoticed(part.element) or vlan in self.carriers.carried_on(part.element)

    def ended_clusters_keep_only_quarantined_ids(self, views: list[ClusterView]) -> None:
        for view in views:
            assert bool(view.vlans) == (view.state not in ENDED_STATES or view.quarantined)

    def foreign_vlans_are_unchanged(self) -> None:
        for name, vlans in self.carriers.offices.items():
            assert {number for number, title in self.carriers.table(name).items() if title == OFFICES} == vlans
            assert not any(vlans & carried for carried in self.world.switches[name].ports.values())

    # Checks of single calls.

    @contextmanager
    def refusals_change_nothing(self) -> Iterator[None]:
        before = self.views(), self.count_audit()
        try:
            yield
        except IllegalTransition:
            raise
        except (Conflict, Forbidden, NotFound, Gone):
            assert (self.views(), self.count_audit()) == before

    def a_repeated_request_changes_nothing(self, key: str, view: ClusterView) -> None:
        rows = self.count_audit()
        again = self.world.put(key, view.spec, view.attempt)
        assert (again.created, again.view) == (False, view)
        assert self.count_audit() == rows

    def no_element_carries_the_new_ids(self, view: ClusterView, former: dict[Name, VlanId]) -> None:
        """No element already carries the VLAN IDs and the service ID that a network has just received."""
        new = {site: vlan for site, vlan in view.vlans.items() if site not in former}
        for name in ELEMENTS:
            assert new.get(Name(site_of(name))) not in self.carriers.carried_on(name)
        if view.joined is not None and len(former) <= 1:
            assert not any(view.joined.service in self.carriers.services_on(name) for name in EDGES)

    def no_quota_is_exceeded(self, owner: str) -> None:
        with self.world.store.read() as unit:
            limit = find_limits(unit, owner, NO_LIMITS).clusters
        running = [view for view in self.views() if view.spec.owner == owner and view.state not in ENDED_STATES]
        assert limit is None or len(running) <= limit

    # Queries.

    def views(self) -> list[ClusterView]:
        with self.world.store.read() as unit:
            return list_newest(unit, ClusterFilter(ended=True), 1000)

    def count_audit(self) -> int:
        with self.world.store.read() as unit:
            return unit.session.scalar(select(func.max(AuditRow.id))) or 0

    def find_unchecked(self) -> set[str]:
        with self.world.store.read() as unit:
            return set(unit.session.scalars(select(ElementRow.name).where(ElementRow.unchecked)))

    def find_unknown(self) -> dict[str, VlanSet]:
        """Return the VLAN IDs that each device carries, but that SBF had not managed there before the restored backup.

        SBF keeps VLANs with these VLAN IDs until an administrator declares the device clean (decision 97).
        """
        with self.world.store.read() as unit:
            rows = unit.session.execute(select(ElementRow.name, ElementRow.known_vlans)).all()
        known = {row.name: row.known_vlans for row in rows}
        carried = {name: self.carriers.carried_on(name) - known[name] for name in DEVICES}
        return {name: vlans for name, vlans in carried.items() if vlans}

    def claimed_at(self, site: str, views: list[ClusterView]) -> VlanSet:
        return VlanSet(view.vlans[Name(site)] for view in views if site in view.vlans)

    # The end of each sequence.

    def without_faults_the_wanted_state_is_reached(self) -> None:
        self.carriers.end_faults()
        self.settle_all()
        if unknown := self.find_unknown():
            with self.world.store.change() as unit:
                for name in unknown:
                    declare_element_clean(unit, name, "no other SBF uses these VLAN IDs")
            self.settle_all()
        for name in SWITCHES:
            with self.world.store.read() as unit:
                wanted = read_wanted_revision(unit, name).wanted
            switch = self.world.switches[name]
            assert switch.table == {1: "default", **{vlan: f"vc-{vlan}" for vlan in wanted.vlans}}
            assert {port: set(vlans) for port, vlans in wanted.ports.items() if vlans} == {
                port: {VlanId(vlan) for vlan in vlans} for port, vlans in switch.ports.items() if vlans
            }
        for view in self.views():
            assert view.state in {ClusterState.ACTIVE, *ENDED_STATES}
            assert not view.quarantined
        assert self.find_unchecked() == set()

    def after_all_clusters_nothing_remains(self) -> None:
        for view in self.views():
            if view.state not in ENDED_STATES:
                self.world.delete(view.key)
        self.settle_all()
        for name in ELEMENTS:
            assert not self.carriers.carried_on(name)
        for name in SWITCHES:
            assert self.world.switches[name].table == {1: "default"}
        assert all(view.state in ENDED_STATES and not view.vlans for view in self.views())
        assert all(self.world.site(site).free == VlanSet.parse(self.pools[site]) for site in SITES)

    def settle_all(self) -> None:
        for _ in range(3):
            self.world.clock.advance(301 + self.behind)
            self.behind = 0
            self.carriers.hosts.settle(self.world)
