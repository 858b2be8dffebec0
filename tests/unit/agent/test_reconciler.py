"""Tests of the reconciler with an SBF and a host in memory."""

import threading
from collections.abc import Callable, Mapping
from dataclasses import replace

import pytest
from fake_machine import FakeElementApi, FakeManagedHost

from virtcloud import __version__
from virtcloud.agent.network.observed_filters import ObservedFilters
from virtcloud.agent.observed_host import ObservedHost
from virtcloud.agent.reconciler import HostReconciler, ReconcileTiming
from virtcloud.agent.steps import Step
from virtcloud.agent.supervision import StopSignal
from virtcloud.client.call_headers import call_headers
from virtcloud.model.call_context import CallContext
from virtcloud.model.errors import AnswerUnreadable, NotFound, ServiceUnreachable, VirtcloudError
from virtcloud.model.wanted import GuestWanted, Segment

Make = Callable[..., Segment]


@pytest.fixture
def service() -> FakeElementApi:
    return FakeElementApi()


@pytest.fixture
def host() -> FakeManagedHost:
    return FakeManagedHost()


@pytest.fixture
def waits() -> list[float]:
    return []


class RecordingEvent(threading.Event):
    """An event whose ``wait`` returns immediately and records its timeout."""

    def __init__(self, waits: list[float]) -> None:
        super().__init__()
        self._slept = waits

    def wait(self, timeout: float | None = None) -> bool:
        self._slept.append(timeout or 0)
        return self.is_set()


@pytest.fixture
def stop() -> StopSignal:
    return StopSignal()


@pytest.fixture
def reconciler(service: FakeElementApi, host: FakeManagedHost, stop: StopSignal, waits: list[float]) -> HostReconciler:
    timing = ReconcileTiming(check_s=30, retry_first_s=0.5, retry_most_s=4)
    return HostReconciler("h1", service, host, stop, timing, RecordingEvent(waits), jitter=lambda: 0)


def test_a_wanted_segment_is_built_and_confirmed(
    reconciler: HostReconciler, service: FakeElementApi, host: FakeManagedHost, make_segment: Make
) -> None:
    service.want(make_segment("a", 100, ("g1",)))
    reconciler.reconcile_once()
    assert ([str(step) for step in host.steps], service.reports) == (
        ["build VLAN 100 on eth0", "start g1"],
        [("confirmed", 1)],
    )


