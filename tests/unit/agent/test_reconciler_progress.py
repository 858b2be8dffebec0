from collections.abc import Callable

from support.fake_machine import FakeElementApi, FakeManagedHost

from virtcloud.agent.reconciler import HostReconciler, ReconcileTiming
from virtcloud.agent.steps import StartGuest, Step
from virtcloud.agent.supervision import StopSignal
from virtcloud.model.errors import Refused
from virtcloud.model.wanted import Segment

Make = Callable[..., Segment]


def test_progress_is_reported_after_each_completed_piece_of_work(
    service: FakeElementApi, host: FakeManagedHost, make_segment: Make
) -> None:
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


def test_an_image_fetch_for_one_cluster_delays_no_other_cluster(
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


def test_a_failed_start_is_described_once_beside_a_fetch(
    reconciler: HostReconciler, service: FakeElementApi, host: FakeManagedHost, make_segment: Make
) -> None:
    apply = host.apply

    def refuse_first_guest(step: Step) -> None:
        if isinstance(step, StartGuest) and step.guest.name == "g1":
            raise Refused("the kernel refused")
        apply(step)

    host.apply = refuse_first_guest
    host.waits = {"a": "fetching image disk: 40 %"}
    service.want(make_segment("a", 100, ("g1", "g2")))
    reconciler.reconcile_once()
    assert service.incomplete == [{"a": "could not start g1: the kernel refused; fetching image disk: 40 %"}]


def test_a_pending_fetch_is_no_drift(
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
