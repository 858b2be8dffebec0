"""The lifecycle of a cluster: a table of rules determines the cluster's next transition. Pure.

``store/due_transitions.py`` translates the conditions of the table to SQL, to find the clusters with a due transition.
The next transition depends only on the stored state, so SBF continues with the same transitions after a crash.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from datetime import datetime, timedelta
from enum import Enum, auto, unique
from typing import Final

from virtcloud.model.cluster import ENDED_STATES, LEAVING_STATES, WANTED_STATES, ClusterState, check_transition
from virtcloud.model.edge import DEVICE_KINDS
from virtcloud.model.element import ElementKind
from virtcloud.model.values import Name, format_utc
from virtcloud.model.views import PlacementProgress


@unique
class Condition(Enum):
    """A condition for a transition.

    A placement is *complete* if its element has confirmed the placement and is reachable.
    """

    LEASE_ENDED = auto()
    COMPLETE = auto()
    """All placements on hosts and devices are complete. If there are placements on gateways, at least one of these is
    complete. Placements that are being removed do not count.
    """
    INCOMPLETE = auto()
    SETUP_DEADLINE_PASSED = auto()
    REMOVED = auto()
    """Every element has confirmed the removal of the cluster and of the members of its network."""
    DRAIN_DEADLINE_PASSED = auto()
    QUARANTINE_CONFIRMED = auto()
    """The cluster's claims are in quarantine, and every element has confirmed the cluster's removal."""


DEADLINES: Final = frozenset({Condition.LEASE_ENDED, Condition.SETUP_DEADLINE_PASSED})
"""The conditions whose times an outage of SBF postpones (``outages.py``)."""


@dataclass(frozen=True, slots=True)
class TransitionRule:
    """Clusters in one of ``states`` change to ``to`` when ``condition`` holds.

    If ``to`` is None, the state does not change. The transition can free (``frees``) or quarantine (``quarantines``)
    the cluster's claims.
    """

    states: frozenset[ClusterState]
    condition: Condition
    to: ClusterState | None
    frees: bool = False
    quarantines: bool = False


_CONFIGURING: Final = frozenset({ClusterState.CONFIGURING})
_DRAINING: Final = frozenset({ClusterState.DRAINING})
_FAILING: Final = frozenset({ClusterState.FAILING})

TRANSITION_RULES: Final = (
    TransitionRule(WANTED_STATES, Condition.LEASE_ENDED, ClusterState.DRAINING),
    TransitionRule(_CONFIGURING, Condition.COMPLETE, ClusterState.ACTIVE),
    TransitionRule(_CONFIGURING, Condition.SETUP_DEADLINE_PASSED, ClusterState.FAILING),
    TransitionRule(frozenset({ClusterState.ACTIVE}), Condition.INCOMPLETE, ClusterState.DEGRADED),
    TransitionRule(frozenset({ClusterState.DEGRADED}), Condition.COMPLETE, ClusterState.ACTIVE),
    TransitionRule(_DRAINING, Condition.REMOVED, ClusterState.RELEASED, frees=True),
    TransitionRule(_FAILING, Condition.REMOVED, ClusterState.FAILED, frees=True),
    TransitionRule(_DRAINING, Condition.DRAIN_DEADLINE_PASSED, ClusterState.RELEASED, quarantines=True),
    TransitionRule(_FAILING, Condition.DRAIN_DEADLINE_PASSED, ClusterState.FAILED, quarantines=True),
    TransitionRule(ENDED_STATES, Condition.QUARANTINE_CONFIRMED, None, frees=True),
)
"""The first applicable rule determines the transition."""


def list_states(condition: Condition) -> frozenset[ClusterState]:
    """Return the states in which ``condition`` leads to a transition."""
    return frozenset(state for rule in TRANSITION_RULES if rule.condition is condition for state in rule.states)


@dataclass(frozen=True, slots=True)
class PlacementStatus:
    """The status of a cluster's placement on one element.

    ``added`` and ``removed`` are the revisions that added and removed the placement. ``confirmed`` is the revision that
    the element has confirmed. ``blocked`` is true if the element confirmed a revision, but could not set up or remove
    this cluster, for example because the element uses the cluster's VLAN ID for something other than clusters.
    ``trouble`` is the part of the element's error report that concerns this cluster.
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

    ``members`` are the clusters that joined the network that this cluster created. A member is omitted if the member
    has ended and every element has confirmed the member's removal. ``members`` is complete only if this cluster is
    ending or has ended. In the earlier states (``WANTED_STATES``), ``members`` may be empty although clusters joined
    the network.
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
        """Whether the condition ``COMPLETE`` holds."""
        gateways = [part.is_complete for part in self.wanted_placements if part.kind is ElementKind.GATEWAY]
        others = (part.is_complete for part in self.wanted_placements if part.kind is not ElementKind.GATEWAY)
        return all(others) and (not gateways or any(gateways))

    @property
    def is_removed(self) -> bool:
        """Whether every element has confirmed the removal of the cluster, and no member remains."""
        removed = (placement.progress is PlacementProgress.REMOVED for placement in self.placements)
        return not self.members and all(removed)

    def holds(  # noqa: PLR0911 - one return for each condition
        self, condition: Condition, now: datetime, drain_deadline: timedelta
    ) -> bool:
        """Return whether a condition holds at ``now``."""
        match condition:
            case Condition.LEASE_ENDED:
                return now >= self.lease_ends
            case Condition.COMPLETE:
                return self.is_complete
            case Condition.INCOMPLETE:
                return not self.is_complete
            case Condition.SETUP_DEADLINE_PASSED:
                return now >= self.deadline
            case Condition.REMOVED:
                return self.is_removed
            case Condition.DRAIN_DEADLINE_PASSED:
                return self.leaving_since is not None and now >= self.leaving_since + drain_deadline
            case Condition.QUARANTINE_CONFIRMED:
                return self.quarantined and self.is_removed


