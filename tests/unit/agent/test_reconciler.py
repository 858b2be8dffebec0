from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
from support.fake_machine import FakeElementApi, FakeManagedHost

from virtcloud.agent.gateway.ssh_difference import ObservedSshd
from virtcloud.agent.gateway.vpn_difference import ObservedVpn, ObservedVpnServer
from virtcloud.agent.host_services.server_difference import ObservedServer
from virtcloud.agent.network import names
from virtcloud.agent.network.observed_filters import ObservedFilters
from virtcloud.agent.observed_host import ObservedHost, ObservedSegment
from virtcloud.agent.reconciler import HostReconciler, ReconcileTiming
from virtcloud.agent.steps import Step
from virtcloud.agent.supervision import StopSignal
from virtcloud.client.connection import call_headers
from virtcloud.model.call_context import CallContext
from virtcloud.model.vpn import VpnProtocol
from virtcloud.model.wanted import Segment

Make = Callable[..., Segment]


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

    def record_headers(*arguments: Any, **options: Any) -> None:
        sent.append(call_headers())
        confirm(*arguments, **options)

    service.confirm = record_headers
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
        "SBF requires strict-filters, unknown to this agent (virtcloud 0.3.0): upgrade the agent"
        in (service.messages[-1])
    )


def test_unknown_new_requirements_change_nothing_and_stay_unconfirmed(
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


def test_a_guest_that_ends_at_once_is_named(
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


def want_with_mtu(service: FakeElementApi, make_segment: Make) -> str:
    """Set SBF's wanted state to two clusters, one with an MTU and a guest. Return the name of the guest's port."""
    service.want(make_segment("a", 100, ("g1",)).model_copy(update={"mtu": 1450}), make_segment("b", 101))
    return names.guest_port_name("a", "g1", 100)


def change_mtus(host: FakeManagedHost, mtus: dict[str, int]) -> None:
    segment, other = host.observed.segments
    host.observed = replace(host.observed, segments=(replace(segment, mtus=mtus, uplink_mtu=1500), other))


def test_the_mtu_of_a_rebooted_containers_port_is_no_drift(
    reconciler: HostReconciler, service: FakeElementApi, host: FakeManagedHost, make_segment: Make
) -> None:
    """If root in a container reboots the container, the port is new. Other clusters must not become degraded."""
    port = want_with_mtu(service, make_segment)
    reconciler.reconcile_once()
    change_mtus(host, {"br100": 1450, port: 1500})
    reconciler.reconcile_once()
    assert str(host.steps[-1]) == f"build VLAN 100 on eth0 ({port} has MTU 1500, expected 1450)"
    assert service.reports == [("confirmed", 1)]


def test_a_wrong_mtu_of_a_bridge_is_drift(
    reconciler: HostReconciler, service: FakeElementApi, host: FakeManagedHost, make_segment: Make
) -> None:
    port = want_with_mtu(service, make_segment)
    reconciler.reconcile_once()
    change_mtus(host, {"br100": 1500, port: 1500})
    reconciler.reconcile_once()
    assert service.reports == [("confirmed", 1), ("drifted", 1), ("confirmed", 1)]


@pytest.mark.parametrize(
    ("observed", "is_drift"),
    [
        (ObservedHost(servers=(ObservedServer("a", None),)), False),
        (ObservedHost(servers=(ObservedServer("a", 100),)), True),
        (ObservedHost(vpn=ObservedVpn(remains=(VpnProtocol.UDP,))), False),
        (ObservedHost(vpn=ObservedVpn(servers=(ObservedVpnServer(VpnProtocol.UDP),))), True),
        (ObservedHost(sshd=ObservedSshd(has_remains=True)), False),
        (ObservedHost(sshd=ObservedSshd(config="digest")), True),
        (ObservedHost((ObservedSegment("a", 0, None, ("a renamed bridge of the cluster",)),)), False),
        (ObservedHost((ObservedSegment("a", 100, "eth0"),)), True),
    ],
)
def test_remains_are_no_drift(
    reconciler: HostReconciler,
    service: FakeElementApi,
    host: FakeManagedHost,
    observed: ObservedHost,
    *,
    is_drift: bool,
) -> None:
    """Agents of earlier versions left such remains on hosts that had confirmed their revision."""
    service.want()
    reconciler.reconcile_once()
    host.observed = observed
    reconciler.reconcile_once()
    assert [type(step) for step in host.steps] != []
    assert (("drifted", 1) in service.reports) is is_drift


@pytest.mark.parametrize("others", [(), ("br100 is down",)])
def test_a_renamed_bridge_beside_its_successor_is_no_drift(
    reconciler: HostReconciler,
    service: FakeElementApi,
    host: FakeManagedHost,
    make_segment: Make,
    others: tuple[str, ...],
) -> None:
    """Agents of earlier versions left such bridges. Drift would degrade all clusters of an upgraded host."""
    service.want(make_segment("a", 100))
    reconciler.reconcile_once()
    (segment,), renamed = host.observed.segments, ("moved is a renamed bridge of the cluster",)
    host.observed = replace(host.observed, segments=(replace(segment, faults=(*others, *renamed), renamed=renamed),))
    reconciler.reconcile_once()
    assert str(host.steps[-1]) == f"build VLAN 100 on eth0 ({', '.join((*others, *renamed))})"
    assert (("drifted", 1) in service.reports) is bool(others)


def test_a_restarted_empty_host_reports_drift(
    service: FakeElementApi, host: FakeManagedHost, stop: StopSignal, make_segment: Make
) -> None:
    service.want(make_segment("a", 100))
    service.document = service.document.model_copy(update={"confirmed_revision": 1})
    HostReconciler("h1", service, host, stop, ReconcileTiming()).reconcile_once()
    assert service.reports == [("drifted", 1), ("confirmed", 1)]


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
