"""Tests of the reconciler. SBF and the host are in memory and behave like the real ones."""

import threading
from collections.abc import Callable

import pytest
from fake_machine import FakeElementApi, FakeManagedHost

from virtcloud.agent.difference import ObservedHost, Step
from virtcloud.agent.reconciler import HostReconciler, ReconcileTiming
from virtcloud.agent.supervision import StopSignal
from virtcloud.model.errors import NotFound, ServiceUnreachable
from virtcloud.model.wanted import GuestWanted, Segment

Make = Callable[..., Segment]


@pytest.fixture
def service() -> FakeElementApi:
    return FakeElementApi()


@pytest.fixture
def machine() -> FakeManagedHost:
    return FakeManagedHost()


@pytest.fixture
def slept() -> list[float]:
    return []


class Bell(threading.Event):
    """An event whose wait returns immediately and records the timeout."""

    def __init__(self, slept: list[float]) -> None:
        super().__init__()
        self._slept = slept

    def wait(self, timeout: float | None = None) -> bool:
        self._slept.append(timeout or 0)
        return self.is_set()


@pytest.fixture
def stop() -> StopSignal:
    return StopSignal()


@pytest.fixture
def converger(
    service: FakeElementApi, machine: FakeManagedHost, stop: StopSignal, slept: list[float]
) -> HostReconciler:
    timing = ReconcileTiming(check_s=30, retry_first_s=0.5, retry_most_s=4)
    return HostReconciler("h1", service, machine, stop, timing, Bell(slept))


def test_what_is_wanted_is_made_and_confirmed(
    converger: HostReconciler, service: FakeElementApi, machine: FakeManagedHost, make_segment: Make
) -> None:
    service.want(make_segment("a", 100, ("g1",)))
    converger.reconcile_once()
    assert ([str(step) for step in machine.steps], service.told) == (
        ["build VLAN 100 on eth0", "start g1"],
        [("confirmed", 1)],
    )


def test_a_segment_with_unknown_requirements_is_refused(
    converger: HostReconciler, service: FakeElementApi, machine: FakeManagedHost, make_segment: Make
) -> None:
    strict = make_segment("a", 100, ("g1",)).model_copy(update={"requires": ("strict-filters",)})
    service.want(strict, make_segment("b", 101))
    for _ in range(3):
        converger.reconcile_once()
    assert [str(step) for step in machine.steps] == ["build VLAN 101 on eth0"]
    assert [what for what, _ in service.told] == ["trouble"] * 3
    assert service.refused[-1].keys() == {"a"}
    assert (
        "SBF requires strict-filters, unknown to this agent (virtcloud 0.2.0): upgrade the agent"
        in (service.messages[-1])
    )


def test_running_guests_stay_unconfirmed_with_new_requirements(
    converger: HostReconciler, service: FakeElementApi, machine: FakeManagedHost, make_segment: Make
) -> None:
    service.want(make_segment("a", 100, ("g1",)))
    converger.reconcile_once()
    built = machine.carried
    service.want(make_segment("a", 100, ("g1",)).model_copy(update={"requires": ("strict-filters",)}))
    converger.reconcile_once()
    assert (machine.carried, service.told) == (built, [("confirmed", 1), ("trouble", 2)])


def test_a_revision_without_difference_is_confirmed(
    converger: HostReconciler, service: FakeElementApi, machine: FakeManagedHost
) -> None:
    service.want()
    converger.reconcile_once()
    assert (machine.steps, service.told) == ([], [("confirmed", 1)])


def test_what_was_confirmed_is_not_confirmed_again(
    converger: HostReconciler, service: FakeElementApi, make_segment: Make
) -> None:
    service.want(make_segment("a", 100))
    converger.reconcile_once()
    converger.reconcile_once()
    assert service.told == [("confirmed", 1)]


def test_only_the_first_fetch_returns_at_once(converger: HostReconciler, service: FakeElementApi) -> None:
    service.want()
    converger.reconcile_once()
    converger.reconcile_once()
    assert service.polls == [(None, 30), (1, 30)]


