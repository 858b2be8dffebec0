"""Tests of the application of steps. Starts of guests are applied in parallel.

The last tests concern held networks. A network is held if SBF requires that the host creates no part of the network,
because the network's VLAN ID may still be in use elsewhere (`UNCHECKED_NETWORK`).
"""

import threading
import time
from collections.abc import Callable

import pytest
from support.fake_machine import FakeManagedHost

from virtcloud.agent.gateway.outside_difference import RouteOutside
from virtcloud.agent.gateway.ssh_difference import StopSshd
from virtcloud.agent.held_steps import split_held_steps
from virtcloud.agent.step_application import StepApplication, StepOutcomes, list_batches
from virtcloud.agent.steps import (
    BuildSegment,
    FilterGuests,
    RemoveSegment,
    StartGuest,
    Step,
    StepPending,
    StopGuests,
)
from virtcloud.agent.supervision import StopRequested, StopSignal
from virtcloud.model.errors import Refused
from virtcloud.model.wanted import UNCHECKED_NETWORK, Segment

Make = Callable[..., Segment]
TIMEOUT_S = 10


class StartingHost(FakeManagedHost):
    """A host that calls ``start`` for each guest, and records the guests whose start has ended."""

    def __init__(self, start: Callable[[str], object] = lambda _: None) -> None:
        super().__init__()
        self.start = start
        self.ended: list[str] = []

    def apply(self, step: Step) -> None:
        if isinstance(step, StartGuest):
            self.start(step.guest.name)
            self.ended.append(step.guest.name)


def apply(host: FakeManagedHost, segment: Segment, at_once: int, stop: StopSignal | None = None) -> StepOutcomes:
    steps = [StartGuest(segment, guest) for guest in segment.guests]
    return StepApplication("h1", host, stop or StopSignal(), lambda: None, at_once).apply(steps, {})


def test_guests_of_a_host_start_at_the_same_time(make_segment: Make) -> None:
    all_started = threading.Barrier(3)
    outcomes = apply(StartingHost(lambda _: all_started.wait(TIMEOUT_S)), make_segment("a", 100, ("g1", "g2", "g3")), 3)
    assert outcomes.errors == {}


def test_no_more_guests_start_at_once_than_permitted(make_segment: Make) -> None:
    running: set[str] = set()
    most: list[int] = []
    two = threading.Barrier(2)

    def start(name: str) -> None:
        running.add(name)
        most.append(len(running))
        two.wait(TIMEOUT_S)
        time.sleep(0.01)  # time for a third start
        running.remove(name)

    apply(StartingHost(start), make_segment("a", 100, tuple(f"g{number}" for number in range(6))), 2)
    assert max(most) == 2


def refuse_first(name: str) -> None:
    if name == "g1":
        raise Refused("no memory")


@pytest.mark.parametrize("at_once", [1, 3])
def test_a_guest_that_fails_does_not_prevent_other_starts(make_segment: Make, at_once: int) -> None:
    host = StartingHost(refuse_first)
    outcomes = apply(host, make_segment("a", 100, ("g1", "g2", "g3")), at_once)
    assert (sorted(host.ended), outcomes.errors) == (["g2", "g3"], {"a": "could not start g1: no memory"})


def test_guests_with_the_same_error_are_listed_together(make_segment: Make) -> None:
    host = FakeManagedHost()
    host.refuses = {"a"}
    assert apply(host, make_segment("a", 100, ("g1", "g2")), 2).errors == {
        "a": "could not start g1, start g2: the kernel refused"
    }


def test_all_networks_are_built_before_guests_start(make_segment: Make) -> None:
    one, two = make_segment("a", 100, ("g1",)), make_segment("b", 101, ("g1",))
    starts: list[Step] = [StartGuest(segment, segment.guests[0]) for segment in (one, two)]
    steps = [BuildSegment(one), starts[0], BuildSegment(two), starts[1]]
    assert list(list_batches(steps)) == [[BuildSegment(one)], [BuildSegment(two)], starts]


def test_after_a_stop_request_no_further_guest_starts(make_segment: Make) -> None:
    stop, both_started = StopSignal(), threading.Barrier(2)

    def start(_name: str) -> None:
        both_started.wait(TIMEOUT_S)
        stop.requested = True
        time.sleep(0.05)

    host = StartingHost(start)
    with pytest.raises(StopRequested):
        apply(host, make_segment("a", 100, ("g1", "g2", "g3", "g4")), 2, stop)
    assert sorted(host.ended) == ["g1", "g2"], "expected the agent to wait for the starts in progress"


def test_a_refused_start_is_recorded_although_another_is_pending(make_segment: Make) -> None:
    def start(name: str) -> None:
        refuse_first(name)
        raise StepPending("fetching image disk: 40 %")

    outcomes = apply(StartingHost(start), make_segment("a", 100, ("g1", "g2")), 2)
    assert (outcomes.refused, outcomes.pending) == ({"a"}, {"a": "fetching image disk: 40 %"})


