from collections.abc import Callable

from virtcloud.agent.difference import (
    BuildSegment,
    ObservedGuest,
    ObservedHost,
    ObservedSegment,
    RemoveSegment,
    StartGuest,
    StopGuests,
    compute_difference,
    digest,
)
from virtcloud.model.wanted import HostWanted, Segment

Make = Callable[..., Segment]


def carried(*segments: Segment) -> ObservedHost:
    """Return the observed machine with these segments and guests."""
    return ObservedHost(
        tuple(ObservedSegment(one.id, one.vlan, one.port) for one in segments),
        tuple(ObservedGuest(one.id, guest.name, digest(one, guest)) for one in segments for guest in one.guests),
    )


def wanted(*segments: Segment) -> HostWanted:
    return HostWanted(segments=segments)


def test_nothing_is_done_when_everything_is_as_wanted(make_segment: Make) -> None:
    one = make_segment("a", 100, ("g1", "g2"))
    assert compute_difference(wanted(one), carried(one)) == []


def test_the_bridge_stands_before_its_guests_start(make_segment: Make) -> None:
    one = make_segment("a", 100, ("g1", "g2"))
    assert compute_difference(wanted(one), ObservedHost()) == [
        BuildSegment(one),
        StartGuest(one, one.guests[0]),
        StartGuest(one, one.guests[1]),
    ]


def test_guests_stop_together_and_before_their_bridge_vanishes(make_segment: Make) -> None:
    one = make_segment("a", 100, ("g2", "g1"))
    assert compute_difference(wanted(), carried(one)) == [StopGuests("a", ("g1", "g2")), RemoveSegment("a", 100)]


def test_one_cluster_that_comes_or_goes_leaves_the_others_alone(make_segment: Make) -> None:
    stays, goes, comes = make_segment("a", 100, ("g1",)), make_segment("b", 101, ("g1",)), make_segment("c", 102)
    steps = compute_difference(wanted(stays, comes), carried(stays, goes))
    assert {step.cluster for step in steps} == {"b", "c"}


def test_a_reused_vlan_id_is_removed_before_it_is_built(make_segment: Make) -> None:
    former, new = make_segment("z", 100, ("g1",)), make_segment("a", 100)
    assert compute_difference(wanted(new), carried(former)) == [
        StopGuests("z", ("g1",)),
        RemoveSegment("z", 100),
        BuildSegment(new),
    ]


def test_a_faulty_segment_is_rebuilt_without_stopping_guests(make_segment: Make) -> None:
    one = make_segment("a", 100, ("g1",))
    faulty = ObservedHost((ObservedSegment("a", 100, "eth0", ("br100 is down",)),), carried(one).guests)
    assert compute_difference(wanted(one), faulty) == [BuildSegment(one, ("br100 is down",))]


def test_a_segment_whose_tagged_interface_is_gone_is_built_up(make_segment: Make) -> None:
    one = make_segment("a", 100)
    left = ObservedHost((ObservedSegment("a", 100, None, ("the tagged interface is missing",)),))
    assert [str(step) for step in compute_difference(wanted(one), left)] == [
        "build VLAN 100 on eth0 (the tagged interface is missing)"
    ]


def test_a_guest_that_ended_by_itself_is_started_again(make_segment: Make) -> None:
    one = make_segment("a", 100, ("g1",))
    assert compute_difference(wanted(one), ObservedHost(carried(one).segments)) == [StartGuest(one, one.guests[0])]


def test_a_listed_guest_that_is_down_is_restarted(make_segment: Make) -> None:
    one = make_segment("a", 100, ("g1",))
    dead = ObservedHost(carried(one).segments, (ObservedGuest("a", "g1", digest(one, one.guests[0]), running=False),))
    assert compute_difference(wanted(one), dead) == [StopGuests("a", ("g1",)), StartGuest(one, one.guests[0])]


def test_a_guest_made_from_another_document_is_made_anew(make_segment: Make) -> None:
    one = make_segment("a", 100, ("g1",))
    old = ObservedHost(carried(one).segments, (ObservedGuest("a", "g1", "another digest"),))
    assert compute_difference(wanted(one), old) == [StopGuests("a", ("g1",)), StartGuest(one, one.guests[0])]


def test_an_unwanted_guest_stops_and_the_bridge_stays(make_segment: Make) -> None:
    before, after = make_segment("a", 100, ("g1", "g2")), make_segment("a", 100, ("g1",))
    assert compute_difference(wanted(after), carried(before)) == [StopGuests("a", ("g2",))]


def test_a_guest_without_a_segment_stops(make_segment: Make) -> None:
    assert compute_difference(wanted(), ObservedHost((), carried(make_segment("a", 100, ("g1",))).guests)) == [
        StopGuests("a", ("g1",))
    ]


def test_a_segment_on_another_port_is_rebuilt(make_segment: Make) -> None:
    before, after = make_segment("a", 100, ("g1",)), make_segment("a", 100, ("g1",), port="eth1")
    assert compute_difference(wanted(after), carried(before)) == [
        StopGuests("a", ("g1",)),
        RemoveSegment("a", 100),
        BuildSegment(after, ()),
        StartGuest(after, after.guests[0]),
    ]


def test_the_difference_is_deterministic(make_segment: Make) -> None:
    one, other = make_segment("a", 100, ("g1",)), make_segment("b", 101, ("g1",))
    assert compute_difference(wanted(one), carried(other)) == compute_difference(wanted(one), carried(other))