def test_nothing_is_confirmed_that_was_not_read_back(
    converger: HostReconciler, service: FakeElementApi, machine: FakeManagedHost, make_segment: Make
) -> None:
    machine.forgets = True
    service.want(make_segment("a", 100))
    converger.reconcile_once()
    assert service.told == [("trouble", 1)]
    assert service.messages == [
        "cluster key-a: after all steps, the host still differs from the wanted state: build VLAN 100 on eth0"
    ]


def test_drift_is_reported_before_it_is_corrected(
    converger: HostReconciler, service: FakeElementApi, machine: FakeManagedHost, make_segment: Make
) -> None:
    service.want(make_segment("a", 100))
    converger.reconcile_once()
    machine.carried = ObservedHost()
    converger.reconcile_once()
    assert service.told == [("confirmed", 1), ("drifted", 1), ("confirmed", 1)]


def test_a_machine_that_restarted_empty_says_so_at_its_start(
    service: FakeElementApi, machine: FakeManagedHost, stop: StopSignal, make_segment: Make
) -> None:
    service.want(make_segment("a", 100))
    service.document = service.document.model_copy(update={"confirmed_revision": 1})
    HostReconciler("h1", service, machine, stop, ReconcileTiming()).reconcile_once()
    assert service.told == [("drifted", 1), ("confirmed", 1)]


def test_trouble_names_the_cluster_the_step_and_the_cause(
    converger: HostReconciler, service: FakeElementApi, machine: FakeManagedHost, make_segment: Make
) -> None:
    machine.refuses = {"a"}
    service.want(make_segment("a", 100, ("g1",)))
    converger.reconcile_once()
    assert service.messages == ["cluster key-a: could not build VLAN 100 on eth0: the kernel said no"]


def test_errors_are_reported_by_cluster_id(
    converger: HostReconciler, service: FakeElementApi, machine: FakeManagedHost, make_segment: Make
) -> None:
    machine.refuses = {"a", "b"}
    service.want(make_segment("a", 100), make_segment("b", 101))
    converger.reconcile_once()
    assert service.about == [
        {
            "a": "could not build VLAN 100 on eth0: the kernel said no",
            "b": "could not build VLAN 101 on eth0: the kernel said no",
        }
    ]


def test_an_error_of_one_cluster_blocks_no_other(
    converger: HostReconciler, service: FakeElementApi, machine: FakeManagedHost, make_segment: Make
) -> None:
    machine.refuses = {"a"}
    service.want(make_segment("a", 100), make_segment("b", 101))
    converger.reconcile_once()
    assert ([step.cluster for step in machine.steps], service.told) == (["b"], [("trouble", 1)])


def test_after_trouble_it_is_tried_again_with_growing_pauses(
    converger: HostReconciler, service: FakeElementApi, machine: FakeManagedHost, make_segment: Make
) -> None:
    machine.refuses = {"a"}
    service.want(make_segment("a", 100))
    waits = []
    for _ in range(6):
        converger.reconcile_once()
        waits.append(sum(wait for _, wait in service.polls))
        service.polls.clear()
    assert waits == [30, 0.5, 1.0, 2.0, 4.0, 4.0]


def test_who_is_woken_looks_at_once_after_trouble(
    converger: HostReconciler, service: FakeElementApi, machine: FakeManagedHost, make_segment: Make
) -> None:
    machine.refuses = {"a"}
    service.want(make_segment("a", 100))
    for _ in range(6):
        converger.reconcile_once()
    service.polls.clear()
    converger.wake()
    converger.reconcile_once()
    assert service.polls == [(1, 1.0)], "the pause would have been four seconds"


def test_who_is_woken_once_waits_the_next_time(
    converger: HostReconciler, service: FakeElementApi, slept: list[float]
) -> None:
    """One call of `wake` ends one pause."""
    service.failing = ServiceUnreachable("gone")
    converger.wake()
    converger.reconcile_once()
    assert (slept, converger._woken.is_set()) == ([0.5], False)