def test_logs_and_calls_have_the_request_ids_of_the_changes(
    reconciler: HostReconciler, service: FakeElementApi, make_segment: Make, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO", "virtcloud.agent")
    sent: list[dict[str, str]] = []
    confirm = service.confirm
    service.confirm = lambda *a, **k: (sent.append(call_headers()), confirm(*a, **k))  # type: ignore[method-assign,assign,func-returns-value]
    service.want(make_segment("a", 100, ("g1",)))
    calls = (CallContext(request_id="job-7.pbs-1"), CallContext(request_id="job-8.pbs-1"))
    service.document = service.document.model_copy(update={"calls": calls})
    reconciler.reconcile_once()
    assert [line for line in caplog.messages if line.startswith("confirmed ")] == [
        "confirmed element=h1 revision=1 request=job-7.pbs-1,job-8.pbs-1"
    ]
    assert sent == [{"X-Request-ID": "job-7.pbs-1,job-8.pbs-1"}]
    assert call_headers() == {}


def test_a_segment_with_unknown_requirements_is_refused(
    reconciler: HostReconciler, service: FakeElementApi, host: FakeManagedHost, make_segment: Make
) -> None:
    strict = make_segment("a", 100, ("g1",)).model_copy(update={"requires": ("strict-filters",)})
    service.want(strict, make_segment("b", 101))
    for _ in range(3):
        reconciler.reconcile_once()
    assert [str(step) for step in host.steps] == ["build VLAN 101 on eth0"]
    assert [kind for kind, _ in service.reports] == ["error"] * 3
    assert service.refused[-1].keys() == {"a"}
    assert (
        "SBF requires strict-filters, unknown to this agent (virtcloud 0.2.0): upgrade the agent"
        in (service.messages[-1])
    )


def test_unknown_new_requirements_stop_no_guest_and_are_unconfirmed(
    reconciler: HostReconciler, service: FakeElementApi, host: FakeManagedHost, make_segment: Make
) -> None:
    service.want(make_segment("a", 100, ("g1",)))
    reconciler.reconcile_once()
    before = host.observed
    service.want(make_segment("a", 100, ("g1",)).model_copy(update={"requires": ("strict-filters",)}))
    reconciler.reconcile_once()
    assert (host.observed, service.reports) == (before, [("confirmed", 1), ("error", 2)])


def test_filters_are_set_and_removed_with_the_guests(
    reconciler: HostReconciler, service: FakeElementApi, host: FakeManagedHost, make_segment: Make
) -> None:
    host.observed = ObservedHost(filters=ObservedFilters())
    service.want(make_segment("a", 100, ("g1",)))
    reconciler.reconcile_once()
    service.want()
    reconciler.reconcile_once()
    assert [str(step) for step in host.steps] == [
        "filter the frames of 1 guest",
        "build VLAN 100 on eth0",
        "start g1",
        "stop g1",
        "remove VLAN 100",
        "filter the frames of 0 guests",
    ]
    assert (host.observed.filters, service.reports) == (ObservedFilters(), [("confirmed", 1), ("confirmed", 2)])


def test_no_guest_starts_on_a_port_without_filters(
    reconciler: HostReconciler, service: FakeElementApi, host: FakeManagedHost, make_segment: Make
) -> None:
    """The second guest belongs to a member of the network, and does not start either."""
    host.observed, host.refuses_filters = ObservedHost(filters=ObservedFilters()), True
    network = make_segment("a", 100, ("g1", "g2"))
    of_member = network.guests[1].model_copy(update={"cluster": "m1"})
    service.want(network.model_copy(update={"guests": (network.guests[0], of_member)}), make_segment("b", 101))
    reconciler.reconcile_once()
    assert [str(step) for step in host.steps] == ["build VLAN 101 on eth0"]
    assert service.errors_by_cluster == [{"a": "could not filter the frames of 2 guests: the kernel refused"}]


def test_filters_that_somebody_removed_are_drift(
    reconciler: HostReconciler, service: FakeElementApi, host: FakeManagedHost, make_segment: Make
) -> None:
    host.observed = ObservedHost(filters=ObservedFilters())
    service.want(make_segment("a", 100, ("g1",)))
    reconciler.reconcile_once()
    host.observed = replace(host.observed, filters=ObservedFilters())
    reconciler.reconcile_once()
    assert service.reports == [("confirmed", 1), ("drifted", 1), ("confirmed", 1)]


def test_a_revision_without_difference_is_confirmed(
    reconciler: HostReconciler, service: FakeElementApi, host: FakeManagedHost
) -> None:
    service.want()
    reconciler.reconcile_once()
    assert (host.steps, service.reports) == ([], [("confirmed", 1)])


def test_a_confirmed_revision_is_not_confirmed_again(
    reconciler: HostReconciler, service: FakeElementApi, make_segment: Make
) -> None:
    service.want(make_segment("a", 100))
    reconciler.reconcile_once()
    reconciler.reconcile_once()
    assert service.reports == [("confirmed", 1)]


def test_only_the_first_fetch_returns_immediately(reconciler: HostReconciler, service: FakeElementApi) -> None:
    service.want()
    reconciler.reconcile_once()
    reconciler.reconcile_once()
    assert service.polls == [(None, 30), (1, 30)]


def test_a_revision_that_is_not_read_back_is_not_confirmed(
    reconciler: HostReconciler, service: FakeElementApi, host: FakeManagedHost, make_segment: Make
) -> None:
    host.ignores_steps = True
    service.want(make_segment("a", 100))
    reconciler.reconcile_once()
    assert service.reports == [("error", 1)]
    assert service.messages == [
        "cluster key-a: after all steps, the host still differs from the wanted state: build VLAN 100 on eth0"
    ]


def test_a_guest_that_ends_at_once_is_named_with_its_console(
    reconciler: HostReconciler, service: FakeElementApi, host: FakeManagedHost, make_segment: Make
) -> None:
    service.want(make_segment("a", 100))
    reconciler.reconcile_once()
    host.ignores_steps = True
    service.want(make_segment("a", 100, ("g1",)))
    reconciler.reconcile_once()
    assert service.incomplete[-1]["a"].startswith(
        "guest g1 ended: expected an image whose first program continues to run; read the console: virtcloud guest log "
        "key-a g1; "
    )


def test_drift_is_reported_before_it_is_corrected(
    reconciler: HostReconciler, service: FakeElementApi, host: FakeManagedHost, make_segment: Make
) -> None:
    service.want(make_segment("a", 100))
    reconciler.reconcile_once()
    host.observed = ObservedHost()
    reconciler.reconcile_once()
    assert service.reports == [("confirmed", 1), ("drifted", 1), ("confirmed", 1)]


def test_a_restarted_empty_host_reports_drift(
    service: FakeElementApi, host: FakeManagedHost, stop: StopSignal, make_segment: Make
) -> None:
    service.want(make_segment("a", 100))
    service.document = service.document.model_copy(update={"confirmed_revision": 1})
    HostReconciler("h1", service, host, stop, ReconcileTiming()).reconcile_once()
    assert service.reports == [("drifted", 1), ("confirmed", 1)]


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
    assert service.polls == [(1, 1.0)], "without the call, the pause would be four seconds"


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
    """Add a guest of each member to a network's segment."""
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


def test_a_removed_cluster_that_failed_leaves_nothing(
    reconciler: HostReconciler, service: FakeElementApi, host: FakeManagedHost, make_segment: Make
) -> None:
    host.refuses = {"a"}
    service.want(make_segment("a", 100))
    reconciler.reconcile_once()
    host.refuses = set()
    service.want()
    reconciler.reconcile_once()
    assert (host.observed, service.reports) == (ObservedHost(), [("error", 1), ("confirmed", 2)])


def test_an_unreachable_sbf_changes_nothing_on_the_host(
    reconciler: HostReconciler, service: FakeElementApi, host: FakeManagedHost, waits: list[float], make_segment: Make
) -> None:
    service.want(make_segment("a", 100, ("g1",)))
    reconciler.reconcile_once()
    before = host.observed
    service.error = ServiceUnreachable("gone")
    for _ in range(5):
        reconciler.reconcile_once()
    assert (host.observed, waits) == (before, [0.5, 1.0, 2.0, 4.0, 4.0])


def test_an_unreadable_wanted_document_is_reported_to_sbf(
    reconciler: HostReconciler, service: FakeElementApi, host: FakeManagedHost, monkeypatch: pytest.MonkeyPatch
) -> None:
    service.want()
    reconciler.reconcile_once()
    monkeypatch.setattr(service, "wanted", _raise(AnswerUnreadable("SBF …", "wanted.segments.0.x: expected a list")))
    reconciler.reconcile_once()
    assert (service.reports, host.steps) == ([("confirmed", 1), ("error", 1)], [])
    assert service.messages[0] == (
        f"this agent (virtcloud {__version__}) cannot read the wanted document: wanted.segments.0.x: expected a list; "
        "the host keeps its clusters and guests, but gets no changes: upgrade the agent to SBF's version"
    )


def _raise(error: VirtcloudError) -> Callable[..., None]:
    def fail(*_arguments: object) -> None:
        raise error

    return fail


def test_a_report_that_is_no_longer_true_is_cleared(
    reconciler: HostReconciler, service: FakeElementApi, host: FakeManagedHost
) -> None:
    service.want()
    reconciler.reconcile_once()
    host.observed = replace(host.observed, hypervisor_errors=("libvirt does not answer",))
    reconciler.reconcile_once()
    host.observed = replace(host.observed, hypervisor_errors=())
    for _ in range(2):
        reconciler.reconcile_once()
    assert service.reports == [("confirmed", 1), ("error", 1), ("confirmed", 1)]


def test_a_restarted_agent_clears_the_report_of_its_predecessor(
    service: FakeElementApi, host: FakeManagedHost, stop: StopSignal
) -> None:
    service.want()
    for _ in range(2):
        HostReconciler("h1", service, host, stop, ReconcileTiming()).reconcile_once()
    assert service.reports == [("confirmed", 1), ("confirmed", 1)]


def test_a_lost_confirmation_is_sent_again(
    reconciler: HostReconciler, service: FakeElementApi, host: FakeManagedHost, make_segment: Make
) -> None:
    class LosesFirstConfirmation(FakeElementApi):
        def confirm(self, element: str, revision: int, *exceptions: Mapping[str, str] | None) -> None:
            if not self.reports:
                self.reports.append(("lost", revision))
                raise ServiceUnreachable("gone")
            super().confirm(element, revision, *exceptions)

    losing = LosesFirstConfirmation()
    losing.want(make_segment("a", 100))
    losing_reconciler = HostReconciler("h1", losing, host, StopSignal(), ReconcileTiming(), RecordingEvent([]))
    losing_reconciler.reconcile_once()
    losing_reconciler.reconcile_once()
    assert losing.reports == [("lost", 1), ("confirmed", 1)]


def test_an_element_unknown_to_sbf_is_retried(
    reconciler: HostReconciler, service: FakeElementApi, waits: list[float]
) -> None:
    service.error = NotFound("element h1 is not known")
    reconciler.reconcile_once()
    assert waits == [0.5]


def test_an_internal_error_is_reported_and_retried(
    reconciler: HostReconciler, service: FakeElementApi, host: FakeManagedHost, make_segment: Make
) -> None:
    def fail(_step: Step) -> None:
        raise TypeError("oops")

    host.apply = fail
    service.want(make_segment("a", 100))
    reconciler.reconcile_once()
    message = "internal error in the agent: TypeError: oops; see the agent's log"
    assert service.messages == [f"cluster key-a: could not build VLAN 100 on eth0: {message}"]


def test_a_stop_request_takes_effect_between_two_steps(
    reconciler: HostReconciler, service: FakeElementApi, host: FakeManagedHost, stop: StopSignal, make_segment: Make
) -> None:
    apply = host.apply

    def apply_and_stop(step: Step) -> None:
        apply(step)
        stop.request()

    host.apply = apply_and_stop
    service.want(make_segment("a", 100, ("g1",)))
    reconciler.run()
    assert ([str(step) for step in host.steps], service.reports) == (["build VLAN 100 on eth0"], [])


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


def test_progress_is_reported_after_each_completed_piece_of_work(
    service: FakeElementApi, host: FakeManagedHost, make_segment: Make
) -> None:
    """While a step hangs, no progress is reported."""
    progress_reports: list[int] = []
    reports_before_step: list[int] = []
    apply = host.apply

    def apply_and_count(step: Step) -> None:
        reports_before_step.append(len(progress_reports))
        apply(step)

    host.apply = apply_and_count
    service.want(make_segment("a", 100, ("g1",)))
    HostReconciler(
        "h1", service, host, StopSignal(), ReconcileTiming(), progress=lambda: progress_reports.append(1)
    ).reconcile_once()
    assert (reports_before_step, len(progress_reports)) == ([1, 2], 4)


def test_a_fetch_of_one_clusters_image_delays_no_other(
    reconciler: HostReconciler, service: FakeElementApi, host: FakeManagedHost, make_segment: Make
) -> None:
    host.waits = {"a": "fetching image disk: 40 %"}
    service.want(make_segment("a", 100, ("g1",)), make_segment("b", 101, ("g1",)))
    reconciler.reconcile_once()
    assert [guest.cluster for guest in host.observed.guests] == ["b"]
    assert (service.reports, service.incomplete) == ([("confirmed", 1)], [{"a": "fetching image disk: 40 %"}])


def test_the_progress_of_a_fetch_is_reported_once_per_change(
    reconciler: HostReconciler, service: FakeElementApi, host: FakeManagedHost, make_segment: Make
) -> None:
    service.want(make_segment("a", 100, ("g1",)))
    for percent in (40, 40, 41):
        host.waits = {"a": f"fetching image disk: {percent} %"}
        reconciler.reconcile_once()
    host.waits = {}
    for _ in range(2):
        reconciler.reconcile_once()
    reported = [list(clusters.values()) for clusters in service.incomplete]
    assert reported == [["fetching image disk: 40 %"], ["fetching image disk: 41 %"], []]


def test_a_restart_during_a_fetch_is_no_drift(
    reconciler: HostReconciler, service: FakeElementApi, host: FakeManagedHost, make_segment: Make
) -> None:
    service.want(make_segment("a", 100, ("g1",)), make_segment("b", 101, ("g1",)))
    host.waits = {"a": "fetching image disk: 40 %"}
    for _ in range(3):
        reconciler.reconcile_once()
    assert [kind for kind, _ in service.reports] == ["confirmed"]


def test_a_bad_image_fails_its_cluster_despite_fetches_in_between(
    reconciler: HostReconciler, service: FakeElementApi, host: FakeManagedHost, make_segment: Make
) -> None:
    service.want(make_segment("a", 100, ("g1",)))
    for _ in range(3):
        host.waits, host.refuses = {"a": "fetching image disk: 0 %"}, set()
        reconciler.reconcile_once()
        host.waits, host.refuses = {}, {"a"}
        reconciler.reconcile_once()
    assert service.refused[-1].keys() == {"a"}


def test_a_failed_removal_delays_no_other_cluster(
    reconciler: HostReconciler, service: FakeElementApi, host: FakeManagedHost, make_segment: Make
) -> None:
    service.want(make_segment("a", 100))
    reconciler.reconcile_once()
    host.refuses = {"a"}
    service.want(make_segment("b", 101))
    reconciler.reconcile_once()
    assert (service.reports[-1], service.remaining[-1]) == (
        ("confirmed", 2),
        {"a": "could not remove VLAN 100: the kernel refused"},
    )


def test_a_failed_removal_is_retried_and_confirmed_once_removed(
    reconciler: HostReconciler, service: FakeElementApi, host: FakeManagedHost, make_segment: Make
) -> None:
    service.want(make_segment("a", 100))
    reconciler.reconcile_once()
    host.refuses = {"a"}
    service.want()
    for _ in range(3):
        reconciler.reconcile_once()
    host.refuses = set()
    reconciler.reconcile_once()
    assert service.reports == [("confirmed", 1), ("confirmed", 2), ("confirmed", 2)]
    assert [sorted(clusters) for clusters in service.remaining] == [[], ["a"], []]


def test_a_failed_removal_is_no_drift(
    reconciler: HostReconciler, service: FakeElementApi, host: FakeManagedHost, stop: StopSignal, make_segment: Make
) -> None:
    service.want(make_segment("a", 100))
    reconciler.reconcile_once()
    host.refuses = {"a"}
    service.want()
    reconciler.reconcile_once()
    HostReconciler("h1", service, host, stop, ReconcileTiming()).reconcile_once()
    assert "drifted" not in [kind for kind, _ in service.reports]


def test_a_failed_removal_confirms_no_failed_cluster(
    reconciler: HostReconciler, service: FakeElementApi, host: FakeManagedHost, make_segment: Make
) -> None:
    service.want(make_segment("a", 100))
    reconciler.reconcile_once()
    host.refuses = {"a", "b"}
    service.want(make_segment("b", 101))
    reconciler.reconcile_once()
    assert service.reports[-1] == ("error", 2)


def test_an_unbuilt_segment_is_not_confirmed_beside_a_failed_removal(
    reconciler: HostReconciler, service: FakeElementApi, host: FakeManagedHost, make_segment: Make
) -> None:
    service.want(make_segment("a", 100))
    reconciler.reconcile_once()
    host.refuses, host.ignores_steps = {"a"}, True
    service.want(make_segment("b", 101))
    reconciler.reconcile_once()
    assert service.reports[-1] == ("error", 2)


def test_a_former_sbf_receives_a_failed_removal_as_an_error(
    reconciler: HostReconciler, service: FakeElementApi, host: FakeManagedHost, make_segment: Make
) -> None:
    service.want(make_segment("a", 100))
    reconciler.reconcile_once()
    service.is_former_version, host.refuses = True, {"a"}
    service.want()
    reconciler.reconcile_once()
    assert service.reports == [("confirmed", 1), ("error", 2)]


def test_a_remaining_cluster_unknown_to_sbf_is_no_drift(
    reconciler: HostReconciler, service: FakeElementApi, host: FakeManagedHost, make_segment: Make
) -> None:
    service.want(make_segment("a", 100))
    reconciler.reconcile_once()
    host.refuses = {"a"}
    service.want()
    reconciler.reconcile_once()
    service.document = service.document.model_copy(update={"incomplete": ()})
    reconciler.reconcile_once()
    assert [kind for kind, _ in service.reports] == ["confirmed", "confirmed"]
