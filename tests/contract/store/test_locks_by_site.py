"""Tests of PostgreSQL locks for sites.

Replicas change different sites at the same time, and the same site one after the other.
"""

import random
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from datetime import timedelta
from functools import partial
from threading import Barrier, Event
from time import monotonic, sleep

import pytest
from sqlalchemy import text
from sqlalchemy.orm import Session
from support.sbf_fakes.http_calls import ask
from support.sbf_fakes.world import SITES, World, four_sites, spec, three_edges

from sbf_service.reconcile.worker import ReconcileOutcome
from sbf_service.store.clusters.cluster_creation import PutResult, put_cluster
from sbf_service.store.elements.confirmations import confirm_revision
from sbf_service.store.elements.revisions import require_element
from sbf_service.store.elements.unchecked_elements import NOT_READ
from sbf_service.store.maintenance import audit_log
from sbf_service.store.maintenance.audit_log import AuditFilter, find_settled_id, read_entries
from sbf_service.store.store import Store
from sbf_service.store.tables.columns import read_database_clock
from sbf_service.store.topology.current_topology import read_topology
from sbf_service.store.topology.topology import put_topology
from sbf_service.store.transactions.lock_scopes import LockScope
from sbf_service.store.unit_of_work import Unit, record_audit
from sbf_service.store.users.quotas import put_quota
from virtcloud.model.access import QuotaLimits
from virtcloud.model.cluster import ClusterRequest, ClusterSpec, ClusterState
from virtcloud.model.errors import Conflict, DatabaseUnavailable, NameTaken, QuotaExceeded
from virtcloud.model.topology import Topology
from virtcloud.model.values import Name, UserName

pytestmark = pytest.mark.postgresql

_COUNT_WAITING = text(
    "SELECT count(*) FROM pg_locks WHERE locktype IN ('advisory', 'tuple', 'transactionid') AND NOT granted"
)
_END_WRITERS = text(
    "SELECT pg_terminate_backend(l.pid) FROM pg_locks l WHERE l.locktype = 'advisory' AND l.granted "
    "AND l.mode = 'ExclusiveLock' AND l.pid <> pg_backend_pid()"
)


@pytest.fixture
def database(postgresql: str) -> str:
    return postgresql


def _lock_scope(scope: LockScope, _unit: Unit) -> LockScope:
    return scope


def put(world: World, store: Store, key: str, wanted: ClusterSpec) -> PutResult:
    return put_cluster(store, key, ClusterRequest(spec=wanted), world.service.reserved, wanted.owner)


@contextmanager
def locked(store: Store, *sites: str, names: frozenset[str] = frozenset()) -> Iterator[None]:
    """Lock these sites and names in a transaction of ``store``, the store of another replica."""
    with store.change_scopes([lambda _unit: LockScope(frozenset(sites), names)], wait=True):
        yield


def wait_for_waiting(world: World, count: int = 1) -> None:
    ends = monotonic() + 10
    with world.store.engine.connect().execution_options(isolation_level="AUTOCOMMIT") as connection:
        while connection.execute(_COUNT_WAITING).scalar_one() < count:
            assert monotonic() < ends, "no transaction waits for a lock"
            sleep(0.005)


@contextmanager
def waiting_call(world: World, call: Callable[[], PutResult]) -> Iterator[Future[PutResult]]:
    with ThreadPoolExecutor(1) as threads:
        future = threads.submit(call)
        wait_for_waiting(world)
        yield future


def test_a_creation_does_not_wait_for_another_sites_lock(world: World) -> None:
    third = world.restarted()
    with ThreadPoolExecutor(1) as threads:
        with locked(third.store, "plzen"):
            assert world.put("before", spec("brno-h1", "praha-h1")).created
            waiting = threads.submit(world.put, "waiting", spec("plzen-h1", "brno-h1"))
            wait_for_waiting(world)
            assert world.put("beside", spec("praha-h1")).created
            assert not waiting.done()
        assert waiting.result(10).created


