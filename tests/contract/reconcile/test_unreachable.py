import pytest
from support.sbf_fakes.http_calls import ask
from support.sbf_fakes.world import World, spec, three_edges

from virtcloud.model.cluster import ClusterState
from virtcloud.model.errors import Refused, Unsafe
from virtcloud.model.values import Name
from virtcloud.model.views import PlacementView

ONE_HOST = spec("brno-h1")


@pytest.fixture
def active(world: World) -> World:
    world.put("demo", ONE_HOST)
    world.settle()
    control_scheduler(world)
    world.clock.advance(20)
    return world


class SchedulerClock:
    """A monotonic clock that :func:`advance` advances."""

    now = 1000.0

    def __call__(self) -> float:
        return self.now


def control_scheduler(world: World) -> None:
    """Replace the clocks and threads of the scheduler."""
    scheduler = world.service.scheduler
    scheduler.clock = scheduler._queue.clock = SchedulerClock()
    scheduler._queue.jitter = lambda: 0
    scheduler.spawn = lambda work, _name: work()
    scheduler._start_due()


def advance(world: World, seconds: float) -> None:
    scheduler = world.service.scheduler
    assert isinstance(scheduler.clock, SchedulerClock)
    scheduler.clock.now += seconds
    world.clock.advance(seconds)
    scheduler._start_due()


def placement(world: World, element: str) -> PlacementView:
    (view,) = [view for view in world.view("demo").placements if view.element == element]
    return view


def count_reads(world: World, name: str = "brno-sw1") -> int:
    return world.switches[name].calls.count("read")


def boot(world: World, error: Exception | None = None) -> None:
    """Restart a switch. While it boots, each call fails with ``error`` or, without ``error``, gets no answer."""
    switch = world.switches["brno-sw1"]
    switch.ended_session = True
    if error is None:
        switch.cut_off = True
        return

    def refuse(call: str) -> None:
        switch.calls.append(call)
        switch.ended_session = False
        raise error

    switch.answer = refuse


def test_a_booting_switch_is_read_again_with_pauses(active: World) -> None:
    """The first reading is immediate. The next readings do not wait for the drift interval (300 s)."""
    boot(active)
    counts = []
    for _ in range(60):
        before = count_reads(active)
        advance(active, 1)
        counts.append(count_reads(active) - before)
    assert (counts[0], sum(counts[:10]), sum(counts)) == (1, 5, 7)


def test_a_booted_switch_is_read_within_the_longest_pause(active: World) -> None:
    boot(active)
    for _ in range(60):
        advance(active, 1)
    active.switches["brno-sw1"].cut_off = False
    for _ in range(31):
        advance(active, 1)
    assert (active.view("demo").state, active.element("brno-sw1").reachable) == (ClusterState.ACTIVE, True)


@pytest.mark.parametrize("error", [Refused("login refused"), Unsafe("unknown answer"), ZeroDivisionError("fault")])
def test_a_switch_that_could_not_be_read_is_unreachable(active: World, error: Exception) -> None:
    boot(active, error)
    advance(active, 1)
    assert (active.view("demo").state, active.element("brno-sw1").reachable) == (ClusterState.DEGRADED, False)
    before = count_reads(active)
    for _ in range(60):
        advance(active, 1)
    assert count_reads(active) - before == 6


def test_the_answer_to_a_new_cluster_shows_unreachable_elements(active: World) -> None:
    active.switches["brno-sw1"].unsafe = True
    active.clock.advance(active.service.settings.timing.drift_interval)
    active.settle()
    view = active.put("other", spec("brno-h1")).view
    assert view == active.view("other")
    assert [(part.element, part.reachable, part.seen_at is None) for part in view.placements] == [
        ("brno-h1", True, False),
        ("brno-sw1", False, False),
    ]


def test_a_switch_that_refuses_a_change_is_reachable(active: World) -> None:
    active.switches["brno-sw1"].refuses = True
    active.put("other", spec("brno-h2"))
    advance(active, 1)
    assert (active.view("demo").state, active.element("brno-sw1").reachable) == (ClusterState.ACTIVE, True)


