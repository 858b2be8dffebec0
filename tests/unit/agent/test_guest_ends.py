"""Tests of guests that end by themselves, with an SBF and a host in memory."""

from collections.abc import Callable
from dataclasses import replace
from itertools import pairwise

import pytest
from support.fake_machine import FakeElementApi, FakeManagedHost

from virtcloud.agent.guest_ends import EndCause
from virtcloud.agent.reconciler import HostReconciler, ReconcileTiming
from virtcloud.agent.steps import StartGuest
from virtcloud.agent.supervision import StopSignal
from virtcloud.model.wanted import Segment

Make = Callable[..., Segment]


class World:
    """An agent with a clock that the tests advance."""

    def __init__(self, make_segment: Make) -> None:
        self.make_segment, self.service, self.host, self.now = make_segment, FakeElementApi(), FakeManagedHost(), 0.0
        self.agent = HostReconciler(
            "h1", self.service, self.host, StopSignal(), ReconcileTiming(check_s=30), clock=lambda: self.now
        )
        self.service.want(make_segment("a", 100, ("g1",)), make_segment("b", 101, ("g1",)))
        self.agent.reconcile_once()
        self.host.steps.clear()

    def end_guest(self, cluster: str = "a") -> None:
        guests = tuple(guest for guest in self.host.observed.guests if guest.cluster != cluster)
        self.host.observed = replace(self.host.observed, guests=guests)

    def reconcile(self, after_s: float = 0) -> dict[str, str]:
        self.now += after_s
        self.agent.reconcile_once()
        return self.service.incomplete[-1]

    def count_starts(self) -> int:
        return sum(isinstance(step, StartGuest) for step in self.host.steps)


@pytest.fixture
def world(make_segment: Make) -> World:
    return World(make_segment)


def test_an_ended_guest_is_started_again_at_once(world: World) -> None:
    world.end_guest()
    assert world.reconcile(100) == {
        "a": "guest g1 ended: expected an image whose first program continues to run; read the console: virtcloud "
        "guest log key-a g1; the guest runs again; the cluster is complete when the guest has run for 10 s"
    }
    assert [str(step) for step in world.host.steps] == ["start g1"]


def test_a_cluster_completes_after_its_guest_ran_for_ten_seconds(world: World) -> None:
    world.end_guest()
    world.reconcile(100)
    assert (list(world.reconcile(9.9)), list(world.reconcile(0.1))) == (["a"], [])


def test_the_end_of_a_guest_concerns_no_other_cluster(world: World) -> None:
    world.end_guest()
    world.reconcile(100)
    assert world.service.reports == [("confirmed", 1)] * 2  # a report of drift would degrade all clusters


def test_the_report_names_the_memory_limit_of_an_ended_guest(world: World) -> None:
    world.host.end_causes["g1"] = EndCause.MEMORY_LIMIT
    world.end_guest()
    assert world.reconcile(100)["a"].startswith(
        "guest g1 ended: the kernel ended its programs at its memory limit of 64 MiB (out of memory): run less in the "
        "guest, or create the cluster again with more memory for the guest (`--memory`, `memory_mb`); "
    )


def test_the_search_for_the_cause_begins_at_the_last_reading(world: World) -> None:
    world.reconcile(100)
    world.end_guest()
    world.reconcile(30)
    assert world.host.end_searches == [30]


def test_a_guest_that_ends_at_once_starts_after_longer_pauses(world: World) -> None:
    starts = []
    for _ in range(700):
        world.end_guest()
        before = world.count_starts()
        world.reconcile(1)
        starts += [world.now] * (world.count_starts() - before)
    pauses = [later - earlier for earlier, later in pairwise(starts)]
    assert pauses == [6, 11, 21, 41, 81, 161, 301]  # pauses of 5, 10, … s, and 1 s to notice the end


def test_a_guest_that_ends_often_never_completes_its_cluster(world: World) -> None:
    """If the cluster counted as complete between two ends, it would alternate between active and degraded."""
    for _ in range(600):
        world.end_guest()
        assert "a" in world.reconcile(3)


def test_a_guest_must_run_as_long_as_its_last_pause(world: World) -> None:
    for _ in range(4):
        world.end_guest()
        world.reconcile(100)
        world.reconcile(100)  # after the fourth end, the pause was 20 s
    assert [list(world.reconcile(10)), list(world.reconcile(9)), list(world.reconcile(1))] == [["a"], ["a"], []]


