"""SBF with its elements, and the actions that `test_pool_machine` chooses from: requests, repairs and faults.

After a restore, elements may carry clusters that the database lacks. Elements are *unchecked* until SBF has read them.
"""

import shutil
import tempfile
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path

from stateful.pool_invariants import PoolInvariants
from support.sbf_fakes.carriers import HOSTS, Carriers
from support.sbf_fakes.restores import back_up, restored_world
from support.sbf_fakes.world import SITES, World, spec, three_edges

from sbf_service.domain.admission import DEFAULT_LIMITS
from sbf_service.domain.retention import RetentionLimits
from sbf_service.store.clusters.clusters import extend_lease, share_network
from sbf_service.store.elements.unchecked_elements import declare_element_clean
from sbf_service.store.maintenance.backup_format import BackupFile
from sbf_service.store.maintenance.retention import prune
from sbf_service.store.users.quotas import put_quota
from sbf_service.store.vlans.quarantine import declare_clean
from virtcloud.model.access import QuotaLimits
from virtcloud.model.cluster import ENDED_STATES, ClusterSpec
from virtcloud.model.values import ClusterKey, Name, UserName, VlanId
from virtcloud.model.views import ClusterView
from virtcloud.model.vlans import VlanSet

EVPN = {"name": "evpn", "kind": "evpn", "vnis": "10100-10103", "asn": 65000}


MakeDatabase = Callable[[Path], str]
"""A function that returns the address of a new database. The parameter is a file for SQLite."""


def make_sqlite_address(file: Path) -> str:
    return f"sqlite:///{file}"


class PoolMachine(PoolInvariants):
    """SBF with its elements, users and administrators. Each public method of a section is an action."""

    def __init__(self, make_database: MakeDatabase = make_sqlite_address) -> None:
        self.make_database, self.folder = make_database, Path(tempfile.mkdtemp())
        self.pools = dict.fromkeys(SITES, "100-103")
        self.backups: list[tuple[BackupFile, dict[str, str]]] = []
        self.files, self.behind = 0, 0.0
        self.world: World = World(make_database(self.folder / "sbf.db"))
        self.world.furnish(topology=three_edges(EVPN, hosts=2))
        self.world.put_pools(self.pools)
        self.carriers = Carriers(self.world.switches, self.world.edges)
        self.request([("a", spec("brno-h1", "praha-h1", lease_s=86400), None)], absent=[])
        self.make_a_backup()

    def close(self) -> None:
        self.world.close()
        shutil.rmtree(self.folder)

    # Calls of users.

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

    def share(self, key: str, owner: str) -> None:
        with self.refusals_change_nothing(), self.world.store.change() as unit:
            share_network(unit, key, owner, DEFAULT_LIMITS)

    def extend(self, key: str, seconds: float) -> None:
        with self.refusals_change_nothing():
            assert self.extend_once(key, seconds).lease_ends >= self.world.clock.now + timedelta(seconds=seconds)
            rows = self.count_audit()
            self.extend_once(key, seconds)
            assert self.count_audit() == rows

    def extend_once(self, key: str, seconds: float) -> ClusterView:
        with self.world.store.change() as unit:
            return extend_lease(unit, key, seconds)

    def end(self, key: str, owner: str) -> None:
        with self.refusals_change_nothing():
            assert self.world.delete(key, owner=owner).spec.owner == owner

    def end_without_confirmations(self, key: str, owner: str) -> None:
        """End a cluster whose hosts do not answer until the drain deadline has passed."""
        hosts = {part.element for view in self.views() if view.key == key for part in view.placements} & {*HOSTS}
        self.end(key, owner)
        self.elements_reconcile(sorted(hosts))
        self.time_passes(301.0, suspended=False)

    # Calls of administrators.

    def change_a_pool(self, site: str, pool: str) -> None:
        with self.refusals_change_nothing():
            self.world.put_pool(site, pool)
            self.pools[site] = pool

    def change_a_quota(self, owner: str, clusters: int | None) -> None:
        with self.world.store.change() as unit:
            put_quota(unit, UserName(owner), QuotaLimits(clusters=clusters))

    def clean_a_vlan(self, site: str, vlan: int) -> None:
        quarantine = self.world.site(site).quarantine
        if quarantine:
            vlan = int(quarantine[0].vlan)
            self.carriers.remove_by_hand(site, vlan)
        elif any(view.quarantined and view.vlans.get(Name(site)) == vlan for view in self.views()):
            return  # a member of a running network is in quarantine
        with self.refusals_change_nothing(), self.world.store.change() as unit:
            declare_clean(unit, site, VlanId(vlan), "cleaned", self.world.service.settings.timing.drain)

    def replace_an_unchecked_element(self, name: str) -> None:
        """An administrator replaces an unchecked element by an empty one, and declares the new element clean."""
        if name not in self.find_unchecked():
            return
        self.carriers.replace(name)
        with self.world.store.change() as unit:
            declare_element_clean(unit, name, "replaced")

    def make_a_backup(self) -> None:
        self.files += 1
        backup = back_up(self.world, self.folder, f"{self.files}.backup")
        self.backups = [*self.backups[-1:], (backup, dict(self.pools))]

    def restore_a_backup(self, *, oldest: bool) -> None:
        """An administrator restores a backup. Then the administrator repeats the later extensions of pools."""
        if not self.backups:
            return
        backup, pools = self.backups[0 if oldest else -1]
        self.files += 1
        self.world.close()
        self.world = restored_world(self.world, backup, self.make_database(self.folder / f"{self.files}.db"))
        self.pools = {site: str(VlanSet.parse(pool) | VlanSet.parse(self.pools[site])) for site, pool in pools.items()}
        self.world.put_pools(self.pools)

    def archive_ended_clusters(self) -> None:
        prune(self.world.store, RetentionLimits(cluster_days=7), self.folder / "archive")

    # Workers, agents and clocks.

    def converge(self, name: str) -> None:
        self.world.converge(name)

    def an_agent_fetches_its_wanted_state(self, host: str) -> None:
        self.carriers.fetched[host] = self.carriers.hosts.fetch(self.world, host)

    def an_agent_applies_its_wanted_state(self, host: str, *, confirms: bool) -> None:
        document = self.carriers.fetched.pop(host, None) or self.carriers.hosts.fetch(self.world, host)
        self.carriers.hosts.apply(host, document.wanted)
        if confirms:
            with self.refusals_change_nothing():  # the agent fetched the document before a restore
                self.carriers.hosts.confirm(self.world, host, document)

    def elements_reconcile(self, absent: list[str]) -> None:
        self.carriers.hosts.settle(self.world, *absent, *self.carriers.fetched)

    def time_passes(self, seconds: float, *, suspended: bool) -> None:
        self.world.clock.advance(seconds)
        self.behind = max(0.0, self.behind - seconds)
        if not suspended:
            self.world.sweep()

    # Faults.

    def a_fault_of_a_device_begins_or_ends(self, name: str, fault: str) -> None:
        device = self.carriers.device(name)
        setattr(device, fault, not getattr(device, fault))

    def a_host_cannot_remove_its_clusters(self, host: str) -> None:
        self.carriers.hosts.stuck[host] = {one for one, _ in self.carriers.hosts.carried.get(host, set())}

    def a_device_reboots(self, name: str) -> None:
        self.carriers.reboot(name)

    def an_administrator_creates_or_deletes_a_vlan(self, name: str, vlan: int) -> None:
        self.carriers.change_office(name, vlan)
