"""Tests of pools, leases, quotas, quarantine, retention and restores under any random sequence of calls and faults.

After a restore, elements carry clusters that the database lacks. ``make test`` always runs the same sequences, so that
a failure comes from a change of the code, and not from new random sequences. ``make test-stateful`` runs new sequences.
"""

import shutil
import tempfile
from collections.abc import Iterable
from datetime import timedelta
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from exploration import FACTOR, make_settings
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import initialize, rule
from sbf_fakes.carriers import DEVICES, ELEMENTS, HOSTS, SWITCHES, Carriers
from sbf_fakes.restores import back_up, restored_world
from sbf_fakes.world import SITES, World, make_world, spec, three_edges
from simulation.planting import plant
from stateful.pool_invariants import PoolInvariants

from sbf_service.domain.admission import DEFAULT_LIMITS
from sbf_service.domain.retention import RetentionLimits
from sbf_service.store import allocation, cluster_planning, transitions, unchecked_elements
from sbf_service.store.backup_format import BackupFile
from sbf_service.store.clusters import extend_lease, share_network
from sbf_service.store.quarantine import declare_clean
from sbf_service.store.quotas import put_quota
from sbf_service.store.retention import prune
from sbf_service.store.unchecked_elements import declare_element_clean
from virtcloud.model.access import QuotaLimits
from virtcloud.model.cluster import ENDED_STATES, ClusterSpec
from virtcloud.model.values import ClusterKey, Name, UserName, VlanId
from virtcloud.model.views import ClusterView
from virtcloud.model.vlans import VlanSet

KEYS = st.sampled_from(["a", "b", "c", "d"])
OWNERS = st.sampled_from(["alice", "bob"])
LEASES = st.sampled_from([600, 3000, 86400])
SPECS = st.builds(
    lambda hosts, owner, lease, vlan: spec(*sorted(hosts), owner=owner, lease_s=lease, vlan=vlan),
    st.lists(st.sampled_from(HOSTS), min_size=1, max_size=2, unique=True),
    OWNERS,
    LEASES,
    st.sampled_from([None, None, None, *range(100, 106)]),
)
ABSENT = st.lists(st.sampled_from(HOSTS), max_size=2)
"""Hosts whose agents do not run."""
CALLS = st.lists(st.tuples(KEYS, SPECS, st.none() | KEYS), min_size=1, max_size=4)
"""Requests: the key, the spec, and the cluster whose network the cluster joins."""
POOLS = ["100-101", "100-103", "100-105", "101-105", "103-105"]
EVPN = {"name": "evpn", "kind": "evpn", "vnis": "10100-10103", "asn": 65000}
WEEK = 8 * 86400.0
"""Seconds after which SBF may archive an ended cluster."""


