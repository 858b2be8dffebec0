"""Tests of guests with the power "off" that the host cannot stop."""

from collections.abc import Callable
from dataclasses import replace

import pytest
from support.fake_machine import FakeElementApi, FakeManagedHost

from virtcloud.agent.reconciler import HostReconciler, ReconcileTiming
from virtcloud.agent.steps import Step, StopGuests
from virtcloud.agent.supervision import StopSignal
from virtcloud.model.wanted import GuestWanted, Segment

Make = Callable[..., Segment]
RETRY = "the agent tries again at least every 4 s; if the error stays, ask the host's administrator"
NOT_OFF = f"guest g1 should be off, but could not be stopped: the kernel refused; {RETRY}"


@pytest.fixture(params=[None, "m"])
def owner(request: pytest.FixtureRequest) -> str:
    """The cluster of the guest ``g1``: the cluster that created the network ``a``, or its member ``m``."""
    return request.param or "a"


def with_power(network: Segment, **power: object) -> Segment:
    first, second = network.guests
    return network.model_copy(update={"guests": (first.model_copy(update=power), second)})


@pytest.fixture
def network(
    service: FakeElementApi,
    reconciler: HostReconciler,
    make_segment: Make,
    make_guest: Callable[..., GuestWanted],
    owner: str,
) -> Segment:
    """Two guests run in the network ``a`` with the member ``m``: ``g1`` belongs to ``owner``, ``g2`` to the other."""
    owners = {"g1": None if owner == "a" else "m", "g2": "m" if owner == "a" else None}
    guests = tuple(make_guest(name, cluster=cluster) for name, cluster in owners.items())
    wanted = make_segment("a", 100).model_copy(update={"guests": guests, "members": {"m": "key-m"}})
    service.want(wanted)
    reconciler.reconcile_once()
    return wanted


@pytest.fixture
def stuck(
    network: Segment, service: FakeElementApi, host: FakeManagedHost, make_segment: Make, reconciler: HostReconciler
) -> Segment:
    """The host cannot stop ``g1``, whose power is "off". The cluster ``b`` is new on the host."""
    off = with_power(network, power="off")
    service.want(off, make_segment("b", 101, ("g3",)))
    host.refuses_stops = True
    reconciler.reconcile_once()
    return off


@pytest.mark.usefixtures("stuck")
def test_a_guest_that_does_not_stop_delays_only_its_cluster(service: FakeElementApi, owner: str) -> None:
    assert service.reports == [("confirmed", 1), ("confirmed", 2)]
    assert (service.incomplete[-1], service.remaining[-1]) == ({owner: NOT_OFF}, {})


@pytest.mark.usefixtures("stuck")
def test_the_confirmation_names_the_guest_that_still_runs(service: FakeElementApi, owner: str) -> None:
    assert service.unstopped == [{}, {owner: ("g1",)}]


@pytest.mark.usefixtures("stuck")
def test_a_guest_that_does_not_stop_is_no_drift(
    service: FakeElementApi, host: FakeManagedHost, stop: StopSignal, reconciler: HostReconciler
) -> None:
    reconciler.reconcile_once()
    HostReconciler("h1", service, host, stop, ReconcileTiming()).reconcile_once()
    assert {kind for kind, _ in service.reports} == {"confirmed"}


@pytest.mark.usefixtures("stuck")
def test_a_guest_that_stops_later_is_confirmed(
    service: FakeElementApi, host: FakeManagedHost, reconciler: HostReconciler
) -> None:
    host.refuses_stops = False
    reconciler.reconcile_once()
    assert (service.incomplete[-1], service.unstopped[-1]) == ({}, {})
    assert [guest.guest for guest in host.observed.guests] == ["g2", "g3"]


@pytest.mark.usefixtures("stuck")
def test_a_stop_is_retried_with_growing_pauses(service: FakeElementApi, reconciler: HostReconciler) -> None:
    before = len(service.polls)
    for _ in range(3):
        reconciler.reconcile_once()
    assert [wait for _, wait in service.polls[before : before + 2]] == [0.5, 1.0]


def test_an_earlier_sbf_gets_no_confirmation_while_the_guest_runs(
    network: Segment, service: FakeElementApi, host: FakeManagedHost, reconciler: HostReconciler
) -> None:
    """The earlier SBF would show the running guest as off."""
    service.is_former_version, host.refuses_stops = True, True
    service.want(with_power(network, power="off"))
    reconciler.reconcile_once()
    assert (service.reports, service.messages) == ([("confirmed", 1), ("error", 2)], [service.messages[0]])
    assert NOT_OFF in service.messages[0]


def test_a_stop_without_effect_is_not_confirmed(
    network: Segment, service: FakeElementApi, host: FakeManagedHost, reconciler: HostReconciler, owner: str
) -> None:
    host.ignores_steps = True
    service.want(with_power(network, power="off"))
    reconciler.reconcile_once()
    assert (list(service.incomplete[-1]), service.unstopped[-1]) == ([owner], {owner: ("g1",)})


def test_only_guests_that_still_run_are_named(
    service: FakeElementApi, reconciler: HostReconciler, host: FakeManagedHost, make_segment: Make
) -> None:
    """As libvirt can, the host stops ``g1``, but fails to stop ``g2`` in the same step."""
    running = make_segment("a", 100, ("g1", "g2"))
    service.want(running)
    reconciler.reconcile_once()
    off = tuple(guest.model_copy(update={"power": "off"}) for guest in running.guests)
    service.want(running.model_copy(update={"guests": off}))

    def apply(step: Step) -> None:
        host.refuses_stops = isinstance(step, StopGuests)
        host.observed = replace(host.observed, guests=host.observed.guests[-1:])
        former(step)

    former, host.apply = host.apply, apply
    reconciler.reconcile_once()
    assert service.unstopped[-1] == {"a": ("g2",)}


def test_a_stop_of_one_cluster_does_not_wait_for_anothers(
    network: Segment, service: FakeElementApi, host: FakeManagedHost, reconciler: HostReconciler
) -> None:
    """The host refuses one step for each cluster whose guest is off."""
    off = tuple(guest.model_copy(update={"power": "off"}) for guest in network.guests)
    service.want(network.model_copy(update={"guests": off}))
    host.refuses_stops = True
    reconciler.reconcile_once()
    assert sorted(service.unstopped[-1].values()) == [("g1",), ("g2",)]
