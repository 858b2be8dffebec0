from collections.abc import Callable
from dataclasses import replace

import pytest
from pydantic import SecretStr
from support.hosts.seed_documents import seeded_guest, seeded_segment

from virtcloud.agent.difference import compute_difference, digest
from virtcloud.agent.guests.peer_files import hash_peer_files, render_peer_files
from virtcloud.agent.network import names
from virtcloud.agent.network.guest_filters import GuestPort, list_elements
from virtcloud.agent.network.observed_filters import ObservedFilters
from virtcloud.agent.observed_host import ObservedGuest, ObservedHost, ObservedSegment
from virtcloud.agent.steps import BuildSegment, FilterGuests, RemoveSegment, StartGuest, StopGuests, WritePeerFiles
from virtcloud.model.guest_seed import GuestSeed
from virtcloud.model.values import UserName
from virtcloud.model.wanted import HostWanted, Segment

Make = Callable[..., Segment]


def observed_host(*segments: Segment) -> ObservedHost:
    return ObservedHost(
        tuple(ObservedSegment(segment.id, segment.vlan, segment.port) for segment in segments),
        tuple(
            ObservedGuest(segment.id, guest.name, digest(segment, guest), starts=guest.starts or 0)
            for segment in segments
            for guest in segment.guests
        ),
    )


def wanted(*segments: Segment) -> HostWanted:
    return HostWanted(segments=segments)


def test_equal_wanted_and_observed_states_need_no_step(make_segment: Make) -> None:
    segment = make_segment("a", 100, ("g1", "g2"))
    assert compute_difference(wanted(segment), observed_host(segment)) == []


def test_a_bridge_is_built_before_its_guests_start(make_segment: Make) -> None:
    segment = make_segment("a", 100, ("g1", "g2"))
    assert compute_difference(wanted(segment), ObservedHost()) == [
        BuildSegment(segment),
        StartGuest(segment, segment.guests[0]),
        StartGuest(segment, segment.guests[1]),
    ]


def test_guests_stop_together_before_their_bridge_is_removed(make_segment: Make) -> None:
    segment = make_segment("a", 100, ("g2", "g1"))
    assert compute_difference(wanted(), observed_host(segment)) == [
        StopGuests("a", ("g1", "g2")),
        RemoveSegment("a", 100),
    ]


def test_changes_of_clusters_do_not_affect_other_clusters(make_segment: Make) -> None:
    unchanged, removed, added = make_segment("a", 100, ("g1",)), make_segment("b", 101, ("g1",)), make_segment("c", 102)
    steps = compute_difference(wanted(unchanged, added), observed_host(unchanged, removed))
    assert {step.cluster for step in steps} == {"b", "c"}


def test_a_vlan_ids_former_segment_is_removed_first(make_segment: Make) -> None:
    former, new = make_segment("z", 100, ("g1",)), make_segment("a", 100)
    assert compute_difference(wanted(new), observed_host(former)) == [
        StopGuests("z", ("g1",)),
        RemoveSegment("z", 100),
        BuildSegment(new),
    ]


def test_a_faulty_segment_is_rebuilt_without_stopping_guests(make_segment: Make) -> None:
    segment = make_segment("a", 100, ("g1",))
    faulty = ObservedHost((ObservedSegment("a", 100, "eth0", ("br100 is down",)),), observed_host(segment).guests)
    assert compute_difference(wanted(segment), faulty) == [BuildSegment(segment, ("br100 is down",))]


def test_a_segment_without_tagged_interface_is_built_again(make_segment: Make) -> None:
    segment = make_segment("a", 100)
    incomplete = ObservedHost((ObservedSegment("a", 100, None, ("the tagged interface is missing",)),))
    assert [str(step) for step in compute_difference(wanted(segment), incomplete)] == [
        "build VLAN 100 on eth0 (the tagged interface is missing)"
    ]


def test_a_guest_that_ended_by_itself_is_started_again(make_segment: Make) -> None:
    segment = make_segment("a", 100, ("g1",))
    assert compute_difference(wanted(segment), ObservedHost(observed_host(segment).segments)) == [
        StartGuest(segment, segment.guests[0])
    ]


def test_a_listed_guest_that_does_not_run_is_restarted(make_segment: Make) -> None:
    segment = make_segment("a", 100, ("g1",))
    stopped = ObservedHost(
        observed_host(segment).segments, (ObservedGuest("a", "g1", digest(segment, segment.guests[0]), running=False),)
    )
    assert compute_difference(wanted(segment), stopped) == [
        StopGuests("a", ("g1",), ("g1",)),
        StartGuest(segment, segment.guests[0]),
    ]