def test_three_refusals_in_a_row_are_reported(
    converger: HostReconciler, service: FakeElementApi, machine: FakeManagedHost, make_segment: Make
) -> None:
    machine.refuses = {"a"}
    service.want(make_segment("a", 100), make_segment("b", 101))
    for _ in range(3):
        converger.reconcile_once()
    assert service.refused == [{}, {}, {"a": "could not build VLAN 100 on eth0: the kernel said no"}]


def with_members(segment: Segment, make_guest: Callable[..., GuestWanted], *members: str) -> Segment:
    """Add a guest of each member to a network's segment."""
    guests = tuple(make_guest(f"of-{one}", cluster=one) for one in members)
    keys = {one: f"key-{one}" for one in members}
    return Segment.model_validate(segment.model_dump() | {"guests": (*segment.guests, *guests), "members": keys})


def test_a_refused_guest_concerns_only_its_member(
    converger: HostReconciler,
    service: FakeElementApi,
    machine: FakeManagedHost,
    make_segment: Make,
    make_guest: Callable[..., GuestWanted],
) -> None:
    machine.refuses = {"m1"}
    service.want(with_members(make_segment("a", 100, ("g1",)), make_guest, "m1", "m2"))
    for _ in range(3):
        converger.reconcile_once()
    assert [str(step) for step in machine.steps] == ["build VLAN 100 on eth0", "start g1", "start of-m2"]
    assert service.messages[-1] == "cluster key-m1: could not start of-m1: the kernel said no"
    assert service.refused[-1] == {"m1": "could not start of-m1: the kernel said no"}


def test_a_refused_segment_starts_no_members_guest(
    converger: HostReconciler,
    service: FakeElementApi,
    machine: FakeManagedHost,
    make_segment: Make,
    make_guest: Callable[..., GuestWanted],
) -> None:
    machine.refuses = {"a"}
    service.want(with_members(make_segment("a", 100), make_guest, "m1"))
    converger.reconcile_once()
    assert (machine.steps, service.messages) == (
        [],
        ["cluster key-a: could not build VLAN 100 on eth0: the kernel said no"],
    )


def test_a_leaving_member_removes_only_its_guest(
    converger: HostReconciler,
    service: FakeElementApi,
    machine: FakeManagedHost,
    make_segment: Make,
    make_guest: Callable[..., GuestWanted],
) -> None:
    alone = make_segment("a", 100, ("g1",))
    service.want(with_members(alone, make_guest, "m1"))
    converger.reconcile_once()
    del machine.steps[:]
    service.want(alone)
    converger.reconcile_once()
    assert [str(step) for step in machine.steps] == ["stop of-m1"]


def test_refusals_with_a_success_between_them_are_not_for_good(
    converger: HostReconciler, service: FakeElementApi, machine: FakeManagedHost, make_segment: Make
) -> None:
    service.want(make_segment("a", 100))
    for refuses in ({"a"}, {"a"}, set(), {"a"}, {"a"}):
        machine.refuses, machine.carried = refuses, ObservedHost()
        converger.reconcile_once()
    assert service.refused == [{}, {}, {}, {}]


def test_once_trouble_is_over_the_revision_is_confirmed(
    converger: HostReconciler, service: FakeElementApi, machine: FakeManagedHost, make_segment: Make
) -> None:
    machine.refuses = {"a"}
    service.want(make_segment("a", 100))
    converger.reconcile_once()
    machine.refuses = set()
    converger.reconcile_once()
    assert service.told == [("trouble", 1), ("confirmed", 1)]


def test_a_cluster_that_failed_leaves_without_a_trace(
    converger: HostReconciler, service: FakeElementApi, machine: FakeManagedHost, make_segment: Make
) -> None:
    machine.refuses = {"a"}
    service.want(make_segment("a", 100))
    converger.reconcile_once()
    machine.refuses = set()
    service.want()
    converger.reconcile_once()
    assert (machine.carried, service.told) == (ObservedHost(), [("trouble", 1), ("confirmed", 2)])