def test_two_replicas_create_clusters_at_disjoint_sites_together(world: World) -> None:
    both = Barrier(2, timeout=10)

    def meet(session: Session) -> object:
        both.wait()
        return read_database_clock(session)

    stores = [world.restarted().store for _ in range(2)]
    for store in stores:
        object.__setattr__(store, "clock", meet)
    with ThreadPoolExecutor(2) as threads:
        made = threads.map(put, [world] * 2, stores, ["a", "b"], [spec("brno-h1"), spec("praha-h1")])
        assert [one.created for one in made] == [True, True]


def test_confirmations_and_deletions_do_not_wait_for_another_sites_lock(world: World) -> None:
    third = world.restarted()
    world.settle()
    world.put("demo", spec("brno-h1", "praha-h1"))
    with locked(third.store, "plzen"):
        world.settle()
        assert world.view("demo").state is ClusterState.ACTIVE
        world.delete("demo")
        world.settle()
        assert world.view("demo").state is ClusterState.RELEASED


def test_a_confirmation_waits_for_each_site_of_its_cluster(world: World) -> None:
    """The confirmation of a host in Brno changes a cluster that is also in Praha."""
    third = world.restarted()
    world.settle()
    world.put("demo", spec("brno-h1", "praha-h1"))
    revision = world.element("brno-h1").wanted_revision
    with ThreadPoolExecutor(1) as threads:
        with locked(third.store, "praha"):
            future = threads.submit(world.confirm, "brno-h1", revision)
            wait_for_waiting(world)
            assert world.element("brno-h1").confirmed_revision < revision
        future.result(10)
    assert world.element("brno-h1").confirmed_revision == revision


def make_stale(world: World, host: str) -> None:
    """Advance the clock until the agent, which sends no heartbeats, counts as unreachable."""
    sweep = world.service.scheduler.sweep.transactions
    silence = timedelta(seconds=world.service.settings.timing.agent_silence)
    world.clock.advance(silence.total_seconds() + 1)
    sweep.record_stale_agent(Name(host), silence)
    sweep.apply_transitions()


def test_the_first_confirmation_does_not_wait_for_other_sites(world: World) -> None:
    """The agent has never called, so the host is unreachable and has an error report."""
    third = world.restarted()
    make_stale(world, "brno-h1")
    assert world.element("brno-h1").trouble == "its agent has sent no heartbeat yet: install and start the agent"
    with locked(third.store, "plzen"):
        world.confirm("brno-h1", world.element("brno-h1").wanted_revision)
    assert world.element("brno-h1").reachable


def test_a_switch_that_answers_again_does_not_wait_for_other_sites(world: World) -> None:
    third, switch = world.restarted(), world.switches["brno-sw1"]
    world.settle()
    world.put("demo", spec("brno-h1", "praha-h1"))
    switch.cut_off = True
    assert world.converge("brno-sw1") is ReconcileOutcome.FAILED
    switch.cut_off = False
    with locked(third.store, "plzen"):
        assert world.converge("brno-sw1") is ReconcileOutcome.CONFIRMED


def test_a_host_that_answers_again_locks_all_sites_of_its_clusters(world: World) -> None:
    """The confirmation makes an older cluster, which is also in Praha, active again."""
    third = world.restarted()
    world.settle()
    world.put("demo", spec("brno-h1", "praha-h1"))
    world.settle()
    make_stale(world, "brno-h1")
    with ThreadPoolExecutor(1) as threads:
        with locked(third.store, "praha"):
            future = threads.submit(world.confirm, "brno-h1", world.element("brno-h1").wanted_revision)
            wait_for_waiting(world)
            assert world.view("demo").state is ClusterState.DEGRADED
        future.result(10)
    assert world.view("demo").state is ClusterState.ACTIVE


def test_a_confirmation_with_errors_waits_for_every_site(world: World) -> None:
    third = world.restarted()
    world.settle()
    world.put("demo", spec("brno-h1"))
    revision = world.element("brno-h1").wanted_revision
    (segment,) = world.wanted_of_host("brno-h1").segments
    errors = {"incomplete": {segment.id: "no bridge"}}
    with ThreadPoolExecutor(1) as threads:
        with locked(third.store, "plzen"):
            body = {"revision": revision} | errors
            future = threads.submit(ask, world, "POST", "/v1/elements/brno-h1/confirmed", body)
            wait_for_waiting(world)
            assert world.element("brno-h1").confirmed_revision < revision
        assert future.result(10).status_code == 204


