"""Tests of the store and its workers under any random sequence of calls, faults, restarts and pauses.

Switches, edges and hosts are fakes, whose state is compared with the service's records.
"""

import shutil
import tempfile
from collections.abc import Callable
from datetime import datetime, timedelta
from itertools import chain
from math import inf
from pathlib import Path

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule, run_state_machine_as_test
from support.exploration import make_settings
from support.programs.postgres import PostgresServer
from support.sbf_fakes.edges import FakeEdge
from support.sbf_fakes.switches import FakeSwitch
from support.sbf_fakes.world import SITES, World, spec, three_edges

from sbf_service.domain.outages import LEASE_GRACE, RECORD_INTERVAL
from sbf_service.reconcile.deadlines import SUSPENDED_AFTER_S
from sbf_service.store.clusters.cluster_lists import ClusterFilter, list_newest
from sbf_service.store.clusters.cluster_queries import find_clusters
from sbf_service.store.clusters.live_clusters import read_networks
from sbf_service.store.elements.confirmations import reset_confirmation
from sbf_service.store.elements.elements import read_wanted_revision
from sbf_service.store.elements.leases import release_leases_of
from sbf_service.store.tables.cluster_tables import ClusterRow
from sbf_service.store.tables.columns import equals_any
from virtcloud.model.cluster import ENDED_STATES, LEAVING_STATES, WANTED_STATES, ClusterSpec, ClusterState
from virtcloud.model.errors import Conflict, Forbidden, Gone, NotFound, NoVlanFree
from virtcloud.model.values import ClusterKey, VlanId
from virtcloud.model.views import ClusterView
from virtcloud.model.vlans import VlanSet

SWITCHES = [f"{site}-sw1" for site in SITES]
EDGES = [f"{site}-pe1" for site in SITES]
DEVICES = [*SWITCHES, *EDGES]
HOSTS = [f"{site}-h{number}" for site in SITES for number in (1, 2)]
KEYS = st.sampled_from(["a", "b", "c", "d", "e"])
OWNERS = st.sampled_from(["alice", "bob"])
SPECS = st.builds(
    lambda hosts, owner: spec(*sorted(hosts), owner=owner, lease_s=3000),
    st.lists(st.sampled_from(HOSTS), min_size=1, max_size=3, unique=True),
    OWNERS,
)
OTHERS = "p9"
"""An unmanaged port of each switch."""
POOLS = {"brno": "100-103", "praha": "102-105", "plzen": "102-105"}
"""Brno's pool shares the VLAN IDs 102 and 103 with the other pools.

If both VLAN IDs are claimed, a new cluster at Brno and another site gets a different VLAN ID at each of its sites.
"""
EVPN = {"name": "evpn", "kind": "evpn", "vnis": "10100-10103", "asn": 65000}


