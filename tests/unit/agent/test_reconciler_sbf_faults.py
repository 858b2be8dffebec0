"""Tests of the reconciler with an SBF that does not answer, or whose answers are errors or unreadable."""

import threading
from collections.abc import Callable
from dataclasses import replace

import pytest
from support.fake_machine import FakeElementApi, FakeManagedHost

from virtcloud import __version__
from virtcloud.agent.network.observed_filters import ObservedFilters
from virtcloud.agent.observed_host import ObservedHost
from virtcloud.agent.reconciler import HostReconciler, ReconcileTiming
from virtcloud.agent.supervision import StopSignal
from virtcloud.model.errors import AnswerUnreadable, NotFound, Refused, ServiceUnreachable, TooManyRequests
from virtcloud.model.views import Confirmation
from virtcloud.model.wanted import Segment

Make = Callable[..., Segment]


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


def test_flushed_filters_are_set_again_without_sbf(
    reconciler: HostReconciler, service: FakeElementApi, host: FakeManagedHost, make_segment: Make
) -> None:
    host.observed = ObservedHost(filters=ObservedFilters())
    service.want(make_segment("a", 100, ("g1",)))
    reconciler.reconcile_once()
    before = host.observed
    host.observed = replace(host.observed, filters=ObservedFilters(), guests=())
    service.error = ServiceUnreachable("gone")
    reconciler.reconcile_once()
    assert (host.observed.filters, host.observed.guests) == (before.filters, ())


def test_an_unreadable_host_does_not_end_the_wait_for_sbf(
    reconciler: HostReconciler,
    service: FakeElementApi,
    host: FakeManagedHost,
    waits: list[float],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    service.want()
    reconciler.reconcile_once()
    service.error = ServiceUnreachable("gone")
    for error in (Refused("netlink: out of memory"), ValueError("unexpected")):
        monkeypatch.setattr(host, "read", _raise(error))
        reconciler.reconcile_once()
    assert waits == [0.5, 1.0]


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


def _raise(error: Exception) -> Callable[..., None]:
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


def test_a_lost_confirmation_is_sent_again(host: FakeManagedHost, make_segment: Make, wake: threading.Event) -> None:
    class LosesFirstConfirmation(FakeElementApi):
        def confirm(self, element: str, confirmation: Confirmation) -> None:
            if not self.reports:
                self.reports.append(("lost", confirmation.revision))
                raise ServiceUnreachable("gone")
            super().confirm(element, confirmation)

    losing = LosesFirstConfirmation()
    losing.want(make_segment("a", 100))
    losing_reconciler = HostReconciler("h1", losing, host, StopSignal(), ReconcileTiming(), wake)
    losing_reconciler.reconcile_once()
    losing_reconciler.reconcile_once()
    assert losing.reports == [("lost", 1), ("confirmed", 1)]


def test_a_long_retry_after_does_not_exceed_systemds_watchdog(
    service: FakeElementApi, host: FakeManagedHost, stop: StopSignal, wake: threading.Event, waits: list[float]
) -> None:
    """The pause is at most 150 s, because `WatchdogSec` is 180 s. The zeros in ``waits`` are reports of progress."""
    service.error = TooManyRequests("too many invalid tokens", 3600)
    reconciler = HostReconciler(
        "h1", service, host, stop, ReconcileTiming(), wake, lambda: waits.append(0), jitter=lambda: 1
    )
    reconciler.reconcile_once()
    assert waits == [0, 150, 0]


def test_an_element_unknown_to_sbf_is_retried(
    reconciler: HostReconciler, service: FakeElementApi, waits: list[float]
) -> None:
    service.error = NotFound("element h1 is not known")
    reconciler.reconcile_once()
    assert waits == [0.5]