@pytest.fixture
def unchecked(world: World) -> str:
    """A host without clusters that SBF has not read since a restore."""
    world.settle()
    host = "brno-h2"
    with world.store.change() as unit:
        row = require_element(unit, host)
        row.unchecked, row.trouble = True, NOT_READ
    return host


def test_an_unchecked_elements_confirmation_waits_for_every_site(world: World, unchecked: str) -> None:
    """Unchecked elements at other sites can hold the same networks. The last confirmation ends the hold."""
    third = world.restarted()
    with ThreadPoolExecutor(1) as threads:
        with locked(third.store, "plzen"):
            future = threads.submit(world.confirm, unchecked, world.element(unchecked).wanted_revision)
            wait_for_waiting(world)
        future.result(10)
    assert world.element(unchecked).trouble is None


def test_a_hold_ends_only_with_everything_locked(world: World, unchecked: str) -> None:
    revision, drain = world.element(unchecked).wanted_revision, world.service.settings.timing.drain

    def confirm(unit: Unit) -> LockScope | None:
        confirm_revision(unit, unchecked, revision, drain)
        return unit.scope

    assert world.store.change_scope(partial(_lock_scope, LockScope(frozenset({"brno"}))), confirm) is None


def test_a_change_that_locks_everything_waits_for_each_site(world: World) -> None:
    third = world.restarted()
    changed = Event()

    def change() -> None:
        with world.store.change():
            changed.set()

    with ThreadPoolExecutor(1) as threads:
        with locked(third.store, "plzen"):
            future = threads.submit(change)
            wait_for_waiting(world)
            assert not changed.is_set()
        future.result(10)


@pytest.mark.parametrize("scope", [None, LockScope(frozenset({"brno"}))])
def test_a_transaction_that_waited_reads_the_newest_topology(world: World, scope: LockScope | None) -> None:
    """The statement that waits for the lock also returns the version, although its snapshot is older."""

    def read() -> Topology:
        if scope is not None:
            return world.store.change_scope(lambda _unit: scope, read_topology)
        with world.store.change() as unit:
            return read_topology(unit)

    third, changed = world.restarted(), four_sites()
    with ThreadPoolExecutor(1) as threads:
        with third.store.change() as unit:
            put_topology(unit, changed)
            future = threads.submit(read)
            wait_for_waiting(world)
        assert future.result(10) == changed


def test_a_creation_waits_for_a_replica_of_an_earlier_version(world: World) -> None:
    """A replica of an earlier version locks only the row of the topology."""
    with world.store.engine.begin() as former:
        former.execute(text("SELECT version FROM topology FOR UPDATE"))
        with waiting_call(world, lambda: world.put("demo", spec("brno-h1"))) as future:
            assert not future.done()
            former.rollback()
            assert future.result(10).created


def test_overlapping_claims_of_four_replicas_never_share_a_vlan(world: World) -> None:
    stores = [world.restarted().store for _ in range(4)]
    pairs = [("brno", "praha"), ("praha", "plzen"), ("plzen", "brno"), ("brno",), ("praha",), ("plzen",)]
    start = Barrier(8)

    def create(number: int) -> list[PutResult]:
        start.wait()
        made = []
        for turn in range(3):
            hosts = [f"{site}-h1" for site in pairs[(number + turn) % len(pairs)]]
            made.append(put(world, stores[number % 4], f"c{number}-{turn}", spec(*hosts)))
        return made

    with ThreadPoolExecutor(8) as threads:
        results = [result for made in threads.map(create, range(8)) for result in made]
    claims = [(site, vlan) for result in results for site, vlan in result.view.vlans.items()]
    assert len(results) == 24
    assert len(claims) == len(set(claims))