class PoolMachine(PoolInvariants):
    """A state machine whose rules run in any order."""

    def __init__(self) -> None:
        super().__init__()
        self.folder = Path(tempfile.mkdtemp())
        self.pools = dict.fromkeys(SITES, "100-103")
        self.backups: list[tuple[BackupFile, dict[str, str]]] = []
        self.files, self.behind = 0, 0.0

    @initialize()
    def begin(self) -> None:
        self.world: World = make_world(self.folder)
        self.world.furnish(topology=three_edges(EVPN, hosts=2))
        self.world.put_pools(self.pools)
        self.carriers = Carriers(self.world.switches, self.world.edges)
        self.request([("a", spec("brno-h1", "praha-h1", lease_s=86400), None)], absent=[])
        self.make_a_backup()

    def teardown(self) -> None:
        try:
            if hasattr(self, "world"):
                self.without_faults_the_wanted_state_is_reached()
                self.after_all_clusters_nothing_remains()
        finally:
            self.close()

    def close(self) -> None:
        if hasattr(self, "world"):
            self.world.close()
        shutil.rmtree(self.folder)

    # Calls of users.

    @rule(calls=CALLS, absent=st.none() | ABSENT)
    def request(self, calls: list[tuple[str, ClusterSpec, str | None]], absent: list[str] | None) -> None:
        for key, wanted, joins in calls:
            with self.refusals_change_nothing():
                self.request_once(key, wanted) if joins is None else self.join_once(key, wanted, joins)
        if absent is not None:
            self.elements_reconcile(absent)

    def request_once(self, key: str, wanted: ClusterSpec) -> None:
        put = self.world.put(key, wanted)
        if put.created:
            self.no_element_carries_the_new_ids(put.view, {})
            self.no_quota_is_exceeded(wanted.owner)
        self.a_repeated_request_changes_nothing(key, put.view)

    def join_once(self, key: str, wanted: ClusterSpec, joins: str) -> None:
        guests = tuple(one.model_copy(update={"name": f"{key}-{one.name}"}) for one in wanted.guests)
        changes = {"guests": guests, "joins": ClusterKey(joins), "vlan": None}
        running = {view.key: view for view in self.views() if view.state not in ENDED_STATES}
        put = self.world.put(key, wanted.model_copy(update=changes))
        if put.created:
            network = running[running[ClusterKey(joins)].network or ClusterKey(joins)]
            assert wanted.owner in {network.spec.owner, *network.spec.shares_with}
            self.no_element_carries_the_new_ids(put.view, network.vlans)
            self.no_quota_is_exceeded(wanted.owner)
        self.a_repeated_request_changes_nothing(key, put.view)

    @rule(key=KEYS, owner=OWNERS)
    def share(self, key: str, owner: str) -> None:
        with self.refusals_change_nothing(), self.world.store.change() as unit:
            share_network(unit, key, owner, DEFAULT_LIMITS)

    @rule(key=KEYS, seconds=LEASES)
    def extend(self, key: str, seconds: float) -> None:
        with self.refusals_change_nothing():
            assert self.extend_once(key, seconds).lease_ends >= self.world.clock.now + timedelta(seconds=seconds)
            rows = self.count_audit()
            self.extend_once(key, seconds)
            assert self.count_audit() == rows

    def extend_once(self, key: str, seconds: float) -> ClusterView:
        with self.world.store.change() as unit:
            return extend_lease(unit, key, seconds)

    @rule(key=KEYS, owner=OWNERS)
    def end(self, key: str, owner: str) -> None:
        with self.refusals_change_nothing():
            assert self.world.delete(key, owner=owner).spec.owner == owner

    # Calls of administrators.

    @rule(site=st.sampled_from(SITES), pool=st.sampled_from(POOLS))
    def change_a_pool(self, site: str, pool: str) -> None:
        with self.refusals_change_nothing():
            self.world.put_pool(site, pool)
            self.pools[site] = pool

    @rule(owner=OWNERS, clusters=st.none() | st.integers(1, 3))
    def change_a_quota(self, owner: str, clusters: int | None) -> None:
        with self.world.store.change() as unit:
            put_quota(unit, UserName(owner), QuotaLimits(clusters=clusters))

    @rule(site=st.sampled_from(SITES), vlan=st.integers(100, 105))
    def clean_a_vlan(self, site: str, vlan: int) -> None:
        """An administrator removes a quarantined VLAN from all elements of a site by hand, and declares it clean."""
        quarantine = self.world.site(site).quarantine
        if quarantine:
            vlan = int(quarantine[0].vlan)
            self.carriers.remove_by_hand(site, vlan)
        elif any(view.quarantined and view.vlans.get(Name(site)) == vlan for view in self.views()):
            return  # a member of a running network is in quarantine
        with self.refusals_change_nothing(), self.world.store.change() as unit:
            declare_clean(unit, site, VlanId(vlan), "cleaned", self.world.service.settings.timing.drain)

    @rule(name=st.sampled_from(ELEMENTS))
    def replace_an_unchecked_element(self, name: str) -> None:
        """An administrator replaces an element by an empty one, and declares it clean."""
        if name not in self.find_unchecked():
            return
        self.carriers.replace(name)
        with self.world.store.change() as unit:
            declare_element_clean(unit, name, "replaced")

    @rule()
    def make_a_backup(self) -> None:
        self.files += 1
        backup = back_up(self.world, self.folder, f"{self.files}.backup")
        self.backups = [*self.backups[-1:], (backup, dict(self.pools))]

    @rule(oldest=st.booleans())
    def restore_a_backup(self, *, oldest: bool) -> None:
        """An administrator restores a backup, and extends the pools again that were extended after the backup."""
        if not self.backups:
            return
        backup, pools = self.backups[0 if oldest else -1]
        self.files += 1
        (folder := self.folder / str(self.files)).mkdir()
        self.world.close()
        self.world = restored_world(self.world, backup, folder)
        self.pools = {site: str(VlanSet.parse(pool) | VlanSet.parse(self.pools[site])) for site, pool in pools.items()}
        self.world.put_pools(self.pools)

    @rule()
    def archive_ended_clusters(self) -> None:
        prune(self.world.store, RetentionLimits(cluster_days=7), self.folder / "archive")

    # Workers, agents and clocks.

    @rule(name=st.sampled_from(DEVICES))
    def converge(self, name: str) -> None:
        self.world.converge(name)

    @rule(host=st.sampled_from(HOSTS))
    def an_agent_fetches_its_wanted_state(self, host: str) -> None:
        self.carriers.fetched[host] = self.carriers.hosts.fetch(self.world, host)

    @rule(host=st.sampled_from(HOSTS), confirms=st.booleans())
    def an_agent_applies_its_wanted_state(self, host: str, *, confirms: bool) -> None:
        document = self.carriers.fetched.pop(host, None) or self.carriers.hosts.fetch(self.world, host)
        self.carriers.hosts.apply(host, document.wanted)
        if confirms:
            with self.refusals_change_nothing():  # the agent fetched the document before a restore
                self.carriers.hosts.confirm(self.world, host, document)

    @rule(absent=ABSENT)
    def elements_reconcile(self, absent: list[str]) -> None:
        self.carriers.hosts.settle(self.world, *absent, *self.carriers.fetched)

    @rule(seconds=st.sampled_from([-300.0, 61.0, 61.0, 301.0, 301.0, 3001.0, WEEK]), suspended=st.booleans())
    def time_passes(self, seconds: float, *, suspended: bool) -> None:
        self.world.clock.advance(seconds)
        self.behind = max(0.0, self.behind - seconds)
        if not suspended:
            self.world.sweep()

    # Faults.

    @rule(name=st.sampled_from(DEVICES), fault=st.sampled_from(["cut_off", "refuses"]))
    def a_fault_of_a_device_begins_or_ends(self, name: str, fault: str) -> None:
        device = self.carriers.device(name)
        setattr(device, fault, not getattr(device, fault))

    @rule(host=st.sampled_from(HOSTS))
    def a_host_cannot_remove_its_clusters(self, host: str) -> None:
        self.carriers.hosts.stuck[host] = {one for one, _ in self.carriers.hosts.carried.get(host, set())}

    @rule(name=st.sampled_from(DEVICES))
    def a_device_reboots(self, name: str) -> None:
        self.carriers.reboot(name)

    @rule(name=st.sampled_from(SWITCHES), vlan=st.integers(100, 105))
    def an_administrator_creates_or_deletes_a_vlan(self, name: str, vlan: int) -> None:
        self.carriers.change_office(name, vlan)


