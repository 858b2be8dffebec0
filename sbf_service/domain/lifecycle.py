"""The lifecycle of a cluster: a table of rules determines the cluster's next transition. Pure.

``store/clusters/due_transitions.py`` translates the conditions to SQL. The next transition depends only on the stored
state, so it is the same after a crash.
"""

from dataclasses import dataclass
from datetime import datetime, timedelta
from enum import Enum, auto, unique
from typing import Final

from sbf_service.domain.cluster_status import ClusterStatus, explain_pending
from virtcloud.model.cluster import ENDED_STATES, LEAVING_STATES, WANTED_STATES, ClusterState, check_transition
from virtcloud.model.values import format_utc


@unique
class Condition(Enum):
    """A condition for a transition.

    A placement is *complete* if its element has confirmed the placement and is reachable.
    """

    LEASE_ENDED = auto()
    COMPLETE = auto()
    """All placements on hosts and devices are complete.

    If there are placements on gateways, at least one of these is complete. Placements that are being removed do not
    count.
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

    If ``to`` is None, the state does not change. The transition can free or quarantine the cluster's claims.
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
class ClusterTransition:
    """A cluster's next state with its reason, and the effect on the cluster's claims."""

    to: ClusterState
    reason: str | None = None
    frees: bool = False
    quarantines: bool = False


def find_transition(
    cluster: ClusterStatus, now: datetime, drain_deadline: timedelta, *, with_deadlines: bool = True
) -> ClusterTransition | None:
    """Return the next due transition of a cluster, or None. Another transition may be due afterwards.

    If ``with_deadlines`` is false, omit the transitions whose condition is in ``DEADLINES``.
    """
    for rule in TRANSITION_RULES:
        if rule.condition in DEADLINES and not with_deadlines:
            continue
        if cluster.state in rule.states and _holds(cluster, rule.condition, now, drain_deadline):
            to = cluster.state if rule.to is None else check_transition(cluster.state, rule.to)
            return ClusterTransition(to, _describe_reason(cluster, rule, now), rule.frees, rule.quarantines)
    return None


def _holds(  # noqa: PLR0911 - one return for each condition
    cluster: ClusterStatus, condition: Condition, now: datetime, drain_deadline: timedelta
) -> bool:
    match condition:
        case Condition.LEASE_ENDED:
            return now >= cluster.lease_ends
        case Condition.COMPLETE:
            return cluster.is_complete
        case Condition.INCOMPLETE:
            return not cluster.is_complete
        case Condition.SETUP_DEADLINE_PASSED:
            return now >= cluster.deadline
        case Condition.REMOVED:
            return cluster.is_removed
        case Condition.DRAIN_DEADLINE_PASSED:
            return cluster.leaving_since is not None and now >= cluster.leaving_since + drain_deadline
        case Condition.QUARANTINE_CONFIRMED:
            return cluster.quarantined and cluster.is_removed


@dataclass(frozen=True, slots=True)
class TransitionEffects:
    """The effects of a transition on a cluster.

    ``leaves``: SBF begins to remove the cluster and the members of its network. ``ends``: the cluster has ended.
    ``frees``: the cluster's claims are released.
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
    """Return a cluster's reason after a transition. A quarantine adds its reason to the former reason."""
    if transition.to is ClusterState.ACTIVE:
        return None
    if transition.quarantines and before:
        return f"{before}; {transition.reason}"
    return transition.reason or before


def _describe_reason(cluster: ClusterStatus, rule: TransitionRule, now: datetime) -> str | None:
    """Return the reason of a transition; a quarantine's reason is in the past tense, because it remains."""
    match rule.condition:
        case Condition.LEASE_ENDED:
            return f"its lease ended at {format_utc(cluster.lease_ends)}"
        case Condition.SETUP_DEADLINE_PASSED:
            return f"not set up in time: {explain_pending(cluster.wanted_placements)}"
        case Condition.INCOMPLETE:
            return f"being restored: {explain_pending(cluster.wanted_placements)}"
        case Condition.DRAIN_DEADLINE_PASSED:
            of_members = (placement for member in cluster.members for placement in member.placements)
            pending = explain_pending([*cluster.placements, *of_members], "had")
            return f"its VLAN IDs were quarantined at {format_utc(now)}: {pending}"
        case _:
            return None
