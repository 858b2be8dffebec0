from collections.abc import Callable
from dataclasses import replace

import pytest
from support.fake_machine import FakeElementApi, FakeManagedHost

from virtcloud.agent.observed_host import ObservedHost, ObservedSegment
from virtcloud.agent.reconciler import HostReconciler, ReconcileTiming
from virtcloud.agent.steps import Step
from virtcloud.agent.supervision import StopSignal
from virtcloud.model.errors import ServiceUnreachable
from virtcloud.model.wanted import GuestWanted, Segment

Make = Callable[..., Segment]


def test_an_error_report_names_cluster_step_and_cause(
    reconciler: HostReconciler, service: FakeElementApi, host: FakeManagedHost, make_segment: Make
) -> None:
    host.refuses = {"a"}
    service.want(make_segment("a", 100, ("g1",)))
    reconciler.reconcile_once()
    assert service.messages == ["cluster key-a: could not build VLAN 100 on eth0: the kernel refused"]


def test_errors_are_reported_by_cluster_id(
    reconciler: HostReconciler, service: FakeElementApi, host: FakeManagedHost, make_segment: Make
) -> None:
    host.refuses = {"a", "b"}
    service.want(make_segment("a", 100), make_segment("b", 101))
    reconciler.reconcile_once()
    assert service.errors_by_cluster == [
        {
            "a": "could not build VLAN 100 on eth0: the kernel refused",
            "b": "could not build VLAN 101 on eth0: the kernel refused",
        }
    ]


def test_an_error_of_one_cluster_blocks_no_other(
    reconciler: HostReconciler, service: FakeElementApi, host: FakeManagedHost, make_segment: Make
) -> None:
    host.refuses = {"a"}
    service.want(make_segment("a", 100), make_segment("b", 101))
    reconciler.reconcile_once()
    assert ([step.cluster for step in host.steps], service.reports) == (["b"], [("error", 1)])


def test_a_failed_step_is_retried_with_growing_pauses(
    reconciler: HostReconciler, service: FakeElementApi, host: FakeManagedHost, make_segment: Make
) -> None:
    host.refuses = {"a"}
    service.want(make_segment("a", 100))
    polled = []
    for _ in range(6):
        reconciler.reconcile_once()
        polled.append(sum(wait for _, wait in service.polls))
        service.polls.clear()
    assert polled == [30, 0.5, 1.0, 2.0, 4.0, 4.0]


def test_a_wake_call_ends_the_pause_after_an_error(
    reconciler: HostReconciler, service: FakeElementApi, host: FakeManagedHost, make_segment: Make
) -> None:
    host.refuses = {"a"}
    service.want(make_segment("a", 100))
    for _ in range(6):
        reconciler.reconcile_once()
    service.polls.clear()
    reconciler.wake()
    reconciler.reconcile_once()
    assert service.polls == [(1, 1.0)], (
        "expected a pause of one second; without the call, the pause would be four seconds"
    )


def test_a_wake_call_ends_only_one_pause(
    reconciler: HostReconciler, service: FakeElementApi, waits: list[float]
) -> None:
    service.error = ServiceUnreachable("gone")
    reconciler.wake()
    reconciler.reconcile_once()
    assert (waits, reconciler._woken.is_set()) == ([0.5], False)


def test_three_refusals_in_a_row_are_reported(
    reconciler: HostReconciler, service: FakeElementApi, host: FakeManagedHost, make_segment: Make
) -> None:
    host.refuses = {"a"}
    service.want(make_segment("a", 100), make_segment("b", 101))
    for _ in range(3):
        reconciler.reconcile_once()
    assert service.refused == [{}, {}, {"a": "could not build VLAN 100 on eth0: the kernel refused"}]


def with_members(segment: Segment, make_guest: Callable[..., GuestWanted], *members: str) -> Segment:
    guests = tuple(make_guest(f"of-{member}", cluster=member) for member in members)
    keys = {member: f"key-{member}" for member in members}
    return Segment.model_validate(segment.model_dump() | {"guests": (*segment.guests, *guests), "members": keys})


def test_a_refused_guest_concerns_only_its_member(
    reconciler: HostReconciler,
    service: FakeElementApi,
    host: FakeManagedHost,
    make_segment: Make,
    make_guest: Callable[..., GuestWanted],
) -> None:
    host.refuses = {"m1"}
    service.want(with_members(make_segment("a", 100, ("g1",)), make_guest, "m1", "m2"))
    for _ in range(3):
        reconciler.reconcile_once()
    assert [str(step) for step in host.steps] == ["build VLAN 100 on eth0", "start g1", "start of-m2"]
    assert service.messages[-1] == "cluster key-m1: could not start of-m1: the kernel refused"
    assert service.refused[-1] == {"m1": "could not start of-m1: the kernel refused"}


