"""The status of a cluster: its state, and the progress of its placements. Pure."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from datetime import datetime

from virtcloud.model.cluster import ClusterState
from virtcloud.model.edge import DEVICE_KINDS
from virtcloud.model.element import ElementKind
from virtcloud.model.values import Name, format_utc
from virtcloud.model.views import PlacementProgress


@dataclass(frozen=True, slots=True)
class PlacementStatus:
    """The status of a cluster's placement on one element.

    ``added`` and ``removed`` are the revisions that added and removed the placement; ``confirmed`` is the element's
    confirmed revision. ``blocked``: the element confirmed a revision, but could not set up or remove this cluster, for
    example because the VLAN ID is in other use. ``trouble`` is the part of the element's error report that concerns
    this cluster.
    """

    element: Name
    kind: ElementKind
    site: Name
    added: int
    removed: int | None
    confirmed: int
    reachable: bool = True
    trouble: str | None = None
    last_seen: datetime | None = None
    blocked: bool = False

    @property
    def progress(self) -> PlacementProgress:
        """The progress of the placement."""
        if self.removed is None:
            is_set_up = self.confirmed >= self.added and not self.blocked
            return PlacementProgress.CONFIRMED if is_set_up else PlacementProgress.ADDING
        is_removed = self.confirmed >= self.removed and not self.blocked
        return PlacementProgress.REMOVED if is_removed else PlacementProgress.REMOVING

    @property
    def is_complete(self) -> bool:
        """Whether the element has confirmed the cluster and is reachable."""
        return self.progress is PlacementProgress.CONFIRMED and self.reachable


@dataclass(frozen=True, slots=True)
class ClusterStatus:
    """A cluster's state, placements and times.

    ``members`` are the clusters that joined this cluster's network and are not completely removed. ``members`` is
    complete only if this cluster is ending or has ended; otherwise it may be empty.
    """

    id: str
    state: ClusterState
    placements: tuple[PlacementStatus, ...]
    deadline: datetime
    lease_ends: datetime
    leaving_since: datetime | None = None
    quarantined: bool = False
    members: tuple["ClusterStatus", ...] = ()

    @property
    def wanted_placements(self) -> list[PlacementStatus]:
        """The placements that are not being removed."""
        return [placement for placement in self.placements if placement.removed is None]

    @property
    def is_complete(self) -> bool:
        """Whether the condition ``COMPLETE`` of the lifecycle holds."""
        gateways = [part.is_complete for part in self.wanted_placements if part.kind is ElementKind.GATEWAY]
        others = (part.is_complete for part in self.wanted_placements if part.kind is not ElementKind.GATEWAY)
        return all(others) and (not gateways or any(gateways))

    @property
    def is_removed(self) -> bool:
        """Whether every element has confirmed the removal of the cluster, and no member remains."""
        removed = (placement.progress is PlacementProgress.REMOVED for placement in self.placements)
        return not self.members and all(removed)


def describe_unconfirmed(cluster: ClusterStatus) -> str:
    """Describe the elements that have not confirmed the cluster or its removal, with their errors.

    Also describe unreachable elements from which the cluster is not being removed. Return "" if there is no element to
    describe.
    """
    return "; ".join(_list_unconfirmed(cluster.placements))


def explain_pending(placements: Iterable[PlacementStatus], verb: str = "has") -> str:
    """Describe the elements of these placements as :func:`describe_unconfirmed` does.

    ``verb`` is "has", or "had" for the past. Return "all elements have confirmed" if there is no element to describe.
    """
    return "; ".join(_list_unconfirmed(placements, verb)) or "all elements have confirmed"


def _list_unconfirmed(placements: Iterable[PlacementStatus], verb: str = "has") -> Iterator[str]:
    done = {PlacementProgress.CONFIRMED, PlacementProgress.REMOVED}
    for placement in sorted(placements, key=lambda placement: placement.element):
        if placement.progress not in done or (placement.removed is None and not placement.reachable):
            cause = _describe_cause(placement)
            yield f"{placement.kind} {placement.element} at {placement.site} {verb} not confirmed{cause}"


def _describe_cause(placement: PlacementStatus) -> str:
    if placement.trouble:
        return f" ({placement.trouble})"
    if placement.kind in DEVICE_KINDS:
        return ""
    seen = placement.last_seen
    last_call = f"last called SBF at {format_utc(seen)}" if seen else "has never called SBF"
    return f" (its agent {last_call})"