@dataclass(frozen=True, slots=True)
class ClusterTransition:
    """A cluster's next state with its reason, and the transition's effect on the cluster's claims."""

    to: ClusterState
    reason: str | None = None
    frees: bool = False
    quarantines: bool = False


def find_transition(
    cluster: ClusterStatus, now: datetime, drain_deadline: timedelta, *, with_deadlines: bool = True
) -> ClusterTransition | None:
    """Return the next due transition of a cluster, or None. Another transition may be due afterwards.

    If ``with_deadlines`` is false, omit the transitions of ``DEADLINES``.
    """
    for rule in TRANSITION_RULES:
        if rule.condition in DEADLINES and not with_deadlines:
            continue
        if cluster.state in rule.states and cluster.holds(rule.condition, now, drain_deadline):
            to = cluster.state if rule.to is None else check_transition(cluster.state, rule.to)
            return ClusterTransition(to, _describe_reason(cluster, rule, now), rule.frees, rule.quarantines)
    return None


@dataclass(frozen=True, slots=True)
class TransitionEffects:
    """The effects of a transition on a cluster.

    ``leaves`` is true if SBF begins to remove the cluster from its elements and to drain its network's members.
    ``ends`` is true if the cluster has ended. ``frees`` is true if the cluster's claims are released.
    """

    state: ClusterState
    reason: str | None
    quarantined: bool
    leaves: bool
    ends: bool
    frees: bool


def compute_effects(state: ClusterState, reason: str | None, transition: ClusterTransition) -> TransitionEffects:
    """Return the effects of a transition on a cluster with this state and reason.

    Raise IllegalTransition if the lifecycle has no such transition.
    """
    to = state if transition.to is state else check_transition(state, transition.to)
    return TransitionEffects(
        state=to,
        reason=_join_reasons(reason, transition),
        quarantined=transition.quarantines,
        leaves=to in LEAVING_STATES,
        ends=to in ENDED_STATES,
        frees=transition.frees,
    )


def make_drain(state: ClusterState, reason: str) -> ClusterTransition | None:
    """Return the transition that starts to drain a cluster, or None if the cluster is ending or has ended."""
    return ClusterTransition(ClusterState.DRAINING, reason) if state in WANTED_STATES else None


def _join_reasons(before: str | None, transition: ClusterTransition) -> str | None:
    """Return a cluster's reason after a transition; None if the cluster becomes active.

    The reason of a quarantine is appended to the former reason.
    """
    if transition.to is ClusterState.ACTIVE:
        return None
    if transition.quarantines and before:
        return f"{before}; {transition.reason}"
    return transition.reason or before


def describe_unconfirmed(cluster: ClusterStatus) -> str:
    """Describe the elements that have not confirmed the cluster or its removal, with their errors.

    Also describe each unreachable element that is not removing the cluster. Return "" if no element is to be described.
    """
    return "; ".join(_list_unconfirmed(cluster.placements))


def _describe_reason(cluster: ClusterStatus, rule: TransitionRule, now: datetime) -> str | None:
    """Return the reason of a transition at ``now``, or None for a transition without a reason.

    The reason of a quarantine is in the past tense, because an ended cluster keeps its reason after the quarantine.
    """
    match rule.condition:
        case Condition.LEASE_ENDED:
            return f"its lease ended at {format_utc(cluster.lease_ends)}"
        case Condition.SETUP_DEADLINE_PASSED:
            return f"not set up in time: {_describe_pending(cluster.wanted_placements)}"
        case Condition.INCOMPLETE:
            return f"being restored: {_describe_pending(cluster.wanted_placements)}"
        case Condition.DRAIN_DEADLINE_PASSED:
            of_members = (placement for member in cluster.members for placement in member.placements)
            pending = _describe_pending([*cluster.placements, *of_members], "had")
            return f"its VLAN IDs were quarantined at {format_utc(now)}: {pending}"
        case _:
            return None


def _describe_pending(placements: Iterable[PlacementStatus], verb: str = "has") -> str:
    return "; ".join(_list_unconfirmed(placements, verb)) or "all elements have confirmed"


def _list_unconfirmed(placements: Iterable[PlacementStatus], verb: str = "has") -> Iterator[str]:
    done = {PlacementProgress.CONFIRMED, PlacementProgress.REMOVED}
    for placement in sorted(placements, key=lambda placement: placement.element):
        if placement.progress not in done or (placement.removed is None and not placement.reachable):
            cause = _describe_cause(placement)
            yield f"{placement.kind} {placement.element} at {placement.site} {verb} not confirmed{cause}"


def _describe_cause(placement: PlacementStatus) -> str:
    """Return an element's error report in parentheses.

    Without an error report, return the time of the agent's last call in parentheses, or "" for a device.
    """
    if placement.trouble:
        return f" ({placement.trouble})"
    if placement.kind in DEVICE_KINDS:
        return ""
    seen = placement.last_seen
    last_call = f"last called SBF at {format_utc(seen)}" if seen else "has never called SBF"
    return f" (its agent {last_call})"
