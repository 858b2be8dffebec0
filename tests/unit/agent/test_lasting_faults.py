from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

import pytest
from support.fake_machine import FakeElementApi, FakeManagedHost

from virtcloud.agent.gateway.outside_difference import ObservedOutside, find_outside_faults
from virtcloud.agent.network import names
from virtcloud.agent.reconciler import HostReconciler, ReconcileTiming
from virtcloud.agent.supervision import StopSignal
from virtcloud.model.wanted import Segment

Make = Callable[..., Segment]
PORT = names.guest_port_name("a", "g1", 100)
WITHOUT_PORT = (
    f"guest g1 runs without a network: expected its port {PORT} on the host, found none (another program deleted the "
    "port, or root deleted eth0 in the container); reset the guest: virtcloud guest reset key-a g1"
)


def show_interfaces(host: FakeManagedHost, *interfaces: str) -> None:
    (segment,) = host.observed.segments
    host.observed = replace(host.observed, segments=(replace(segment, mtus=dict.fromkeys(interfaces, 1500)),))


class Clock:
    """A clock that the tests advance."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def reconciler(service: FakeElementApi, host: FakeManagedHost, stop: StopSignal, clock: Clock) -> HostReconciler:
    return HostReconciler("h1", service, host, stop, ReconcileTiming(), clock=clock)


@pytest.fixture
def running(reconciler: HostReconciler, service: FakeElementApi, host: FakeManagedHost, make_segment: Make) -> None:
    """Start the guest ``g1`` of the cluster ``a``, and confirm the cluster."""
    service.want(make_segment("a", 100, ("g1",)))
    reconciler.reconcile_once()
    show_interfaces(host, "eth0.100", "br100", PORT)
    reconciler.reconcile_once()


@pytest.mark.usefixtures("running")
def test_a_guest_without_its_port_is_reported_while_it_lasts(
    reconciler: HostReconciler, service: FakeElementApi, host: FakeManagedHost, clock: Clock
) -> None:
    show_interfaces(host, "eth0.100", "br100")
    reconciler.reconcile_once()
    for _ in range(2):
        clock.now += 10
        reconciler.reconcile_once()
    assert service.incomplete == [{}, {"a": WITHOUT_PORT}]
    show_interfaces(host, "eth0.100", "br100", PORT)
    reconciler.reconcile_once()
    assert (service.incomplete[2:], service.reports) == ([{}], [("confirmed", 1)] * 3)


@pytest.mark.usefixtures("running")
def test_a_container_that_briefly_lacks_its_port_is_no_fault(
    reconciler: HostReconciler, service: FakeElementApi, host: FakeManagedHost, clock: Clock
) -> None:
    """The agent reports a missing port only after all readings have lacked the port for 10 s (``PORT_S``)."""
    for _ in range(2):
        show_interfaces(host, "eth0.100", "br100")
        for _ in range(4):
            reconciler.reconcile_once()
            clock.now += 3
        show_interfaces(host, "eth0.100", "br100", PORT)
        reconciler.reconcile_once()
    assert service.incomplete == [{}]


def test_a_guest_without_its_port_leaves_other_clusters_complete(
    reconciler: HostReconciler, service: FakeElementApi, host: FakeManagedHost, make_segment: Make, clock: Clock
) -> None:
    network = make_segment("a", 100, ("g1", "g2"))
    of_member = network.guests[1].model_copy(update={"cluster": "m1"})
    members = {"guests": (network.guests[0], of_member), "members": {"m1": "key-m1"}}
    service.want(network.model_copy(update=members), make_segment("b", 101))
    reconciler.reconcile_once()
    first, second = host.observed.segments
    interfaces = dict.fromkeys(("eth0.100", "br100", PORT), 1500)
    host.observed = replace(host.observed, segments=(replace(first, mtus=interfaces), second))
    for _ in range(2):
        reconciler.reconcile_once()
        clock.now += 10
    assert [incomplete.keys() for incomplete in service.incomplete] == [set(), {"m1"}]
    assert "virtcloud guest reset key-m1 g2" in service.incomplete[1]["m1"]


def make_routed(make_segment: Make, *networks: str, **changes: Any) -> Segment:
    destination = {"name": "archive", "networks": networks, "ports": ["tcp/443"]}
    router = {"addresses": ["10.0.0.250/24"], "link": {"interface": "eth1"}, "destinations": [destination]}
    document = make_segment().model_dump(mode="json") | {"router": router, "gateway_addresses": ["10.0.0.246/24"]}
    return Segment.model_validate(document | changes)


def test_a_missing_outside_interface_is_reported(make_segment: Make) -> None:
    segment = make_routed(make_segment, "192.0.2.0/24")
    (fault,) = find_outside_faults(segment, ObservedOutside({}, {"eth0": True}))
    assert fault == (
        "the interface eth1, named by `outside` of this gateway in the topology, is missing: add or rename the "
        "interface, or correct the topology"
    )


def test_outside_interfaces_are_unknown_before_the_packet_filter_exists(make_segment: Make) -> None:
    assert list(find_outside_faults(make_routed(make_segment, "192.0.2.0/24"), ObservedOutside())) == []


PUBLICATION = {
    "address": "2001:db8::1",
    "port": 40000,
    "interface": "eth1",
    "guest": "g1",
    "guest_address": "fd00::5",
    "guest_port": 80,
    "expires_at": datetime(2026, 1, 1, tzinfo=UTC).isoformat(),
}


@pytest.mark.parametrize(
    ("networks", "publications", "users"),
    [
        (["2001:db8:5::/48"], [], "destination archive"),
        (["2001:db8:5::/48", "192.0.2.0/24"], [], None),
        (["192.0.2.0/24"], [PUBLICATION], "port 40000 of 2001:db8::1"),
    ],
)
def test_missing_ipv6_forwarding_is_reported_if_it_is_needed(
    make_segment: Make, networks: list[str], publications: list[object], users: str | None
) -> None:
    """If a destination has IPv4 networks and IPv6 networks, guests reach the destination by IPv4."""
    segment = make_routed(make_segment, *networks, publications=publications)
    faults = list(find_outside_faults(segment, ObservedOutside({}, {"eth1": True}, forwards_ipv6=False)))
    assert [fault.partition(", got 0")[0] for fault in faults] == (
        [f"expected net.ipv6.conf.all.forwarding=1 on this gateway, because {users} need IPv6"] if users else []
    )
