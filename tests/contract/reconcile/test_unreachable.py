"""Tests of unreachable elements: retries with pauses, and the time of the last read in all views."""

from collections.abc import Callable

import pytest
from sbf_fakes.http_calls import ask
from sbf_fakes.world import World, spec, three_edges

from virtcloud.model.cluster import ClusterState
from virtcloud.model.errors import Refused, Unsafe
from virtcloud.model.values import Name
from virtcloud.model.views import PlacementView

ONE = spec("brno-h1")


@pytest.fixture
def active(world: World) -> World:
    """Cluster demo is active.

    The scheduler runs its workers in the test's own thread, on a clock that the test advances.
    """
    world.put("demo", ONE)
    world.settle()
    converge_by_hand(world)
    world.clock.advance(20)
    return world


def converge_by_hand(world: World) -> Callable[[float], None]:
    """Replace the clocks and threads of the scheduler.

    Return a function that advances all clocks and starts due workers.
    """
    converger, now = world.service.scheduler, [1000.0]
    converger.clock = converger._queue.clock = lambda: now[0]
    converger._queue.jitter = lambda: 0
    converger.spawn = lambda work, _name: work()
    converger._start_due()

    def go_on(seconds: float) -> None:
        now[0] += seconds
        world.clock.advance(seconds)
        converger._start_due()

    world.go_on = go_on
    return go_on


def part(world: World, element: str) -> PlacementView:
    (found,) = [one for one in world.view("demo").placements if one.element == element]
    return found


def reads(world: World, name: str = "brno-sw1") -> int:
    return world.switches[name].calls.count("read")


def boots(world: World, error: Exception | None = None) -> None:
    """Restart a switch. Until the switch is up, it does not answer or fails with ``error``."""
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


def test_a_switch_that_still_boots_is_tried_again_with_pauses(active: World) -> None:
    """The first read is immediate. The next reads do not wait for the drift interval (300 s)."""
    boots(active)
    seen = []
    for _ in range(60):
        before = reads(active)
        active.go_on(1)
        seen.append(reads(active) - before)
    assert (seen[0], sum(seen[:10]), sum(seen)) == (1, 5, 7)


def test_a_booted_switch_is_read_within_the_longest_pause(active: World) -> None:
    boots(active)
    for _ in range(60):
        active.go_on(1)
    active.switches["brno-sw1"].cut_off = False
    for _ in range(31):
        active.go_on(1)
    assert (active.view("demo").state, active.element("brno-sw1").reachable) == (ClusterState.ACTIVE, True)


@pytest.mark.parametrize("error", [Refused("not let in"), Unsafe("rubbish"), ZeroDivisionError("fault")])
def test_a_switch_that_could_not_be_read_is_unreachable(active: World, error: Exception) -> None:
    boots(active, error)
    active.go_on(1)
    assert (active.view("demo").state, active.element("brno-sw1").reachable) == (ClusterState.DEGRADED, False)
    before = reads(active)
    for _ in range(60):
        active.go_on(1)
    assert reads(active) - before == 6


def test_the_answer_to_a_new_cluster_shows_unreachable_elements(active: World) -> None:
    active.switches["brno-sw1"].unsafe = True
    active.clock.advance(active.service.settings.timing.drift_interval)
    active.settle()
    made = active.put("other", spec("brno-h1")).view
    assert made == active.view("other")
    assert [(one.element, one.reachable, one.seen_at is None) for one in made.placements] == [
        ("brno-h1", True, False),
        ("brno-sw1", False, False),
    ]


def test_what_refuses_a_change_but_was_read_is_reachable(active: World) -> None:
    active.switches["brno-sw1"].refuses = True
    active.put("other", spec("brno-h2"))
    active.go_on(1)
    assert (active.view("demo").state, active.element("brno-sw1").reachable) == (ClusterState.ACTIVE, True)


