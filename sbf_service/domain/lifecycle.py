"""Which clusters move on, decided from what the elements have confirmed (DESIGN.md §3 point 4, §4). Pure.

Nothing here is done by anyone's memory of what was started: the same facts give the same moves, after a crash too.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from datetime import datetime, timedelta

from virtcloud.model.cluster import ENDED_STATES, LEAVING_STATES, ClusterState, check_transition
from virtcloud.model.edge import DEVICE_KINDS
from virtcloud.model.element import ElementKind
from virtcloud.model.values import Name
from virtcloud.model.views import PlacementProgress


@dataclass(frozen=True, slots=True)
class PlacementStatus:
    """One element's part of a cluster: the revisions that added and removed it, and how far the element is.

    ``blocked``: the element confirmed all but this cluster, whose VLAN is in other use there.
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
        """How far the element is with this cluster."""
        if self.removed is None:
            is_set_up = self.confirmed >= self.added and not self.blocked
            return PlacementProgress.CONFIRMED if is_set_up else PlacementProgress.ADDING
        return PlacementProgress.REMOVED if self.confirmed >= self.removed else PlacementProgress.REMOVING

    @property
    def carried(self) -> bool:
        """Whether the element was read to carry it, and can still be asked."""
        return self.progress is PlacementProgress.CONFIRMED and self.reachable


@dataclass(frozen=True, slots=True)
class ClusterStatus:
    """A cluster as it stands. ``members`` are those of its network that still have to let go of its numbers."""

    id: str
    state: ClusterState
    parts: tuple[PlacementStatus, ...]
    deadline: datetime
    lease_ends: datetime
    leaving_since: datetime | None = None
    quarantined: bool = False
    members: tuple["ClusterStatus", ...] = ()


@dataclass(frozen=True, slots=True)
class ClusterTransition:
    """A cluster's next state, why, and what becomes of its numbers."""

    to: ClusterState
    reason: str | None = None
    frees: bool = False
    quarantines: bool = False


def find_transition(cluster: ClusterStatus, now: datetime, drain_deadline: timedelta) -> ClusterTransition | None:
    """Say the cluster's next move, or nothing when it stays. Ask again after each move: it may have another one."""
    found = _next(cluster, now, drain_deadline)
    if found is not None and found.to is not cluster.state:
        check_transition(cluster.state, found.to)
    return found


def describe_unconfirmed(cluster: ClusterStatus) -> str:
    """Name the elements that a cluster waits for, with what they say; nothing where it waits for none."""
    return "; ".join(_waits(cluster.parts))


def _next(cluster: ClusterStatus, now: datetime, drain_deadline: timedelta) -> ClusterTransition | None:
    if cluster.state in ENDED_STATES:
        return _after_end(cluster)
    if cluster.state in LEAVING_STATES:
        return _end(cluster, now, drain_deadline)
    if now >= cluster.lease_ends:
        return ClusterTransition(
            ClusterState.DRAINING, f"its lease ended at {cluster.lease_ends:%Y-%m-%d %H:%M:%S} UTC"
        )
    if cluster.state is ClusterState.CONFIGURING:
        return _configure(cluster, now)
    return _watch(cluster)


def _configure(cluster: ClusterStatus, now: datetime) -> ClusterTransition | None:
    if all(part.carried for part in _staying(cluster)):
        return ClusterTransition(ClusterState.ACTIVE)
    if now >= cluster.deadline:
        return ClusterTransition(ClusterState.FAILING, f"not set up in time: {_behind(_staying(cluster))}")
    return None


def _watch(cluster: ClusterStatus) -> ClusterTransition | None:
    whole = all(part.carried for part in _staying(cluster))
    if cluster.state is ClusterState.ACTIVE and not whole:
        return ClusterTransition(ClusterState.DEGRADED, f"being put back: {_behind(_staying(cluster))}")
    if cluster.state is ClusterState.DEGRADED and whole:
        return ClusterTransition(ClusterState.ACTIVE)
    return None


def _end(cluster: ClusterStatus, now: datetime, drain_deadline: timedelta) -> ClusterTransition | None:
    end = ClusterState.FAILED if cluster.state is ClusterState.FAILING else ClusterState.RELEASED
    if _all_removed(cluster):
        return ClusterTransition(end, frees=True)
    if cluster.leaving_since is not None and now >= cluster.leaving_since + drain_deadline:
        behind = _behind([*cluster.parts, *(part for member in cluster.members for part in member.parts)])
        return ClusterTransition(end, f"its numbers are kept back: {behind}", quarantines=True)
    return None


def _after_end(cluster: ClusterStatus) -> ClusterTransition | None:
    """Let the numbers of an ended cluster come back; its state is left by nothing."""
    if cluster.quarantined and _all_removed(cluster):
        return ClusterTransition(cluster.state, frees=True)
    return None


def _staying(cluster: ClusterStatus) -> list[PlacementStatus]:
    return [part for part in cluster.parts if part.removed is None]


def _all_removed(cluster: ClusterStatus) -> bool:
    return not cluster.members and all(part.progress is PlacementProgress.REMOVED for part in cluster.parts)


def _behind(parts: Iterable[PlacementStatus]) -> str:
    """Name the elements that keep a cluster from its next state, with what they say."""
    return "; ".join(_waits(parts)) or "nothing"


def _waits(parts: Iterable[PlacementStatus]) -> Iterator[str]:
    done = {PlacementProgress.CONFIRMED, PlacementProgress.REMOVED}
    for part in sorted(parts, key=lambda part: part.element):
        if part.progress not in done or (part.removed is None and not part.reachable):
            yield f"{part.kind} {part.element} at {part.site} has not confirmed{_because(part)}"


def _because(part: PlacementStatus) -> str:
    """Return what an element said; of a host or gateway that said nothing, when its agent was last heard from."""
    if part.trouble:
        return f" ({part.trouble})"
    if part.kind in DEVICE_KINDS:
        return ""
    heard = f"was last heard from at {part.last_seen:%Y-%m-%d %H:%M:%S} UTC" if part.last_seen else "never asked SBF"
    return f" (its agent {heard})"