def test_a_guest_that_ends_in_its_first_second_is_named(world: World) -> None:
    """The guest's start did not fail. So the host's revision is confirmed, and other clusters become active."""
    world.host.ignores_steps = True
    world.end_guest()
    world.reconcile(100)
    assert world.reconcile()["a"].startswith("guest g1 ended 2 times within 0 s: ")
    assert {kind for kind, *_ in world.service.reports} == {"confirmed"}


def test_a_guest_that_cannot_start_again_concerns_no_other_cluster(world: World) -> None:
    """Root in a guest can change the guest's files so that no further start succeeds."""
    world.end_guest()
    world.host.refuses = {"a"}
    world.reconcile()
    world.service.want(*world.service.document.wanted.segments, world.make_segment("c", 102, ("g1",)))
    assert world.reconcile() == {"a": "could not start g1: the kernel refused"}
    assert world.service.reports == [("confirmed", 1), ("confirmed", 1), ("confirmed", 2)]


def test_a_guest_that_finally_starts_completes_its_cluster(world: World) -> None:
    world.end_guest()
    world.host.refuses = {"a"}
    for _ in range(2):
        world.reconcile()
    world.host.refuses = set()
    assert [list(world.reconcile()), list(world.reconcile(10))] == [["a"], []]


def test_the_host_is_read_when_the_next_start_is_due(world: World) -> None:
    for _ in range(2):
        world.end_guest()
        world.reconcile(1)
    world.reconcile(1)
    assert world.service.polls[-1] == (1, 4)


def test_a_reset_starts_an_ended_guest_at_once(world: World) -> None:
    for _ in range(3):
        world.end_guest()
        world.reconcile(1)
    world.host.steps.clear()
    (network, other) = world.service.document.wanted.segments
    guest = network.guests[0].model_copy(update={"starts": 1})
    world.service.want(network.model_copy(update={"guests": (guest,)}), other)
    world.reconcile(1)
    assert [str(step) for step in world.host.steps] == ["start g1"]


def test_a_guest_that_was_replaced_has_not_ended(world: World) -> None:
    (network, other) = world.service.document.wanted.segments
    guest = network.guests[0].model_copy(update={"starts": 1})
    world.service.want(network.model_copy(update={"guests": (guest,)}), other)
    world.end_guest()
    assert world.reconcile(1) == {}
    assert world.count_starts() == 1


def test_a_stopped_guest_has_not_ended(world: World) -> None:
    (network, other) = world.service.document.wanted.segments
    off = network.model_copy(update={"guests": (network.guests[0].model_copy(update={"power": "off"}),)})
    world.service.want(off, other)
    world.reconcile(1)
    world.service.want(network, other)
    assert world.reconcile(1) == {}


def test_after_a_long_run_an_end_counts_as_the_first(world: World) -> None:
    for _ in range(2):
        world.end_guest()
        world.reconcile(100)
    world.reconcile(5)
    world.end_guest()
    assert world.reconcile(600)["a"].startswith("guest g1 ended: ")


def test_guests_of_an_unreachable_hypervisor_have_not_ended(world: World) -> None:
    running = world.host.observed
    world.host.observed = replace(running, guests=(), hypervisor_errors=("libvirt hangs",))
    world.reconcile(1)
    world.host.observed = running
    assert world.reconcile(1) == {}


def test_an_ended_guest_and_anothers_fault_are_both_reported(world: World) -> None:
    world.host.waits = {"a": "fetching image disk: 0 %; the server does not answer; trying again"}
    world.end_guest()
    text = world.reconcile(100)["a"]
    assert text.startswith("guest g1 ended: ")
    assert text.endswith("; fetching image disk: 0 %; the server does not answer; trying again")


def test_a_failed_start_and_anothers_end_are_both_reported(world: World) -> None:
    for _ in range(2):
        world.end_guest()
        world.reconcile(1)
    world.host.refuses = {"a"}
    world.service.want(world.make_segment("a", 100, ("g1", "g2")), world.make_segment("b", 101, ("g1",)))
    text = world.reconcile(1)["a"]
    assert text.startswith("could not start g2: the kernel refused; guest g1 ended 2 times within 1 s: ")
