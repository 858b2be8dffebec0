"""Tests that one cluster's faulty guests in a network do not concern the other clusters of the network and of the host.

A network is held if SBF requires that the host creates no part of the network (`UNCHECKED_NETWORK`).
"""

from collections.abc import Callable

import pytest
from support.fake_machine import FakeElementApi, FakeManagedHost

from virtcloud.agent.observed_host import ObservedHost, ObservedSegment
from virtcloud.agent.reconciler import HostReconciler
from virtcloud.model.wanted import UNCHECKED_NETWORK, GuestWanted, Segment

Make = Callable[..., Segment]
REFUSED = "could not start g1: the kernel refused"


@pytest.fixture
def network(make_segment: Make, make_guest: Callable[..., GuestWanted]) -> Segment:
    """The network of the cluster ``a`` with the guest ``g1``, which the cluster ``m`` with the guest ``g2`` joined."""
    segment = make_segment("a", 100, ("g1",))
    guests = (*segment.guests, make_guest("g2", cluster="m"))
    return segment.model_copy(update={"guests": guests, "members": {"m": "key-m"}})


@pytest.fixture(autouse=True)
def built(service: FakeElementApi, host: FakeManagedHost, network: Segment) -> None:
    service.want(network)
    host.observed = ObservedHost((ObservedSegment("a", 100, "eth0"),))


def test_a_failed_start_leaves_the_network_complete(
    reconciler: HostReconciler, service: FakeElementApi, host: FakeManagedHost
) -> None:
    host.refuses = {"a"}
    reconciler.reconcile_once()
    assert (service.incomplete, service.only_guests) == ([{"a": REFUSED}], [("a",)])


def test_a_pending_image_leaves_the_network_complete(
    reconciler: HostReconciler, service: FakeElementApi, host: FakeManagedHost
) -> None:
    host.waits = {"a": "fetching image disk: 40 %"}
    reconciler.reconcile_once()
    assert service.only_guests == [("a",)]


def test_a_guest_that_ended_leaves_the_network_complete(
    reconciler: HostReconciler, service: FakeElementApi, host: FakeManagedHost
) -> None:
    reconciler.reconcile_once()
    host.observed = ObservedHost(host.observed.segments, host.observed.guests[1:], filters=host.observed.filters)
    reconciler.reconcile_once()
    assert "guest g1 ended" in service.incomplete[-1]["a"]
    assert service.only_guests[-1] == ("a",)


def test_a_held_network_is_not_complete(reconciler: HostReconciler, service: FakeElementApi, network: Segment) -> None:
    service.want(network.model_copy(update={"requires": (UNCHECKED_NETWORK,)}))
    reconciler.reconcile_once()
    assert (list(service.incomplete[-1]), service.only_guests) == (["a", "m"], [()])


def test_a_network_step_without_effect_is_not_confirmed(
    reconciler: HostReconciler, service: FakeElementApi, host: FakeManagedHost
) -> None:
    host.observed, host.ignores_steps = ObservedHost(), True
    host.waits = {"a": "fetching image disk: 40 %"}
    reconciler.reconcile_once()
    assert [kind for kind, _ in service.reports] == ["error"]
    assert "still differs from the wanted state: build VLAN 100 on eth0" in service.messages[0]


def test_an_earlier_sbf_gets_the_confirmation_without_the_key(
    reconciler: HostReconciler, service: FakeElementApi, host: FakeManagedHost
) -> None:
    service.is_former_version, host.refuses = True, {"a"}
    reconciler.reconcile_once()
    assert (service.incomplete, service.only_guests) == ([{"a": REFUSED}], [()])


def leave(service: FakeElementApi, network: Segment) -> None:
    """Remove the cluster ``m`` from the network. The cluster ``b`` creates another network on the host."""
    other = network.model_copy(update={"id": "b", "key": "key-b", "vlan": 101, "guests": (), "members": {}})
    service.want(network.model_copy(update={"guests": network.guests[:1], "members": {}}), other)


@pytest.fixture
def stuck(reconciler: HostReconciler, service: FakeElementApi, host: FakeManagedHost, network: Segment) -> None:
    """The guest ``g2`` does not stop when its cluster leaves the network."""
    reconciler.reconcile_once()
    host.refuses_stops = True
    leave(service, network)
    reconciler.reconcile_once()


@pytest.mark.usefixtures("stuck")
def test_a_stuck_guest_that_leaves_delays_no_other_cluster(service: FakeElementApi) -> None:
    assert (service.reports[-1], service.incomplete[-1]) == (("confirmed", 2), {})


@pytest.mark.usefixtures("stuck")
def test_a_stuck_guest_that_leaves_is_no_drift(reconciler: HostReconciler, service: FakeElementApi) -> None:
    reconciler.reconcile_once()
    assert [kind for kind, _ in service.reports] == ["confirmed", "confirmed"]


@pytest.mark.usefixtures("stuck")
def test_a_stuck_guest_that_stops_later_is_confirmed(
    reconciler: HostReconciler, service: FakeElementApi, host: FakeManagedHost
) -> None:
    host.refuses_stops = False
    reconciler.reconcile_once()
    assert (service.reports[-1], service.remaining[-1]) == (("confirmed", 2), {})


def test_a_guest_that_stays_after_its_stop_counts_as_remaining(
    reconciler: HostReconciler, service: FakeElementApi, host: FakeManagedHost, network: Segment
) -> None:
    reconciler.reconcile_once()
    service.want(network.model_copy(update={"guests": network.guests[:1], "members": {}}))
    host.ignores_steps = True
    reconciler.reconcile_once()
    assert "stop g2" in service.remaining[-1]["a"]


def test_a_network_that_fails_is_not_confirmed_beside_a_stuck_guest(
    reconciler: HostReconciler, service: FakeElementApi, host: FakeManagedHost, network: Segment
) -> None:
    reconciler.reconcile_once()
    host.refuses = {"b"}
    host.refuses_stops = True
    leave(service, network)
    reconciler.reconcile_once()
    assert service.reports[-1] == ("error", 2)
