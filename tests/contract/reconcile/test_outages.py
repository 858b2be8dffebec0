"""Tests of clusters whose leases or setup deadlines passed while SBF did not run (docs/decisions/0098).

Each deadline sweep records the time, at most every ten seconds. There was an *outage* if the last record is too old. A
lease that ended during an outage continues for a grace period of 300 s after the outage.
"""

import pytest
from support.sbf_fakes.vpn_world import devices, furnish, make_profile
from support.sbf_fakes.world import World, spec

from sbf_service.reconcile.deadlines import SUSPENDED_AFTER_S, StoreDeadlineTransactions
from sbf_service.store.clusters.clusters import extend_lease
from sbf_service.store.elements.revisions import require_element
from sbf_service.store.tables.cluster_tables import ClusterRow
from virtcloud.model.access import Role
from virtcloud.model.cluster import ClusterState
from virtcloud.model.errors import DatabaseUnavailable

HOUR = 3600.0


def detect_outages(world: World) -> None:
    """Make the sweep of a world detect outages. In other tests, a long time between two sweeps is no outage."""
    world.service.scheduler.sweep.suspended_after_s = SUSPENDED_AFTER_S


def start_after(world: World, seconds: float) -> None:
    """Start SBF after an outage of ``seconds``. The first deadline sweep has not run yet."""
    world.clock.advance(seconds)
    world.service = world.restarted()
    detect_outages(world)