class Machine(RuleBasedStateMachine):
    """A state machine whose rules run in any order. The rules are faults, and calls of users, workers and agents.

    ``hosts`` maps each host to its clusters and their VLAN IDs. ``forgot`` are the elements whose restart SBF may not
    have noticed. ``offices`` are the VLANs that administrators created on each switch.
    """

    def __init__(self, database: Callable[[Path], str] = lambda folder: f"sqlite:///{folder / 'sbf.db'}") -> None:
        super().__init__()
        self.database = database
        self.folder = Path(tempfile.mkdtemp())
        self.hosts: dict[str, dict[str, int]] = {host: {} for host in HOSTS}
        self.forgot: set[str] = set()
        self.offices: dict[str, set[int]] = {name: set() for name in SWITCHES}

    @initialize()
    def begin(self) -> None:
        self.world: World = World(self.database(self.folder))
        self.world.furnish(topology=three_edges(EVPN, hosts=2))
        for name, pool in POOLS.items():
            self.world.put_pool(name, pool)
        for name in SWITCHES:
            self.world.switches[name].table = {1: "default"}

    def teardown(self) -> None:
        try:
            if hasattr(self, "world"):
                self.without_faults_the_wanted_state_is_reached()
        finally:
            if hasattr(self, "world"):
                self.world.close()
            shutil.rmtree(self.folder)

    # Calls of users.

    @rule(key=KEYS, wanted=SPECS, attempt=st.none() | st.integers(0, 3))
    def request(self, key: str, wanted: ClusterSpec, attempt: int | None) -> None:
        try:
            put = self.world.put(key, wanted, attempt)
        except (Conflict, NoVlanFree, Gone):
            return
        if put.created:
            self.no_element_carries_the_allocated_ids(put.view)
        self.a_repeated_request_changes_nothing(key, put.view)

    @rule(key=KEYS, joins=KEYS, wanted=SPECS)
    def join(self, key: str, joins: str, wanted: ClusterSpec) -> None:
        guests = tuple(one.model_copy(update={"name": f"{key}-{one.name}"}) for one in wanted.guests)
        before = self.views()
        held = {(site, vlan) for view in before for site, vlan in view.vlans.items()}
        try:
            put = self.world.put(key, wanted.model_copy(update={"guests": guests, "joins": ClusterKey(joins)}))
        except (Conflict, Forbidden, NotFound):
            return
        for site, vlan in put.view.vlans.items():
            assert (site, vlan) in held or vlan not in self.carried_at(site)
        after = {view.id: view for view in self.views()}
        assert [after[view.id].placements for view in before] == [view.placements for view in before]
        self.a_repeated_request_changes_nothing(key, put.view)

    @rule(key=KEYS)
    def end(self, key: str) -> None:
        if any(view.key == key for view in self.views()):
            self.world.delete(key)

    @rule(key=KEYS, attempt=st.integers(0, 3), owner=OWNERS)
    def a_deletion_that_may_be_late_arrives(self, key: str, attempt: int, owner: str) -> None:
        before = self.views()
        try:
            meant = self.world.delete(key, attempt, owner)
        except NotFound:
            return
        except Gone:
            assert self.views() == before
            return
        assert (meant.spec.owner, meant.attempt <= attempt) == (owner, True)

    # Workers and agents.

    @rule(name=st.sampled_from(DEVICES))
    def converge(self, name: str) -> None:
        before = self.world.element(name).last_seen
        self.world.converge(name)
        after = self.world.element(name)
        if not self.device(name).cut_off and after.trouble is None:
            self.forgot.discard(name)
        assert before is None or after.last_seen >= before

    @rule(host=st.sampled_from(HOSTS), confirms=st.booleans())
    def agent_reconciles(self, host: str, confirms: bool) -> None:
        with self.world.store.read() as unit:
            target = read_wanted_revision(unit, host)
        self.hosts[host] = {one.id: int(one.vlan) for one in target.wanted.segments}
        if confirms:
            self.world.confirm(host, target.revision)
            self.forgot.discard(host)

    @rule()
    def all_elements_reconcile(self) -> None:
        for name in DEVICES:
            self.converge(name)
        for host in HOSTS:
            self.agent_reconciles(host, confirms=True)

    @rule(host=st.sampled_from(HOSTS), back=st.integers(1, 3))
    def a_late_confirmation_arrives(self, host: str, back: int) -> None:
        element = self.world.element(host)
        if host not in self.forgot and element.confirmed_revision - back > 0:
            self.world.confirm(host, element.confirmed_revision - back)

    # Faults.

    @rule(name=st.sampled_from(DEVICES), fault=st.sampled_from(["cut_off", "refuses", "lies", "unsafe"]))
    def a_fault_of_a_device_begins_or_ends(self, name: str, fault: str) -> None:
        device = self.device(name)
        setattr(device, fault, not getattr(device, fault))

    @rule(name=st.sampled_from(DEVICES), after=st.integers(1, 3))
    def a_device_is_cut_off_in_the_middle(self, name: str, after: int) -> None:
        device = self.device(name)
        device.cut_off_after = len(device.calls) + after

    @rule(name=st.sampled_from(EDGES))
    def an_edge_breaks_off_in_the_middle_of_a_circuit(self, name: str) -> None:
        self.world.edges[name].breaks = True

    @rule(name=st.sampled_from(DEVICES))
    def a_device_restarts(self, name: str) -> None:
        self.device(name).restart()
        self.forgot.add(name)

    @rule(name=st.sampled_from(SWITCHES), vlan=st.integers(100, 105))
    def an_administrator_creates_a_vlan(self, name: str, vlan: int) -> None:
        table = self.world.switches[name].table
        if vlan not in table and not any(vlan in vlans for vlans in self.world.switches[name].ports.values()):
            table[vlan] = "offices"
            self.offices[name].add(vlan)

    @rule(name=st.sampled_from(SWITCHES))
    def an_administrator_deletes_these_vlans(self, name: str) -> None:
        for vlan in self.offices[name]:
            del self.world.switches[name].table[vlan]
        self.offices[name].clear()

    @rule(name=st.sampled_from(SWITCHES), vlans=st.sets(st.integers(100, 105), max_size=2))
    def an_administrator_configures_an_unmanaged_port(self, name: str, vlans: set[int]) -> None:
        self.world.switches[name].ports[OTHERS] = vlans

    @rule(host=st.sampled_from(HOSTS), notices=st.booleans())
    def a_host_restarts(self, host: str, notices: bool) -> None:
        self.hosts[host] = {}
        self.forgot.add(host)
        if notices:
            with self.world.store.change(who=host) as unit:
                reset_confirmation(unit, host, "restarted", self.world.service.settings.timing.drain)

    @rule()
    def the_service_dies_and_starts_again(self) -> None:
        self.world.close()
        self.world.service = self.world.restarted()
        with self.world.store.change_row() as unit:
            release_leases_of(unit, "sbf@one")

    @rule(seconds=st.sampled_from([1.0, 61.0, 121.0, 301.0, 3001.0]))
    def time_passes(self, seconds: float) -> None:
        self.world.clock.advance(seconds)
        self.world.sweep()

    @rule(seconds=st.sampled_from([61.0, 3001.0]))
    def sbf_is_down(self, seconds: float) -> None:
        """During an outage, no lease ends and no setup deadline passes, and leases can be extended afterwards."""
        self.world.sweep()
        began, before = self.world.clock.now + RECORD_INTERVAL, self.read_deadlines()
        self.world.clock.advance(seconds)
        self.the_service_dies_and_starts_again()
        self.world.service.scheduler.sweep.suspended_after_s = SUSPENDED_AFTER_S
        self.world.sweep()
        self.world.service.scheduler.sweep.suspended_after_s = inf
        now, after = self.world.clock.now, self.read_deadlines()
        if any(deadline <= began for deadlines in before.values() for deadline in deadlines):
            return  # the end of a cluster may have ended the members of its network, too
        for name, (lease_ends, *setup_deadline) in before.items():
            assert after[name][0] >= min(lease_ends, now + min(lease_ends - began, LEASE_GRACE))
            # Before this rule's first sweep, SBF may have run for up to RECORD_INTERVAL since its last record.
            later = [new - now - (old - began) for old, new in zip(setup_deadline, after[name][1:], strict=True)]
            assert all(timedelta() <= difference < RECORD_INTERVAL for difference in later)

    # Invariants after every step.

    @invariant()
    def all_invariants_hold(self) -> None:
        """All invariants are checked with the same views of the clusters, because a query takes longer than a check."""
        views = self.views()
        self.foreign_vlans_are_unchanged()
        self.no_vlan_id_is_claimed_twice_at_a_site(views)
        self.a_key_has_at_most_one_running_cluster_and_each_attempt_once(views)
        self.no_service_id_is_claimed_twice(views)
        self.vlan_ids_and_service_id_are_claimed_together(views)
        self.carried_ids_are_claimed(views)
        self.active_clusters_are_present(views)
        self.ended_clusters_keep_only_quarantined_ids(views)
        self.a_member_has_the_vlan_ids_of_its_network(views)

    def foreign_vlans_are_unchanged(self) -> None:
        for name, vlans in self.offices.items():
            switch = self.world.switches[name]
            assert {number for number, title in switch.table.items() if title == "offices"} == vlans
            assert not any(vlans & carried for port, carried in switch.ports.items() if port != OTHERS)

    def no_vlan_id_is_claimed_twice_at_a_site(self, views: list[ClusterView]) -> None:
        held = [(site, vlan) for view in views if view.network is None for site, vlan in view.vlans.items()]
        assert len(held) == len(set(held))
        assert all(vlan in VlanSet.parse(POOLS[site]) for site, vlan in held)

    def a_key_has_at_most_one_running_cluster_and_each_attempt_once(self, views: list[ClusterView]) -> None:
        live = [view.key for view in views if view.state not in ENDED_STATES]
        assert len(live) == len(set(live))
        attempts = [(view.key, view.spec.owner, view.attempt) for view in views]
        assert len(attempts) == len(set(attempts))

    def no_service_id_is_claimed_twice(self, views: list[ClusterView]) -> None:
        own = [view for view in views if view.network is None]
        held = [view.joined.service for view in own if view.joined is not None and view.joined.service]
        assert len(held) == len(set(held))
        assert all(10100 <= number <= 10103 for number in held)

    def vlan_ids_and_service_id_are_claimed_together(self, views: list[ClusterView]) -> None:
        for view in views:
            assert bool(view.joined and view.joined.service) == (len(view.vlans) > 1)

    def carried_ids_are_claimed(self, views: list[ClusterView]) -> None:
        """The cluster that claims a carried VLAN ID may have ended: its VLAN IDs are then in quarantine."""
        for site in SITES:
            held = {vlan for view in views for at, vlan in view.vlans.items() if at == site}
            assert self.carried_at(site) <= held
        services = {view.joined.service for view in views if view.joined is not None}
        assert self.services_carried() <= services

    def active_clusters_are_present(self, views: list[ClusterView]) -> None:
        """An active cluster is present on all its elements, except elements whose restart SBF has not noticed."""
        for view in views:
            if view.state is ClusterState.ACTIVE:
                for part in view.placements:
                    assert part.element in self.forgot or self.carries(view, part.element)

    def ended_clusters_keep_only_quarantined_ids(self, views: list[ClusterView]) -> None:
        for view in views:
            assert bool(view.vlans) == (view.state not in ENDED_STATES or view.quarantined)

    def a_member_has_the_vlan_ids_of_its_network(self, views: list[ClusterView]) -> None:
        """Until a member of a network ends, it has the network's VLAN IDs, and the network does not release them."""
        own = {view.id: view for view in views}
        for view in views:
            if view.network is not None and view.vlans:
                assert own[self.find_network(view)].vlans == view.vlans

    # Queries.

    def views(self) -> list[ClusterView]:
        with self.world.store.read() as unit:
            return list_newest(unit, ClusterFilter(ended=True), 1000)

    def read_deadlines(self) -> dict[str, list[datetime]]:
        """Return the end of the lease of each cluster that is not ending.

        For clusters that are being set up, also return the setup deadline.
        """
        with self.world.store.read() as unit:
            rows = find_clusters(unit, equals_any(ClusterRow.state, WANTED_STATES))
            return {
                row.id: [row.lease_ends, *([row.deadline] if row.state == ClusterState.CONFIGURING else [])]
                for row in rows
            }

    def find_network(self, view: ClusterView) -> str:
        """Return the ID of the cluster that created the network of ``view``.

        A view contains only the key of that cluster. An ended cluster with the same key may also have VLAN IDs.
        """
        with self.world.store.read() as unit:
            (network,) = read_networks(unit, find_clusters(unit, ClusterRow.id == view.id)).values()
        return network.id

    def carried_at(self, site: str) -> set[int]:
        ports = [vlans for port, vlans in self.world.switches[f"{site}-sw1"].ports.items() if port != OTHERS]
        circuits = [{int(one.vlan) for one in self.world.edges[f"{site}-pe1"].circuits}]
        on_hosts = (vlans.values() for host, vlans in self.hosts.items() if host.startswith(site))
        return {int(vlan) for vlans in chain(ports, circuits, on_hosts) for vlan in vlans}

    def services_carried(self) -> set[int]:
        edges = [self.world.edges[name] for name in EDGES]
        return {one.service for edge in edges for one in edge.circuits} | {
            one.service for edge in edges for one in edge.parts
        }

    def device(self, name: str) -> FakeSwitch | FakeEdge:
        return self.world.edges[name] if name in EDGES else self.world.switches[name]

    def carries(self, view: ClusterView, element: str) -> bool:
        vlan = view.vlans[element.split("-", maxsplit=1)[0]]
        if element in self.hosts:
            return self.hosts[element].get(self.find_network(view)) == vlan
        if element in EDGES:
            service = view.joined.service if view.joined else None
            return any((one.vlan, one.service) == (vlan, service) for one in self.world.edges[element].circuits)
        ports = self.world.switches[element].ports.items()
        return any(vlan in vlans for port, vlans in ports if port != OTHERS)

    def no_element_carries_the_allocated_ids(self, view: ClusterView) -> None:
        for site, vlan in view.vlans.items():
            assert vlan not in self.carried_at(site)
        if view.joined is not None:
            assert view.joined.service not in self.services_carried()

    def a_repeated_request_changes_nothing(self, key: str, view: ClusterView) -> None:
        rows = len(self.world.audit())
        again = self.world.put(key, view.spec, view.attempt)
        assert (again.created, again.view) == (False, view)
        assert len(self.world.audit()) == rows

    def without_faults_the_wanted_state_is_reached(self) -> None:
        for name in DEVICES:
            device = self.device(name)
            device.cut_off = device.refuses = device.lies = device.unsafe = False
            device.cut_off_after = None
        for name in EDGES:
            self.world.edges[name].breaks = False
        for name in SWITCHES:
            self.an_administrator_deletes_these_vlans(name)
            self.an_administrator_configures_an_unmanaged_port(name, set())
        self.world.clock.advance(301)
        for _ in range(3):
            self.world.settle()
            for host in HOSTS:
                self.agent_reconciles(host, confirms=True)
        for name in SWITCHES:
            with self.world.store.read() as unit:
                wanted = read_wanted_revision(unit, name).wanted
            carried = self.world.switches[name].ports
            assert self.world.switches[name].table == {1: "default", **{vlan: f"vc-{vlan}" for vlan in wanted.vlans}}
            assert {port: set(vlans) for port, vlans in wanted.ports.items() if vlans} == {
                port: {VlanId(vlan) for vlan in vlans} for port, vlans in carried.items() if vlans
            }
        for name in EDGES:
            with self.world.store.read() as unit:
                must = read_wanted_revision(unit, name).wanted
            edge = self.world.edges[name]
            assert (edge.circuits, edge.parts) == (set(must.circuits), set())
        for view in self.views():
            assert view.state in {ClusterState.ACTIVE, *ENDED_STATES}
            assert view.state not in LEAVING_STATES
            assert not view.quarantined


Machine.TestCase.settings = make_settings(10, steps=40)
test_the_invariants_hold_on_sqlite = Machine.TestCase


@pytest.mark.postgresql
def test_the_invariants_hold_on_postgresql(postgres_server: PostgresServer, postgres_template: str) -> None:
    def machine() -> Machine:
        return Machine(lambda _folder: postgres_server.url(postgres_server.new_database(postgres_template)))

    run_state_machine_as_test(machine, settings=make_settings(6, steps=40))  # type: ignore[arg-type] # a function can create the machine