def test_a_lost_connection_frees_the_locks_of_a_claim(world: World) -> None:
    holds, ended = Event(), Event()

    def stop(session: Session) -> object:
        holds.set()
        assert ended.wait(10)
        return read_database_clock(session)

    killed = world.restarted()
    object.__setattr__(killed.store, "clock", stop)
    with ThreadPoolExecutor(1) as threads:
        future = threads.submit(put, world, killed.store, "demo", spec("brno-h1"))
        assert holds.wait(10)
        with waiting_call(world, lambda: world.put("other", spec("brno-h2"))) as other:
            with world.store.engine.begin() as connection:
                connection.execute(_END_WRITERS).all()
            assert other.result(10).view.vlans == {"brno": 100}
        ended.set()
        with pytest.raises(DatabaseUnavailable):
            future.result(10)
        assert put(world, killed.store, "demo", spec("brno-h1")).view.vlans == {"brno": 101}


def test_locks_of_random_overlapping_sites_never_deadlock(world: World) -> None:
    stores = [world.restarted().store for _ in range(4)]
    start = Barrier(4)

    def lock(number: int) -> int:
        choice = random.Random(number)
        start.wait()
        for _ in range(40):
            chosen = frozenset(choice.sample([f"s{one}" for one in range(6)], 4))
            scope = LockScope(chosen)
            stores[number].change_scope(partial(_lock_scope, scope), lambda _unit: None)
        return number

    with ThreadPoolExecutor(4) as threads:
        assert list(threads.map(lock, range(4))) == [0, 1, 2, 3]


def test_creations_on_one_vlan_separated_transport_wait_for_each_other(world: World) -> None:
    """On this transport, only the VLAN ID separates networks, and the two clusters have no site in common.

    Without the lock of the transport, both could get the same VLAN ID.
    """
    world.furnish(topology=four_sites())
    third = world.restarted()
    with ThreadPoolExecutor(1) as threads:
        with locked(third.store, names=frozenset({"transport core"})):
            waiting = threads.submit(world.put, "y", spec("b-h1", "c-h1"))
            wait_for_waiting(world)
            assert world.put("one", spec("a-h1")).created
            assert not waiting.done()
        assert waiting.result(10).created


def test_replicas_at_disjoint_sites_allocate_separate_vlans_on_a_transport(world: World) -> None:
    world.furnish(topology=four_sites())
    stores = [world.restarted().store for _ in range(4)]
    start = Barrier(4)

    def create(number: int) -> list[PutResult]:
        start.wait()
        hosts = [f"{site}-h1" for site in ("ad", "bc")[number % 2]]
        return [put(world, stores[number], f"c{number}-{turn}", spec(*hosts)) for turn in range(5)]

    with ThreadPoolExecutor(4) as threads:
        results = [result for made in threads.map(create, range(4)) for result in made]
    assert len({vlan for result in results for vlan in result.view.vlans.values()}) == 20


def test_creations_with_sites_in_opposite_order_complete(world: World) -> None:
    stores = [world.restarted().store for _ in range(2)]
    hosts = [("brno-h1", "praha-h1"), ("praha-h2", "brno-h2")]

    def create(number: int) -> list[bool]:
        return [put(world, stores[number], f"c{number}-{one}", spec(*hosts[number])).created for one in range(10)]

    with ThreadPoolExecutor(2) as threads:
        assert list(threads.map(create, range(2))) == [[True] * 10] * 2


def create_together(world: World, *calls: tuple[str, ClusterSpec]) -> list[str]:
    """Create clusters through two replicas at the same time, unless a lock delays one of them.

    Return the sorted outcomes, such as ``created True`` or the error.
    """
    stores = world.meeting_stores()

    def create(number: int) -> str:
        key, wanted = calls[number]
        try:
            return f"created {put(world, stores[number], key, wanted).created}"
        except (Conflict, QuotaExceeded) as error:
            return f"{type(error).__name__}: {error}"

    with ThreadPoolExecutor(2) as threads:
        return sorted(threads.map(create, range(2)))