@pytest.mark.parametrize(
    ("reasons", "text"),
    [
        (("fetching image a: 40 %", "fetching image b: 0 %"), "fetching image a: 40 %; fetching image b: 0 %"),
        (("fetching image a: 40 %", "fetching image a: 41 %"), "fetching image a: 41 %"),
        (("a", "b", "c", "d", "e"), "a; b; c; and 2 more"),
    ],
)
def test_several_pending_fetches_of_a_cluster_are_named(
    make_segment: Make, reasons: tuple[str, ...], text: str
) -> None:
    by_guest = {f"g{number}": reason for number, reason in enumerate(reasons)}

    def start(name: str) -> None:
        raise StepPending(by_guest[name])

    assert apply(StartingHost(start), make_segment("a", 100, tuple(by_guest)), 2).pending == {"a": text}


def test_progress_is_reported_after_each_start(make_segment: Make) -> None:
    progress: list[int] = []
    segment = make_segment("a", 100, ("g1", "g2", "g3"))
    steps = [StartGuest(segment, guest) for guest in segment.guests]
    StepApplication("h1", StartingHost(), StopSignal(), lambda: progress.append(1), 3).apply(steps, {})
    assert len(progress) == 3


class HostWithStuckGuest(StartingHost):
    """Refuses `StopGuests` steps and steps of the type ``refused``. Records the clusters whose guests get filters."""

    def __init__(self, refused: type[StopGuests | FilterGuests] = StopGuests) -> None:
        super().__init__()
        self.refused = refused
        self.filtered: list[str] = []

    def apply(self, step: Step) -> None:
        if isinstance(step, StopGuests | self.refused):
            raise Refused("the kernel refused")
        if isinstance(step, FilterGuests):
            self.filtered.append(step.cluster)
        super().apply(step)


@pytest.mark.parametrize("refused", [StopGuests, FilterGuests])
def test_no_member_starts_on_a_network_without_bridge_or_filters(
    make_segment: Make, refused: type[StopGuests | FilterGuests]
) -> None:
    network = make_segment("a", 100, ("g1",))
    guest = network.guests[0].model_copy(update={"cluster": "m"})
    host = HostWithStuckGuest(refused)
    steps: list[Step] = [
        StopGuests("a", ("g0",)),
        FilterGuests("a", ()),
        BuildSegment(network),
        StartGuest(network, guest),
    ]
    assert steps[-1].cluster == "m"
    StepApplication("h1", host, StopSignal(), lambda: None).apply(steps, {})
    assert host.ended == []


def test_filters_are_set_although_a_guest_does_not_stop() -> None:
    host = HostWithStuckGuest()
    steps: list[Step] = [StopGuests("a", ("g0",)), FilterGuests("a", ())]
    StepApplication("h1", host, StopSignal(), lambda: None).apply(steps, {})
    assert host.filtered == ["a"]


def test_an_error_of_routing_prevents_no_step_of_sshd() -> None:
    class HostWithoutLink(FakeManagedHost):
        def apply(self, step: Step) -> None:
            if isinstance(step, RouteOutside):
                raise Refused("the interface eth9 is missing")
            self.steps.append(step)

    host = HostWithoutLink()
    outcomes = StepApplication("gw", host, StopSignal(), lambda: None).apply([RouteOutside(()), StopSshd()], {})
    assert host.steps == [StopSshd()]
    assert outcomes.errors == {"": "could not route 0 networks to the outside: the interface eth9 is missing"}


def test_only_a_held_network_is_not_set_up(make_segment: Make) -> None:
    held = make_segment("a", 100, ("g1",)).model_copy(update={"requires": (UNCHECKED_NETWORK,)})
    other = make_segment("b", 101, ("g2",))
    steps: list[Step] = [
        BuildSegment(held),
        StartGuest(held, held.guests[0]),
        BuildSegment(other),
        StartGuest(other, other.guests[0]),
    ]
    permitted, reasons = split_held_steps(steps)
    assert (permitted, set(reasons)) == (steps[2:], {"a"})


def test_a_guest_whose_restart_is_held_is_not_stopped(make_segment: Make) -> None:
    held = make_segment("a", 100, ("g1", "g2")).model_copy(update={"requires": (UNCHECKED_NETWORK,)})
    restart: list[Step] = [StopGuests("a", ("g1",), ("g1",)), StartGuest(held, held.guests[0])]
    permitted, reasons = split_held_steps(restart)
    assert (permitted, set(reasons)) == ([], {"a"})


def test_unwanted_guests_of_a_held_network_stop_without_the_others(make_segment: Make) -> None:
    held = make_segment("a", 100, ("g1", "g2")).model_copy(update={"requires": (UNCHECKED_NETWORK,)})
    both = ("g1", "g2")
    (step,) = split_held_steps([StopGuests("a", ("g0", *both), both), StartGuest(held, held.guests[0])])[0]
    assert step == StopGuests("a", ("g0", "g2"), ("g2",))


def test_guests_stop_before_their_held_segment_is_removed(make_segment: Make) -> None:
    held = make_segment("a", 100, ("g1",)).model_copy(update={"requires": (UNCHECKED_NETWORK,)})
    removal: list[Step] = [StopGuests("a", ("g1",), ("g1",)), RemoveSegment("a", 100, files_stay=True)]
    assert split_held_steps([*removal, StartGuest(held, held.guests[0])])[0] == removal


def test_the_existing_parts_of_a_held_network_can_be_removed(make_segment: Make) -> None:
    steps: list[Step] = [StopGuests("a", ("g1",)), RemoveSegment("a", 100)]
    assert split_held_steps(steps) == (steps, {})
