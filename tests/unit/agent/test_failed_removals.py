from collections.abc import Callable

from support.fake_machine import FakeElementApi, FakeManagedHost

from virtcloud.agent.reconciler import HostReconciler, ReconcileTiming
from virtcloud.agent.supervision import StopSignal
from virtcloud.model.wanted import Segment

Make = Callable[..., Segment]


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


def test_a_failed_cluster_is_not_confirmed_beside_a_failed_removal(
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


def test_an_earlier_sbf_receives_a_failed_removal_as_an_error(
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