def test_an_edge_that_restarts_is_unreachable_until_it_is_read(world: World) -> None:
    world.furnish(topology=three_edges())
    world.put("demo", spec("brno-h1", "praha-h1"))
    world.settle()
    control_scheduler(world)
    world.edges["brno-pe1"].cut_off = True
    advance(world, 301)
    assert (world.view("demo").state, world.element("brno-pe1").reachable) == (ClusterState.DEGRADED, False)
    world.edges["brno-pe1"].cut_off = False
    advance(world, 2)
    assert (world.view("demo").state, world.element("brno-pe1").reachable) == (ClusterState.ACTIVE, True)


def test_a_starting_service_reads_every_device_once(active: World) -> None:
    """After a power failure, all devices may have restarted after their last reading."""
    other = active.restarted()
    other.scheduler.spawn = lambda work, _name: work()
    before = count_reads(active)
    other.scheduler._start_due()
    other.scheduler._start_due()
    assert count_reads(active) - before == 1
    other.store.close()


def test_a_replica_reads_a_device_that_another_could_not_read(active: World) -> None:
    boot(active)
    advance(active, 1)
    other = active.restarted()
    other.scheduler.spawn = lambda work, _name: work()
    other.scheduler._queue.since = active.clock.now.replace(year=2000)
    before = count_reads(active)
    other.scheduler._start_due()
    assert count_reads(active) - before == 1
    other.store.close()


def test_an_observed_state_has_the_time_of_its_reading(active: World) -> None:
    boot(active)
    advance(active, 10)
    shown = ask(active, "GET", "/v1/elements/brno-sw1").json()
    assert (shown["carried"]["p1"], shown["read_at"], shown["reachable"]) == ("100", "2026-01-01T00:00:00Z", False)
    difference = ask(active, "GET", "/v1/elements/brno-sw1/difference").json()
    assert difference["read_at"] == "2026-01-01T00:00:00Z"


def test_placements_have_the_time_of_the_elements_last_reading(active: World) -> None:
    boot(active)
    advance(active, 10)
    view = placement(active, "brno-sw1")
    assert (str(view.progress), view.reachable, str(view.seen_at)) == (
        "confirmed",
        False,
        "2026-01-01 00:00:00+00:00",
    )


@pytest.fixture
def stale(active: World) -> World:
    active.service.scheduler.sweep.clock = lambda: 1e12
    active.clock.advance(151)
    active.sweep()
    assert active.view("demo").state is ClusterState.DEGRADED
    return active


def test_a_stale_agent_has_to_confirm_again(stale: World) -> None:
    """The host may have restarted, so SBF resets the agent's confirmed revision."""
    wanted = ask(stale, "GET", "/v1/elements/brno-h1/wanted").json()
    assert (wanted["revision"], wanted["confirmed_revision"]) == (2, 0)
    assert (stale.view("demo").state, stale.element("brno-h1").reachable) == (ClusterState.DEGRADED, False)
    ask(stale, "POST", "/v1/elements/brno-h1/confirmed", {"revision": 2})
    assert (stale.view("demo").state, stale.element("brno-h1").reachable) == (ClusterState.ACTIVE, True)


def test_an_error_of_a_stale_agent_resets_its_confirmations(stale: World) -> None:
    ask(stale, "POST", "/v1/elements/brno-h1/trouble", {"revision": 2, "message": "libvirt does not answer"})
    view = placement(stale, "brno-h1")
    assert (str(view.progress), view.reachable, view.trouble) == ("adding", True, "libvirt does not answer")
    assert stale.view("demo").state is ClusterState.DEGRADED


def test_a_confirmation_of_a_stale_agent_is_audited(stale: World) -> None:
    ask(stale, "POST", "/v1/elements/brno-h1/confirmed", {"revision": 2})
    row = stale.audit("element_confirmed")[-1]
    assert (row.element, '"key":"demo"' in (row.difference or "")) == ("brno-h1", True)


def test_a_stale_agent_has_the_time_of_its_last_heartbeat(stale: World) -> None:
    view = placement(stale, "brno-h1")
    assert (view.element, view.reachable, str(view.seen_at)) == (
        Name("brno-h1"),
        False,
        "2026-01-01 00:00:00+00:00",
    )
