"""Tests that missing guests of the cluster that created a network do not concern the other clusters of the network.

A network is held if SBF requires that the host creates no part of the network (`UNCHECKED_NETWORK`).
"""

from collections.abc import Callable

import pytest
from fake_machine import FakeElementApi, FakeManagedHost

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