PoolMachine.TestCase.settings = settings(make_settings(5, steps=30), derandomize=FACTOR == 1)
test_pools_leases_and_restores_keep_the_invariants = PoolMachine.TestCase

Step = tuple[str, dict[str, Any]]
RESTORED: Step = "restore_a_backup", {"oldest": True}
"""Restores the backup that ``begin`` made. Cluster ``a`` is active in this backup."""
ENDED: Step = "end", {"key": "a", "owner": "alice"}
RECONCILED: Step = "elements_reconcile", {"absent": []}
HOUR_LATER: Step = "time_passes", {"seconds": 3601.0, "suspended": False}
OTHERS = ["brno-h2", "praha-h2"]
RECONCILED_WITHOUT_OTHERS: Step = "elements_reconcile", {"absent": OTHERS}


def requested(key: str, hosts: list[str], absent: list[str] | None, vlan: int | None = None) -> Step:
    return "request", {"calls": [(key, spec(*hosts, vlan=vlan), None)], "absent": absent}


def run(steps: Iterable[Step]) -> None:
    machine = PoolMachine()
    try:
        machine.begin()
        for name, arguments in steps:
            getattr(machine, name)(**arguments)
            machine.all_invariants_hold()
    finally:
        machine.close()


@pytest.mark.parametrize(
    ("module", "old", "new", "steps"),
    [
        (transitions, "if effects.frees:", "if effects.frees or effects.quarantined:", [
            ("a_host_cannot_remove_its_clusters", {"host": "brno-h1"}), ENDED, RECONCILED, HOUR_LATER,
        ]),
        (allocation, "check_sites_checked(unit, topology, sites, transport)", "pass", [
            requested("b", OTHERS, absent=[]), RESTORED, requested("c", ["brno-h1", "praha-h1"], absent=None),
        ]),
        (unchecked_elements, "scalars())\n\n\n_READ_VLANS", "scalars()) and frozenset()\n\n\n_READ_VLANS", [
            ENDED, RECONCILED, requested("b", OTHERS, absent=[], vlan=100), RESTORED, RECONCILED_WITHOUT_OTHERS,
        ]),
    ],
    ids=["quarantined IDs are free", "unchecked elements hold no pool", "unchecked elements hold no network"],
)  # fmt: skip
def test_a_planted_bug_is_found(
    monkeypatch: pytest.MonkeyPatch, module: ModuleType, old: str, new: str, steps: list[Step]
) -> None:
    run(steps)  # without the bug, the same events break no invariant
    plant(monkeypatch, module, old, new)
    monkeypatch.setattr(cluster_planning, "allocate_network_ids", allocation.allocate_network_ids)
    with pytest.raises(AssertionError):
        run(steps)