def test_while_sbf_is_away_everything_keeps_running(
    converger: HostReconciler, service: FakeElementApi, machine: FakeManagedHost, slept: list[float], make_segment: Make
) -> None:
    service.want(make_segment("a", 100, ("g1",)))
    converger.reconcile_once()
    before = machine.carried
    service.failing = ServiceUnreachable("gone")
    for _ in range(5):
        converger.reconcile_once()
    assert (machine.carried, slept) == (before, [0.5, 1.0, 2.0, 4.0, 4.0])


def test_a_confirmation_that_sbf_did_not_hear_is_sent_again(
    converger: HostReconciler, service: FakeElementApi, machine: FakeManagedHost, make_segment: Make
) -> None:
    class Deaf(FakeElementApi):
        def confirm(self, element: str, revision: int) -> None:
            if not self.told:
                self.told.append(("lost", revision))
                raise ServiceUnreachable("gone")
            super().confirm(element, revision)

    deaf = Deaf()
    deaf.want(make_segment("a", 100))
    again = HostReconciler("h1", deaf, machine, StopSignal(), ReconcileTiming(), Bell([]))
    again.reconcile_once()
    again.reconcile_once()
    assert deaf.told == [("lost", 1), ("confirmed", 1)]


def test_an_element_that_sbf_does_not_know_waits_for_it(
    converger: HostReconciler, service: FakeElementApi, slept: list[float]
) -> None:
    service.failing = NotFound("element h1 is not known")
    converger.reconcile_once()
    assert slept == [0.5]


def test_an_internal_error_is_reported_and_retried(
    converger: HostReconciler, service: FakeElementApi, machine: FakeManagedHost, make_segment: Make
) -> None:
    def broken(_step: Step) -> None:
        raise TypeError("oops")

    machine.apply = broken
    service.want(make_segment("a", 100))
    converger.reconcile_once()
    fault = "internal error in the agent: TypeError: oops; see the agent's log"
    assert service.messages == [f"cluster key-a: could not build VLAN 100 on eth0: {fault}"]


def test_a_stop_request_ends_between_two_steps(
    converger: HostReconciler, service: FakeElementApi, machine: FakeManagedHost, stop: StopSignal, make_segment: Make
) -> None:
    apply = machine.apply

    def apply_and_stop(step: Step) -> None:
        apply(step)
        stop.request()

    machine.apply = apply_and_stop
    service.want(make_segment("a", 100, ("g1",)))
    converger.run()
    assert ([str(step) for step in machine.steps], service.told) == (["build VLAN 100 on eth0"], [])


def test_an_internal_error_of_one_cluster_blocks_no_other(
    converger: HostReconciler, service: FakeElementApi, machine: FakeManagedHost, make_segment: Make
) -> None:
    apply = machine.apply

    def broken(step: Step) -> None:
        if step.cluster == "a":
            raise TypeError("oops")
        apply(step)

    machine.apply = broken
    service.want(make_segment("a", 100), make_segment("b", 101))
    converger.reconcile_once()
    assert [step.cluster for step in machine.steps] == ["b"]


def test_progress_is_reported_after_each_completed_piece_of_work(
    service: FakeElementApi, machine: FakeManagedHost, make_segment: Make
) -> None:
    """While a step hangs, no progress is reported."""
    reported: list[int] = []
    seen: list[int] = []
    apply = machine.apply

    def apply_and_look(step: Step) -> None:
        seen.append(len(reported))
        apply(step)

    machine.apply = apply_and_look
    service.want(make_segment("a", 100, ("g1",)))
    HostReconciler(
        "h1", service, machine, StopSignal(), ReconcileTiming(), progress=lambda: reported.append(1)
    ).reconcile_once()
    assert (seen, len(reported)) == ([1, 2], 4)