def test_a_guest_with_an_old_digest_is_restarted(make_segment: Make) -> None:
    segment = make_segment("a", 100, ("g1",))
    outdated = ObservedHost(observed_host(segment).segments, (ObservedGuest("a", "g1", "another digest"),))
    assert compute_difference(wanted(segment), outdated) == [
        StopGuests("a", ("g1",), ("g1",)),
        StartGuest(segment, segment.guests[0]),
    ]


def with_power(segment: Segment, **power: object) -> Segment:
    guests = (segment.guests[0].model_copy(update=power), *segment.guests[1:])
    return segment.model_copy(update={"guests": guests})


def test_a_guest_with_power_off_stops_and_keeps_its_files(make_segment: Make) -> None:
    before = make_segment("a", 100, ("g1", "g2"))
    after = with_power(before, power="off")
    assert compute_difference(wanted(after), observed_host(before)) == [StopGuests("a", ("g1",), ("g1",))]


def test_a_stopped_guest_is_not_started(make_segment: Make) -> None:
    segment = with_power(make_segment("a", 100, ("g1",)), power="off")
    rebooted = ObservedHost()
    assert compute_difference(wanted(segment), rebooted) == [BuildSegment(segment)]


def test_power_on_starts_the_guest_without_another_restart(make_segment: Make) -> None:
    segment = make_segment("a", 100, ("g1",))
    off = with_power(segment, power="off")
    assert digest(segment, segment.guests[0]) == digest(off, off.guests[0])


def test_a_reset_restarts_the_guest_once(make_segment: Make) -> None:
    before = make_segment("a", 100, ("g1",))
    after = with_power(before, starts=1)
    assert compute_difference(wanted(after), observed_host(before)) == [
        StopGuests("a", ("g1",), ("g1",)),
        StartGuest(after, after.guests[0]),
    ]
    assert compute_difference(wanted(after), observed_host(after)) == []


def test_a_lower_number_of_resets_restarts_no_guest(make_segment: Make) -> None:
    """SBF's database was restored from a backup that was made before the reset."""
    restored = make_segment("a", 100, ("g1",))
    started = observed_host(with_power(restored, starts=1))
    assert compute_difference(wanted(restored), started) == []


def test_a_changed_guest_with_fewer_resets_is_restarted(make_segment: Make) -> None:
    restored = make_segment("a", 100, ("g1",))
    started = observed_host(with_power(restored, starts=1, memory_mb=4096))
    assert StopGuests("a", ("g1",), ("g1",)) in compute_difference(wanted(restored), started)


def test_a_reset_guest_of_an_earlier_agent_is_not_restarted(make_segment: Make) -> None:
    """An earlier agent did not store the number of resets in the guest's domain."""
    segment = with_power(make_segment("a", 100, ("g1",)), starts=1)
    before = observed_host(segment)
    earlier = replace(before, guests=tuple(replace(guest, starts=0) for guest in before.guests))
    assert compute_difference(wanted(segment), earlier) == []


def test_an_unwanted_guest_stops_without_changing_the_bridge(make_segment: Make) -> None:
    before, after = make_segment("a", 100, ("g1", "g2")), make_segment("a", 100, ("g1",))
    assert compute_difference(wanted(after), observed_host(before)) == [StopGuests("a", ("g2",))]


def test_a_guest_without_a_segment_stops(make_segment: Make) -> None:
    assert compute_difference(wanted(), ObservedHost((), observed_host(make_segment("a", 100, ("g1",))).guests)) == [
        StopGuests("a", ("g1",))
    ]


def test_a_segment_on_another_port_is_rebuilt(make_segment: Make) -> None:
    before, after = make_segment("a", 100, ("g1",)), make_segment("a", 100, ("g1",), port="eth1")
    assert compute_difference(wanted(after), observed_host(before)) == [
        StopGuests("a", ("g1",), ("g1",)),
        RemoveSegment("a", 100, files_stay=True),
        BuildSegment(after, ()),
        StartGuest(after, after.guests[0]),
    ]


def test_the_difference_is_deterministic(make_segment: Make) -> None:
    first, second = make_segment("a", 100, ("g1",)), make_segment("b", 101, ("g1",))
    assert compute_difference(wanted(first), observed_host(second)) == compute_difference(
        wanted(first), observed_host(second)
    )


def guest_port(cluster: str, vlan: int) -> GuestPort:
    return GuestPort(names.guest_port_name(cluster, "g1", vlan), "02:00:00:00:00:01")


def with_filters(observed: ObservedHost, *ports: GuestPort, faults: tuple[str, ...] = ()) -> ObservedHost:
    return replace(observed, filters=ObservedFilters(list_elements(ports), faults))


