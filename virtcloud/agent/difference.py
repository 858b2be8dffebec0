"""PURE. The observed state of a host, and the steps that turn the observed state into the wanted state.

Removals come before creations: when a VLAN ID passes to another cluster, the former segment is removed before the new
one is created. Within a cluster, guests stop before their bridge is removed, and the bridge is created before its
guests start. A cluster without a difference has no step, so a change of one cluster does not affect the others.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from hashlib import sha256

from virtcloud.model.wanted import GuestWanted, HostWanted, Segment


@dataclass(frozen=True, slots=True)
class ObservedSegment:
    """A cluster's segment: the interfaces that bear the cluster's ownership alias.

    ``port`` is the uplink; it is None when the tagged interface is missing and only the bridge exists. ``faults``
    describes each deviation from how virtcloud builds a segment. A segment without faults is not changed.
    """

    cluster: str
    vlan: int
    port: str | None
    faults: tuple[str, ...] = ()
    untagged: bool = False


@dataclass(frozen=True, slots=True)
class ObservedGuest:
    """A domain of virtcloud; ``digest`` identifies the wanted document that the domain was started from."""

    cluster: str
    guest: str
    digest: str
    running: bool = True


@dataclass(frozen=True, slots=True)
class ObservedMachine:
    """The observed state of a host.

    ``hypervisor_errors`` has an error for each hypervisor that did not answer. The guests of such a hypervisor are not
    among ``guests``.
    """

    segments: tuple[ObservedSegment, ...] = ()
    guests: tuple[ObservedGuest, ...] = ()
    hypervisor_errors: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class StopGuests:
    """Stop these guests of a cluster at the same time, and remove their domains."""

    cluster: str
    guests: tuple[str, ...]

    def __str__(self) -> str:
        """Return the step for logs and errors."""
        return f"stop {', '.join(self.guests)}"


@dataclass(frozen=True, slots=True)
class RemoveSegment:
    """Remove a cluster's bridge and tagged interface."""

    cluster: str
    vlan: int

    def __str__(self) -> str:
        """Return the step for logs and errors."""
        return f"remove VLAN {self.vlan}"


@dataclass(frozen=True, slots=True)
class BuildSegment:
    """Create a cluster's tagged interface and bridge, or correct their faults."""

    segment: Segment
    faults: tuple[str, ...] = ()

    @property
    def cluster(self) -> str:
        """The cluster's id."""
        return self.segment.id

    def __str__(self) -> str:
        """Return the step for logs and errors."""
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
        """The id of the guest's cluster: the cluster of the segment, or a member of the network."""
        return self.guest.cluster or self.segment.id

    def __str__(self) -> str:
        """Return the step for logs and errors."""
        return f"start {self.guest.name}"


Step = StopGuests | RemoveSegment | BuildSegment | StartGuest


def compute_difference(wanted: HostWanted, observed: ObservedMachine) -> list[Step]:
    """Return the steps that turn the observed state into the wanted state."""
    return [*_removals(wanted, observed), *_creations(wanted, observed)]


def digest(segment: Segment, guest: GuestWanted) -> str:
    """Return a digest of everything that a running guest depends on. A guest with another digest is restarted."""
    place = f"{segment.port}{'@' if segment.untagged else '.'}{segment.vlan}"
    return sha256(f"{place} {guest.model_dump_json(exclude_none=True)}".encode()).hexdigest()[:16]


def _removals(wanted: HostWanted, observed: ObservedMachine) -> Iterator[Step]:
    clusters = {one.cluster for one in observed.segments} | {one.cluster for one in observed.guests}
    for cluster in sorted(clusters):
        guests = [one.guest for one in observed.guests if one.cluster == cluster and not _is_wanted_guest(one, wanted)]
        if guests:
            yield StopGuests(cluster, tuple(sorted(guests)))
        for segment in observed.segments:
            if segment.cluster == cluster and not _is_wanted_segment(segment, wanted):
                yield RemoveSegment(cluster, segment.vlan)


def _creations(wanted: HostWanted, observed: ObservedMachine) -> Iterator[Step]:
    remaining = [one for one in observed.segments if _is_wanted_segment(one, wanted)]
    sound = {(one.cluster, one.vlan) for one in remaining if not one.faults}
    faults = {(one.cluster, one.vlan): one.faults for one in observed.segments}
    running = {(one.cluster, one.guest) for one in observed.guests if _is_wanted_guest(one, wanted)}
    for segment in wanted.segments:
        if (segment.id, segment.vlan) not in sound:
            yield BuildSegment(segment, faults.get((segment.id, segment.vlan), ()))
        for guest in segment.guests:
            if (segment.id, guest.name) not in running:
                yield StartGuest(segment, guest)


def _is_wanted_segment(observed: ObservedSegment, wanted: HostWanted) -> bool:
    """Return whether a segment is wanted on its uplink. Without a tagged interface, any uplink matches."""
    place = observed.cluster, observed.vlan
    uplinks = {(one.port, one.untagged) for one in wanted.segments if (one.id, one.vlan) == place}
    return bool(uplinks) if observed.port is None else (observed.port, observed.untagged) in uplinks


def _is_wanted_guest(observed: ObservedGuest, wanted: HostWanted) -> bool:
    return observed.running and any(
        (segment.id, guest.name) == (observed.cluster, observed.guest) and digest(segment, guest) == observed.digest
        for segment, guest in _guests(wanted.segments)
    )


def _guests(segments: Iterable[Segment]) -> Iterator[tuple[Segment, GuestWanted]]:
    return ((segment, guest) for segment in segments for guest in segment.guests)