@pytest.fixture
def two_clusters(service: FakeElementApi, host: FakeManagedHost, make_segment: Make) -> None:
    """SBF wants the clusters a and b. After the segment of a is built, the host refuses further steps of a."""
    service.want(make_segment("a", 100, ("g1",)), make_segment("b", 101, ("g1",)))
    host.observed = ObservedHost((ObservedSegment("a", 100, "eth0"),))
    host.refuses = {"a"}


@pytest.mark.usefixtures("two_clusters")
def test_a_refused_guest_delays_no_other_cluster(reconciler: HostReconciler, service: FakeElementApi) -> None:
    reconciler.reconcile_once()
    assert (service.reports, service.incomplete) == (
        [("confirmed", 1)],
        [{"a": "could not start g1: the kernel refused"}],
    )


@pytest.mark.usefixtures("two_clusters")
def test_a_refused_guest_is_reported_once_as_refused(reconciler: HostReconciler, service: FakeElementApi) -> None:
    for _ in range(6):
        reconciler.reconcile_once()
    assert service.reports == [("confirmed", 1), ("error", 1), ("confirmed", 1)]
    assert service.refused == [{"a": "could not start g1: the kernel refused"}]


@pytest.mark.usefixtures("two_clusters")
def test_a_refused_guest_is_started_with_growing_pauses(reconciler: HostReconciler, service: FakeElementApi) -> None:
    polled = []
    for _ in range(6):
        reconciler.reconcile_once()
        polled.append(sum(wait for _, wait in service.polls))
        service.polls.clear()
    assert polled == [30, 0.5, 1.0, 2.0, 4.0, 4.0]


@pytest.mark.usefixtures("two_clusters")
def test_a_refused_guest_is_no_drift_for_a_restarted_agent(
    reconciler: HostReconciler, service: FakeElementApi, host: FakeManagedHost, stop: StopSignal
) -> None:
    reconciler.reconcile_once()
    HostReconciler("h1", service, host, stop, ReconcileTiming()).reconcile_once()
    assert [kind for kind, _ in service.reports] == ["confirmed", "confirmed"]


@pytest.mark.usefixtures("two_clusters")
def test_refused_guests_and_failed_removals_delay_no_other_cluster(
    reconciler: HostReconciler, service: FakeElementApi, host: FakeManagedHost
) -> None:
    host.observed = ObservedHost((*host.observed.segments, ObservedSegment("gone", 102, "eth0")))
    host.refuses = {"a", "gone"}
    reconciler.reconcile_once()
    assert service.reports == [("confirmed", 1)]
    assert [list(service.incomplete[0]), list(service.remaining[0])] == [["a"], ["gone"]]


@pytest.mark.usefixtures("two_clusters")
def test_a_refused_guest_beside_a_failed_build_is_not_confirmed(
    reconciler: HostReconciler, service: FakeElementApi, host: FakeManagedHost
) -> None:
    host.refuses = {"a", "b"}
    reconciler.reconcile_once()
    assert service.reports == [("error", 1)]
    assert service.errors_by_cluster == [
        {
            "a": "could not start g1: the kernel refused",
            "b": "could not build VLAN 101 on eth0: the kernel refused",
        }
    ]


@pytest.fixture
def reset(
    reconciler: HostReconciler, service: FakeElementApi, host: FakeManagedHost, make_segment: Make, two_clusters: None
) -> Segment:
    """Both clusters run. Then SBF wants a reset of a's guest, and the new cluster c. The host refuses steps of a."""
    host.refuses = set()
    reconciler.reconcile_once()
    first, second = service.document.wanted.segments
    changed = first.model_copy(update={"guests": (first.guests[0].model_copy(update={"starts": 1}),)})
    service.want(changed, second, make_segment("c", 102))
    host.refuses = {"a"}
    return changed


def test_a_wanted_guest_that_cannot_stop_delays_no_other_cluster(
    reconciler: HostReconciler, service: FakeElementApi, reset: Segment
) -> None:
    reconciler.reconcile_once()
    assert service.reports == [("confirmed", 1), ("confirmed", 2)]
    assert service.incomplete[1] == {"a": "could not stop g1: the kernel refused"}


def test_a_failed_removal_prevents_confirmation_if_guests_cannot_stop(
    reconciler: HostReconciler, service: FakeElementApi, host: FakeManagedHost, reset: Segment
) -> None:
    """SBF has changed the cluster's VLAN ID. After a confirmation, SBF would free the former VLAN ID."""
    service.want(reset.model_copy(update={"vlan": 103}))
    reconciler.reconcile_once()
    assert service.reports == [("confirmed", 1), ("error", 3)]
    assert "could not remove VLAN 100" in service.messages[-1]