def pass_time(world: World, seconds: int) -> None:
    """Advance the clock by ``seconds``, and run a sweep every ten seconds, as SBF does while it runs."""
    for _ in range(seconds // 10):
        world.clock.advance(10)
        world.sweep()


def extend(world: World, key: str, seconds: float) -> ClusterState:
    with world.store.change() as unit:
        return extend_lease(unit, key, seconds).state


def seconds_left(world: World, key: str) -> float:
    return (world.view(key).lease_ends - world.clock.now).total_seconds()


@pytest.fixture
def active(world: World) -> World:
    """A world with the active clusters ``short`` (a lease of one hour) and ``long`` (100 hours)."""
    detect_outages(world)
    world.put("short", spec("brno-h1", lease_s=HOUR))
    world.put("long", spec("praha-h1", lease_s=100 * HOUR))
    world.settle()
    return world


def test_a_lease_that_ended_during_an_outage_can_be_extended(active: World) -> None:
    start_after(active, 50 * HOUR)
    active.settle()
    pass_time(active, 290)
    assert extend(active, "short", 100) is ClusterState.ACTIVE
    pass_time(active, 90)
    assert active.view("short").state is ClusterState.ACTIVE


def test_a_lease_without_extension_ends_after_the_grace(active: World) -> None:
    before = active.view("short").version
    start_after(active, 50 * HOUR)
    active.sweep()
    assert (seconds_left(active, "short"), active.view("short").version) == (300, before + 1)
    assert seconds_left(active, "long") == 50 * HOUR
    pass_time(active, 290)
    assert active.view("short").state is ClusterState.ACTIVE
    pass_time(active, 10)
    assert active.view("short").state is ClusterState.DRAINING


def test_a_lease_that_ends_soon_after_an_outage_is_extended(active: World) -> None:
    start_after(active, HOUR - 1)
    active.sweep()
    assert seconds_left(active, "short") == 300


def test_the_audit_log_names_the_outage(active: World) -> None:
    cause = ", because of an outage of SBF or its database between 2026-01-01 00:00:00 UTC and 2026-01-01 02:00:00 UTC"
    start_after(active, 2 * HOUR)
    active.sweep()
    assert [(row.who, row.cluster_id, row.why) for row in active.audit("lease_extended")] == [
        (
            "sbf",
            active.view("short").id,
            f"from 2026-01-01 01:00:00 UTC to 2026-01-01 02:05:00 UTC{cause}",
        )
    ]


@pytest.mark.parametrize("sweeps_first", [True, False])
def test_a_cluster_created_after_a_start_ends_on_time(active: World, sweeps_first: bool) -> None:
    start_after(active, 2 * HOUR)
    if sweeps_first:
        active.sweep()
    active.put("new", spec("plzen-h1", lease_s=60))
    active.settle()
    pass_time(active, 50)
    assert active.view("new").state is ClusterState.ACTIVE
    pass_time(active, 10)
    assert active.view("new").state is ClusterState.DRAINING


def test_an_extension_after_a_start_ends_on_time(active: World) -> None:
    start_after(active, 2 * HOUR)
    active.sweep()
    extend(active, "short", 360)
    pass_time(active, 350)
    assert active.view("short").state is ClusterState.ACTIVE
    pass_time(active, 10)
    assert active.view("short").state is ClusterState.DRAINING


def test_a_quick_restart_postpones_no_lease(active: World) -> None:
    active.put("brief", spec("plzen-h1", lease_s=40))
    pass_time(active, 20)
    start_after(active, 25)
    active.sweep()
    assert active.view("brief").state is ClusterState.DRAINING


def test_there_is_no_outage_while_another_replica_runs(active: World) -> None:
    active.put("brief", spec("plzen-h1", lease_s=100))
    stopped = active.service
    start_after(active, 0)
    pass_time(active, 90)
    active.clock.advance(10)
    stopped.scheduler.sweep.run()
    assert active.view("brief").state is ClusterState.DRAINING


def test_two_replicas_postpone_a_lease_once(active: World) -> None:
    start_after(active, 2 * HOUR)
    other = active.service
    start_after(active, 0)
    active.sweep()
    other.scheduler.sweep.run()
    assert len(active.audit("lease_extended")) == 1


def test_repeated_restarts_do_not_postpone_a_lease_for_ever(active: World) -> None:
    start_after(active, 2 * HOUR)
    for _ in range(5):
        pass_time(active, 60)
        start_after(active, 60)
    active.sweep()
    assert active.view("short").state is ClusterState.DRAINING


def test_later_outages_postpone_leases_again(active: World) -> None:
    for _ in range(2):
        start_after(active, 2 * HOUR)
        active.sweep()
        extend(active, "short", HOUR)
        pass_time(active, 310)
    start_after(active, 2 * HOUR)
    active.sweep()
    assert seconds_left(active, "short") == 300


def test_an_outage_of_the_database_postpones_leases(active: World, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_arguments: object) -> None:
        raise DatabaseUnavailable("the database does not answer")

    with monkeypatch.context() as outage:
        outage.setattr(StoreDeadlineTransactions, "record_sweep", refuse)
        for _ in range(2):
            active.clock.advance(HOUR)
            with pytest.raises(DatabaseUnavailable):
                active.sweep()
    active.sweep()
    assert (active.view("short").state, seconds_left(active, "short")) == (ClusterState.ACTIVE, 300)


def test_a_confirmation_before_the_first_sweep_ends_no_lease(active: World) -> None:
    start_after(active, 2 * HOUR)
    with active.store.change() as unit:
        require_element(unit, "brno-h1").reachable = False
    active.confirm_hosts()
    assert active.element("brno-h1").reachable
    assert active.view("short").state is ClusterState.ACTIVE


def test_no_sweep_is_missed_after_the_clock_was_set_back(active: World) -> None:
    active.clock.advance(1500)
    active.sweep()
    active.clock.advance(-1000)
    active.sweep()
    start_after(active, 1000 + HOUR)
    active.sweep()
    assert (active.view("short").state, seconds_left(active, "short")) == (ClusterState.ACTIVE, 300)


def test_gateways_learn_the_postponed_end_of_a_lease(world: World) -> None:
    furnish(world)
    detect_outages(world)
    world.put("demo", spec("brno-h1", lease_s=HOUR))
    world.settle()
    assert make_profile(world, world.token(Role.USER, "alice")).status_code == 201
    world.settle()
    start_after(world, 2 * HOUR)
    before = world.element("brno-gw").wanted_revision
    world.sweep()
    assert world.element("brno-gw").wanted_revision > before
    assert devices(world) == ["laptop"]


@pytest.fixture
def configuring(world: World) -> World:
    """A world in which the cluster ``slow`` waits for a host. The setup deadline is 120 s after its creation."""
    detect_outages(world)
    world.dead_hosts.add("brno-h1")
    world.put("slow", spec("brno-h1", lease_s=100 * HOUR))
    world.settle()
    pass_time(world, 20)
    return world


def read_deadline(world: World) -> float:
    with world.store.read() as unit:
        row = unit.session.get_one(ClusterRow, world.view("slow").id)
        return (row.deadline - unit.now).total_seconds()


def test_an_outage_does_not_count_as_setup_time(configuring: World) -> None:
    start_after(configuring, 2 * HOUR)
    configuring.sweep()
    assert read_deadline(configuring) == 100 - 10  # SBF may have run for ten seconds after the last record
    configuring.dead_hosts.clear()
    configuring.settle()
    assert configuring.view("slow").state is ClusterState.ACTIVE
    (row,) = configuring.audit("deadline_extended")
    assert row.why == (
        "from 2026-01-01 00:02:00 UTC to 2026-01-01 02:01:50 UTC, because of an outage of SBF or its database "
        "between 2026-01-01 00:00:20 UTC and 2026-01-01 02:00:20 UTC"
    )


def test_setup_still_fails_at_the_postponed_deadline(configuring: World) -> None:
    start_after(configuring, 2 * HOUR)
    configuring.sweep()
    pass_time(configuring, 80)
    assert configuring.view("slow").state is ClusterState.CONFIGURING
    pass_time(configuring, 10)
    assert configuring.view("slow").state is ClusterState.FAILING


def test_a_confirmation_before_the_first_sweep_fails_no_cluster(configuring: World) -> None:
    start_after(configuring, 2 * HOUR)
    configuring.confirm("brno-h1", 0)
    assert configuring.view("slow").state is ClusterState.CONFIGURING


def test_a_passed_setup_deadline_is_not_postponed(configuring: World) -> None:
    """SBF may have run for ten seconds after its last record, and therefore until the deadline of the cluster."""
    pass_time(configuring, 90)
    start_after(configuring, 2 * HOUR)
    configuring.sweep()
    assert configuring.view("slow").state is ClusterState.FAILING
