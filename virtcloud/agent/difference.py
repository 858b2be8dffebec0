"""What a machine was seen to carry, within what is ours.

PURE. What is wanted and what is carried, and the steps from one to the other.

Removals come before creations: a VLAN number that has changed hands is clean before its new owner gets it.
Within a cluster, guests stop before their bridge vanishes, and a bridge stands before its guests start. A cluster that
is as it should be is in no step, so one cluster's change never touches another.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from hashlib import sha256

from virtcloud.model.wanted import GuestWanted, HostWanted, Segment


@dataclass(frozen=True, slots=True)
class ObservedSegment:
    """A cluster's part of the network: what bears its mark.

    ``port`` is None when the tagged interface is gone and only the bridge is left. ``faults`` are what keeps it from
    being as we make it, in words; a segment without faults is left alone.
    """

    cluster: str
    vlan: int
    port: str | None
    faults: tuple[str, ...] = ()
    untagged: bool = False


@dataclass(frozen=True, slots=True)
class ObservedGuest:
    """A domain that bears our mark. ``digest`` tells which wanted document it was made from."""

    cluster: str
    guest: str
    digest: str
    running: bool = True


@dataclass(frozen=True, slots=True)
class ObservedMachine:
    """All of it.

    ``silent`` has an error for each hypervisor that did not answer; its guests are not among ``guests``.
    """

    segments: tuple[ObservedSegment, ...] = ()
    guests: tuple[ObservedGuest, ...] = ()
    silent: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class StopGuests:
    """Stop these guests of a cluster, all at a time, and forget them."""

    cluster: str
    guests: tuple[str, ...]

    def __str__(self) -> str:
        """Say it in words."""
        return f"stop {', '.join(self.guests)}"


@dataclass(frozen=True, slots=True)
class RemoveSegment:
    """Remove a cluster's bridge and tagged interface."""

    cluster: str
    vlan: int

    def __str__(self) -> str:
        """Say it in words."""
        return f"remove VLAN {self.vlan}"


@dataclass(frozen=True, slots=True)
class BuildSegment:
    """Make a cluster's tagged interface and bridge, or put right what is wrong with them."""

    segment: Segment
    faults: tuple[str, ...] = ()

    @property
    def cluster(self) -> str:
        """The cluster's id."""
        return self.segment.id

    def __str__(self) -> str:
        """Say it in words."""
        how = ", untagged" if self.segment.untagged else ""
        faults = f" ({', '.join(self.faults)})" if self.faults else ""
        return f"build VLAN {self.segment.vlan} on {self.segment.port}{how}{faults}"


@dataclass(frozen=True, slots=True)
class StartGuest:
    """Start a guest on its cluster's bridge."""

    segment: Segment
    guest: GuestWanted

    @property
    def cluster(self) -> str:
        """The id of the cluster whose guest it is: a member's, or the network's own."""
        return self.guest.cluster or self.segment.id

    def __str__(self) -> str:
        """Say it in words."""
        return f"start {self.guest.name}"


Step = StopGuests | RemoveSegment | BuildSegment | StartGuest


def compute_difference(wanted: HostWanted, carried: ObservedMachine) -> list[Step]:
    """Compute the steps that make ``carried`` into ``wanted``; none when it is."""
    return [*_removals(wanted, carried), *_creations(wanted, carried)]


def digest(segment: Segment, guest: GuestWanted) -> str:
    """Give what tells whether a running guest is still the wanted one."""
    place = f"{segment.port}{'@' if segment.untagged else '.'}{segment.vlan}"
    return sha256(f"{place} {guest.model_dump_json(exclude_none=True)}".encode()).hexdigest()[:16]


def _removals(wanted: HostWanted, carried: ObservedMachine) -> Iterator[Step]:
    clusters = {one.cluster for one in carried.segments} | {one.cluster for one in carried.guests}
    for cluster in sorted(clusters):
        guests = [
            guest.guest for guest in carried.guests if guest.cluster == cluster and not _is_wanted_guest(guest, wanted)
        ]
        if guests:
            yield StopGuests(cluster, tuple(sorted(guests)))
        for segment in carried.segments:
            if segment.cluster == cluster and not _is_wanted_segment(segment, wanted):
                yield RemoveSegment(cluster, segment.vlan)


def _creations(wanted: HostWanted, carried: ObservedMachine) -> Iterator[Step]:
    sound = {(one.cluster, one.vlan) for one in carried.segments if _is_wanted_segment(one, wanted) and not one.faults}
    faults = {(one.cluster, one.vlan): one.faults for one in carried.segments}
    running = {(one.cluster, one.guest) for one in carried.guests if _is_wanted_guest(one, wanted)}
    for segment in wanted.segments:
        if (segment.id, segment.vlan) not in sound:
            yield BuildSegment(segment, faults.get((segment.id, segment.vlan), ()))
        for guest in segment.guests:
            if (segment.id, guest.name) not in running:
                yield StartGuest(segment, guest)


def _is_wanted_segment(carried: ObservedSegment, wanted: HostWanted) -> bool:
    """Say whether a segment stays where it is; one with nothing but its bridge left is built up again."""
    here = carried.cluster, carried.vlan
    ways = {(one.port, one.untagged) for one in wanted.segments if (one.id, one.vlan) == here}
    return bool(ways) if carried.port is None else (carried.port, carried.untagged) in ways


def _is_wanted_guest(carried: ObservedGuest, wanted: HostWanted) -> bool:
    return carried.running and any(
        (segment.id, guest.name) == (carried.cluster, carried.guest) and digest(segment, guest) == carried.digest
        for segment, guest in _guests(wanted.segments)
    )


def _guests(segments: Iterable[Segment]) -> Iterator[tuple[Segment, GuestWanted]]:
    return ((segment, guest) for segment in segments for guest in segment.guests)