def test_an_edge_that_restarts_is_unreachable_until_it_is_read(world: World) -> None:
    world.furnish(topology=three_edges())
    world.put("demo", spec("brno-h1", "praha-h1"))
    world.settle()
    converge_by_hand(world)
    world.edges["brno-pe1"].cut_off = True
    world.go_on(301)
    assert (world.view("demo").state, world.element("brno-pe1").reachable) == (ClusterState.DEGRADED, False)
    world.edges["brno-pe1"].cut_off = False
    world.go_on(2)
    assert (world.view("demo").state, world.element("brno-pe1").reachable) == (ClusterState.ACTIVE, True)


def test_a_service_that_starts_reads_every_device_at_once(active: World) -> None:
    """After a power failure, all earlier reads may date from before the devices' restart."""
    other = active.restarted()
    other.scheduler.spawn = lambda work, _name: work()
    before = reads(active)
    other.scheduler._start_due()
    other.scheduler._start_due()
    assert reads(active) - before == 1
    other.store.close()


def test_a_replica_tries_what_another_one_could_not_read(active: World) -> None:
    boots(active)
    active.go_on(1)
    other = active.restarted()
    other.scheduler.spawn = lambda work, _name: work()
    other.scheduler._queue.since = active.clock.now.replace(year=2000)
    before = reads(active)
    other.scheduler._start_due()
    assert reads(active) - before == 1
    other.store.close()


def test_an_observed_state_has_the_time_of_its_reading(active: World) -> None:
    boots(active)
    active.go_on(10)
    shown = ask(active, "GET", "/v1/elements/brno-sw1").json()
    assert (shown["carried"]["p1"], shown["read_at"], shown["reachable"]) == ("100", "2026-01-01T00:00:00Z", False)
    difference = ask(active, "GET", "/v1/elements/brno-sw1/difference").json()
    assert difference["read_at"] == "2026-01-01T00:00:00Z"


def test_placements_have_the_time_of_the_elements_last_reading(active: World) -> None:
    boots(active)
    active.go_on(10)
    found = part(active, "brno-sw1")
    assert (str(found.progress), found.reachable, str(found.seen_at)) == (
        "confirmed",
        False,
        "2026-01-01 00:00:00+00:00",
    )


@pytest.fixture
def silent(active: World) -> World:
    """The last heartbeat of brno-h1's agent is older than the limit."""
    active.service.scheduler.sweep.clock = lambda: 1e12
    active.clock.advance(151)
    active.sweep()
    assert active.view("demo").state is ClusterState.DEGRADED
    return active


def test_a_stale_agent_has_to_confirm_again(silent: World) -> None:
    """The host may have restarted. A request for the wanted state does not confirm the wanted state."""
    wanted = ask(silent, "GET", "/v1/elements/brno-h1/wanted").json()
    assert (wanted["revision"], wanted["confirmed_revision"]) == (2, 0)
    assert (silent.view("demo").state, silent.element("brno-h1").reachable) == (ClusterState.DEGRADED, False)
    ask(silent, "POST", "/v1/elements/brno-h1/confirmed", {"revision": 2})
    assert (silent.view("demo").state, silent.element("brno-h1").reachable) == (ClusterState.ACTIVE, True)


def test_an_error_of_a_stale_agent_resets_its_confirmations(silent: World) -> None:
    ask(silent, "POST", "/v1/elements/brno-h1/trouble", {"revision": 2, "message": "libvirt does not answer"})
    found = part(silent, "brno-h1")
    assert (str(found.progress), found.reachable, found.trouble) == ("adding", True, "libvirt does not answer")
    assert silent.view("demo").state is ClusterState.DEGRADED


def test_what_a_stale_host_sets_up_again_is_audited(silent: World) -> None:
    ask(silent, "POST", "/v1/elements/brno-h1/confirmed", {"revision": 2})
    row = silent.audit("element_confirmed")[-1]
    assert (row.element, '"key":"demo"' in (row.difference or "")) == ("brno-h1", True)


def test_a_stale_agent_has_the_time_of_its_last_heartbeat(silent: World) -> None:
    found = part(silent, "brno-h1")
    assert (found.element, found.reachable, str(found.seen_at)) == (
        Name("brno-h1"),
        False,
        "2026-01-01 00:00:00+00:00",
    )