def test_one_of_two_clusters_with_the_same_name_is_refused(world: World) -> None:
    outcomes = create_together(world, ("a", spec("brno-h1", name="red")), ("b", spec("praha-h1", name="red")))
    assert outcomes[1] == "created True"
    assert outcomes[0].startswith(f"{NameTaken.__name__}: the name red is taken by another cluster")


def test_one_of_two_specs_for_a_key_is_a_conflict(world: World) -> None:
    outcomes = create_together(world, ("a", spec("brno-h1")), ("a", spec("praha-h1")))
    assert outcomes[1] == "created True"
    assert outcomes[0].startswith(
        "OtherSpec: cluster a exists and is configuring, and differs from this request in guests"
    )


def test_a_key_and_a_name_exclude_each_other(world: World) -> None:
    outcomes = create_together(world, ("red", spec("brno-h1")), ("b", spec("praha-h1", name="red")))
    assert outcomes[1] == "created True"
    assert outcomes[0].startswith("NameTaken: ")


def test_clusters_at_disjoint_sites_share_a_quota(world: World) -> None:
    with world.store.change() as unit:
        put_quota(unit, UserName("alice"), QuotaLimits(clusters=1))
    outcomes = create_together(world, ("a", spec("brno-h1")), ("b", spec("praha-h1")))
    assert [outcome.partition(":")[0] for outcome in outcomes] == ["QuotaExceeded", "created True"]


def test_only_creations_over_a_transport_wait_for_its_lock(world: World) -> None:
    world.put_topology(three_edges(hosts=2))
    third = world.restarted()
    with ThreadPoolExecutor(1) as threads:
        with locked(third.store, names=frozenset({"transport evpn"})):
            waiting = threads.submit(world.put, "waiting", spec("brno-h1", "praha-h1"))
            wait_for_waiting(world)
            assert world.put("single", spec("plzen-h1")).created
        assert waiting.result(10).created


def test_a_cluster_at_very_many_sites_locks_everything(world: World) -> None:
    """PostgreSQL has a limited number of locks, so one lock replaces the locks of more than 64 sites."""
    sites = frozenset(f"s{number}" for number in range(65))

    def read_scope(unit: Unit) -> LockScope | None:
        return unit.scope

    assert world.store.change_scope(lambda _unit: LockScope(sites), read_scope) is None
    assert world.store.change_scope(lambda _unit: LockScope(frozenset(SITES)), read_scope) == LockScope(
        frozenset(SITES)
    )


def test_a_transaction_that_needs_another_site_is_repeated(world: World) -> None:
    scopes: list[LockScope | None] = []

    def work(unit: Unit) -> None:
        scopes.append(unit.scope)
        unit.require_sites(["praha"])

    brno = LockScope(frozenset({"brno"}))
    world.store.change_scope(lambda _unit: brno, work)
    assert scopes == [brno, None]


def test_a_reader_of_the_audit_log_misses_no_row(world: World) -> None:
    """A change in Praha inserts an audit row later than a change in Brno, but is committed earlier."""
    brno = world.restarted().store.change_scopes([lambda _unit: LockScope(frozenset({"brno"}))], wait=True)
    (unit,) = brno.__enter__()
    assert isinstance(unit, Unit)
    record_audit(unit, "first")
    world.put("demo", spec("praha-h1"))
    newest = find_settled_id(world.store, pause=lambda _seconds: brno.__exit__(None, None, None))
    with world.store.read() as reader:
        found = [entry.what for entry in read_entries(reader, AuditFilter(), None, 2, newest)]
    assert found == ["first", "cluster_created"]


def test_a_slow_change_hides_no_row_from_a_follower(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(audit_log, "PATIENCE_S", 0.0)
    last = find_settled_id(world.store)
    brno = world.restarted().store.change_scopes([lambda _unit: LockScope(frozenset({"brno"}))], wait=True)
    (unit,) = brno.__enter__()
    assert isinstance(unit, Unit)
    record_audit(unit, "first")
    world.put("demo", spec("praha-h1"))
    assert find_settled_id(world.store, last) == last
    brno.__exit__(None, None, None)
    assert find_settled_id(world.store, last) == last + 2