def test_a_network_is_corrected_although_a_wanted_guest_cannot_stop(
    reconciler: HostReconciler, service: FakeElementApi, host: FakeManagedHost, reset: Segment
) -> None:
    host.refuses_stops, host.refuses = True, set()
    first, second = host.observed.segments
    host.observed = replace(host.observed, segments=(replace(first, faults=("br100 is down",)), second))
    reconciler.reconcile_once()
    assert [str(step) for step in host.steps][-2:] == [
        "build VLAN 100 on eth0 (br100 is down)",
        "build VLAN 102 on eth0",
    ]
    assert service.incomplete[-1] == {"a": "could not stop g1: the kernel refused"}


def test_a_leaving_members_guest_that_cannot_stop_is_not_confirmed_as_removed(
    reconciler: HostReconciler,
    service: FakeElementApi,
    host: FakeManagedHost,
    make_segment: Make,
    make_guest: Callable[..., GuestWanted],
) -> None:
    """After a confirmation without ``remaining``, SBF would regard the member as removed although its guest runs."""
    network = make_segment("a", 100, ("g1",))
    service.want(with_members(network, make_guest, "m1"))
    reconciler.reconcile_once()
    service.want(network)
    host.refuses_stops = True
    reconciler.reconcile_once()
    assert service.remaining == [{}, {"a": "could not stop of-m1: the kernel refused"}]


def test_a_refused_segment_starts_no_members_guest(
    reconciler: HostReconciler,
    service: FakeElementApi,
    host: FakeManagedHost,
    make_segment: Make,
    make_guest: Callable[..., GuestWanted],
) -> None:
    host.refuses = {"a"}
    service.want(with_members(make_segment("a", 100), make_guest, "m1"))
    reconciler.reconcile_once()
    assert (host.steps, service.messages) == (
        [],
        ["cluster key-a: could not build VLAN 100 on eth0: the kernel refused"],
    )


def test_a_leaving_member_removes_only_its_guest(
    reconciler: HostReconciler,
    service: FakeElementApi,
    host: FakeManagedHost,
    make_segment: Make,
    make_guest: Callable[..., GuestWanted],
) -> None:
    without_member = make_segment("a", 100, ("g1",))
    service.want(with_members(without_member, make_guest, "m1"))
    reconciler.reconcile_once()
    del host.steps[:]
    service.want(without_member)
    reconciler.reconcile_once()
    assert [str(step) for step in host.steps] == ["stop of-m1"]


def test_a_success_restarts_the_count_of_refusals(
    reconciler: HostReconciler, service: FakeElementApi, host: FakeManagedHost, make_segment: Make
) -> None:
    service.want(make_segment("a", 100))
    for refuses in ({"a"}, {"a"}, set(), {"a"}, {"a"}):
        host.refuses, host.observed = refuses, ObservedHost()
        reconciler.reconcile_once()
    assert service.refused == [{}, {}, {}, {}]


def test_a_revision_is_confirmed_when_its_error_is_gone(
    reconciler: HostReconciler, service: FakeElementApi, host: FakeManagedHost, make_segment: Make
) -> None:
    host.refuses = {"a"}
    service.want(make_segment("a", 100))
    reconciler.reconcile_once()
    host.refuses = set()
    reconciler.reconcile_once()
    assert service.reports == [("error", 1), ("confirmed", 1)]


def test_a_failed_cluster_leaves_nothing_after_its_removal(
    reconciler: HostReconciler, service: FakeElementApi, host: FakeManagedHost, make_segment: Make
) -> None:
    host.refuses = {"a"}
    service.want(make_segment("a", 100))
    reconciler.reconcile_once()
    host.refuses = set()
    service.want()
    reconciler.reconcile_once()
    assert (host.observed, service.reports) == (ObservedHost(), [("error", 1), ("confirmed", 2)])


def test_an_internal_error_is_reported_and_retried(
    reconciler: HostReconciler, service: FakeElementApi, host: FakeManagedHost, make_segment: Make
) -> None:
    def fail(step: Step) -> None:
        raise TypeError("oops")

    host.apply = fail
    service.want(make_segment("a", 100))
    reconciler.reconcile_once()
    message = "internal error in the agent: TypeError: oops; see the agent's log"
    assert service.messages == [f"cluster key-a: could not build VLAN 100 on eth0: {message}"]


def test_an_internal_error_of_one_cluster_blocks_no_other(
    reconciler: HostReconciler, service: FakeElementApi, host: FakeManagedHost, make_segment: Make
) -> None:
    apply = host.apply

    def fail(step: Step) -> None:
        if step.cluster == "a":
            raise TypeError("oops")
        apply(step)

    host.apply = fail
    service.want(make_segment("a", 100), make_segment("b", 101))
    reconciler.reconcile_once()
    assert [step.cluster for step in host.steps] == ["b"]