def test_a_guests_filter_is_set_before_the_guest_starts(make_segment: Make) -> None:
    segment = make_segment("a", 100, ("g1",))
    assert compute_difference(wanted(segment), with_filters(ObservedHost())) == [
        FilterGuests("a", (guest_port("a", 100),)),
        BuildSegment(segment),
        StartGuest(segment, segment.guests[0]),
    ]


@pytest.mark.parametrize(
    ("filters", "expected"),
    [
        (None, GuestPort("vc100-f25cec7b", "02:00:00:00:00:01", None, ("ra",))),
        ("addresses", GuestPort("vc100-f25cec7b", "02:00:00:00:00:01", ("10.0.0.1/24",), ("ra",))),
        ("open", GuestPort("vc100-f25cec7b", None, None, ("ra",))),
    ],
)
def test_a_clusters_filters_apply_to_its_guests(make_segment: Make, filters: str | None, expected: GuestPort) -> None:
    segment = make_segment("a", 100, ("g1",)).model_copy(update={"filters": filters, "serves": ("ra",)})
    steps = compute_difference(wanted(segment), with_filters(observed_host(segment)))
    assert steps == [FilterGuests("a", (expected,))]


def test_correct_filters_need_no_step(make_segment: Make) -> None:
    segment = make_segment("a", 100, ("g1",))
    assert compute_difference(wanted(segment), with_filters(observed_host(segment), guest_port("a", 100))) == []


def test_a_new_guest_keeps_the_filters_of_other_guests(make_segment: Make) -> None:
    former, new = make_segment("a", 100, ("g1",)), make_segment("b", 101, ("g1",))
    steps = compute_difference(wanted(former, new), with_filters(observed_host(former), guest_port("a", 100)))
    assert steps[0] == FilterGuests("b", (guest_port("a", 100), guest_port("b", 101)))
    assert {step.cluster for step in steps} == {"b"}


def test_changed_rules_cause_a_step_for_every_cluster_with_guests(make_segment: Make) -> None:
    segments = make_segment("a", 100, ("g1",)), make_segment("b", 101, ("g1",)), make_segment("c", 102)
    ports = guest_port("a", 100), guest_port("b", 101)
    observed = with_filters(observed_host(*segments), *ports, faults=("the rules of chain guest were changed",))
    assert [str(step) for step in compute_difference(wanted(*segments), observed)] == [
        "filter the frames of 2 guests (the rules of chain guest were changed)"
    ] * 2


def test_filters_of_former_guests_are_removed(make_segment: Make) -> None:
    assert compute_difference(wanted(make_segment("a", 100)), with_filters(observed_host(), guest_port("b", 101))) == [
        FilterGuests("", ()),
        BuildSegment(make_segment("a", 100)),
    ]


def test_a_host_without_guests_needs_no_filters(make_segment: Make) -> None:
    """On a host without guests, a fault of the packet filter, such as a missing library, causes no step."""
    segment = make_segment("a", 100)
    observed = with_filters(observed_host(segment), faults=("libnftables.so.1 is missing",))
    assert compute_difference(wanted(segment), observed) == []


def test_an_agent_upgraded_to_use_seeds_restarts_no_guest(make_segment: Make) -> None:
    """An older agent started the guest and ignored the seed. The upgraded agent reads the same wanted document."""
    segment = make_segment("a", 100, ("g1",))
    seed = GuestSeed(user=UserName("alice"), host_key=SecretStr("x"), cluster_key=SecretStr("y"))
    guest = segment.guests[0].model_copy(update={"seed": seed})
    seeded = segment.model_copy(update={"guests": (guest,)})
    assert compute_difference(wanted(seeded), observed_host(segment)) == []


def test_a_joining_member_changes_files_but_restarts_no_guest() -> None:
    segment = seeded_segment(seeded_guest())
    before = segment.model_copy(update={"peers": segment.peers[:1]})
    assert compute_difference(wanted(segment), observed_peers(before)) == [WritePeerFiles(segment, segment.guests[0])]
    assert compute_difference(wanted(segment), observed_peers(segment)) == []


def test_a_guest_without_replaceable_files_needs_no_step() -> None:
    """Peer files are replaced neither for a QEMU guest, nor for a container that an earlier agent started."""
    segment = seeded_segment(seeded_guest())
    assert compute_difference(wanted(segment), observed_host(segment)) == []


def observed_peers(segment: Segment) -> ObservedHost:
    host = observed_host(segment)
    peers = hash_peer_files(render_peer_files(segment, segment.guests[0]))
    return replace(host, guests=tuple(replace(guest, peers=peers) for guest in host.guests))
