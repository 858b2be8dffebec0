"""The conditions in SQL under which a transition of a cluster is due.

The rules in ``domain/lifecycle.py`` determine a cluster's next transition. With their conditions in SQL, SBF reads only
the clusters with a due transition.
"""

from datetime import datetime, timedelta

from sqlalchemy import ColumnElement, and_, bindparam, exists, or_, select, true, union
from sqlalchemy.orm import aliased

from sbf_service.domain.lifecycle import Condition, list_states
from sbf_service.store.tables.cluster_tables import ClusterRow, PlacementRow
from sbf_service.store.tables.columns import equals_any
from sbf_service.store.tables.tables import ElementRow
from virtcloud.model.cluster import ENDED_STATES
from virtcloud.model.element import ElementKind

_OF_PLACEMENT = ElementRow.name == PlacementRow.element
_IS_INCOMPLETE = or_(ElementRow.confirmed_revision < PlacementRow.added_revision, ElementRow.reachable.is_(False))
_IS_UNCONFIRMED = or_(ElementRow.confirmed_revision < ElementRow.wanted_revision, ElementRow.reachable.is_(False))
"""The condition of the partial index ``ix_elements_unconfirmed``, which ``_IS_INCOMPLETE`` implies."""
_OTHER, _OTHER_ELEMENT = aliased(PlacementRow), aliased(ElementRow)
_HAS_COMPLETE_GATEWAY = exists().where(
    _OTHER.cluster_id == PlacementRow.cluster_id,
    _OTHER_ELEMENT.name == _OTHER.element,
    _OTHER_ELEMENT.kind == ElementKind.GATEWAY,
    _OTHER.removed_revision.is_(None),
    _OTHER.blocked.is_(False),
    _OTHER_ELEMENT.confirmed_revision >= _OTHER.added_revision,
    _OTHER_ELEMENT.reachable,
)
_IS_AWAITED = or_(ElementRow.kind != ElementKind.GATEWAY, ~_HAS_COMPLETE_GATEWAY)
"""The condition that a cluster must wait for an element.

The condition is false for a gateway if the cluster is complete on another gateway.
"""
_STAYS = PlacementRow.removed_revision.is_(None)
_IS_OBSTACLE = exists().where(
    PlacementRow.cluster_id == ClusterRow.id,
    _OF_PLACEMENT,
    _STAYS,
    or_(_IS_INCOMPLETE, PlacementRow.blocked),
    _IS_AWAITED,
)
"""The condition that the cluster is incomplete or blocked on an element for which the cluster must wait.

The database evaluates this condition for each cluster.
"""
_OF_ELEMENT = PlacementRow.element == ElementRow.name + ""
"""The condition ``_OF_PLACEMENT``, without the use of an index of elements, for queries that read the elements first.
"""
_STATE = ClusterRow.state + ""
"""The cluster's state, as an expression that prevents the use of the index of states."""
_INCOMPLETE = (
    select(PlacementRow.cluster_id)
    .join(ElementRow, _OF_ELEMENT)
    .join(ClusterRow, ClusterRow.id == PlacementRow.cluster_id)
    .where(_STAYS, _IS_INCOMPLETE, _IS_UNCONFIRMED, _IS_AWAITED)
)
_BLOCKED = (
    select(PlacementRow.cluster_id)
    .join(ElementRow, _OF_PLACEMENT)
    .join(ClusterRow, ClusterRow.id == PlacementRow.cluster_id)
    .where(_STAYS, PlacementRow.blocked == true(), _IS_AWAITED)
)
_IS_CARRIED = or_(
    PlacementRow.removed_revision.is_(None),
    ElementRow.confirmed_revision < PlacementRow.removed_revision,
    PlacementRow.blocked,
)
_CARRIED = exists().where(PlacementRow.cluster_id == ClusterRow.id, _OF_PLACEMENT, _IS_CARRIED)
_MEMBER = aliased(ClusterRow)
_HAS_MEMBERS = exists().where(
    _MEMBER.network == ClusterRow.id, or_(~equals_any(_MEMBER.state, ENDED_STATES), _MEMBER.quarantined == true())
)
_STILL_CARRIED = or_(_CARRIED, _HAS_MEMBERS)
_HOLDS = {
    Condition.LEASE_ENDED: ClusterRow.lease_ends <= bindparam("ended_before"),
    Condition.COMPLETE: ~_IS_OBSTACLE,
    Condition.INCOMPLETE: _IS_OBSTACLE,
    Condition.SETUP_DEADLINE_PASSED: ClusterRow.deadline <= bindparam("ended_before"),
    Condition.REMOVED: ~_STILL_CARRIED,
    Condition.DRAIN_DEADLINE_PASSED: ClusterRow.leaving_since <= bindparam("drained_before"),
    Condition.QUARANTINE_CONFIRMED: and_(ClusterRow.quarantined == true(), ~_STILL_CARRIED),
}


def _is_due(condition: Condition, holds: ColumnElement[bool]) -> ColumnElement[bool]:
    return and_(equals_any(ClusterRow.state, list_states(condition)), holds)


HAS_DUE_TRANSITION = or_(*(_is_due(condition, holds) for condition, holds in _HOLDS.items()))
"""The condition that a transition of a cluster is due, with the parameters of :func:`make_due_parameters`."""
_CHANGES_IF_INCOMPLETE = _STATE.in_(sorted(list_states(Condition.INCOMPLETE)))
FIND_DUE = union(
    *(
        select(ClusterRow.id).where(_is_due(condition, holds))
        for condition, holds in _HOLDS.items()
        if condition is not Condition.INCOMPLETE
    ),
    *(found.where(_CHANGES_IF_INCOMPLETE) for found in (_INCOMPLETE, _BLOCKED)),
)
"""The query for the IDs of the clusters with a due transition. Each part uses an index.

The part for incomplete clusters begins with the few unconfirmed elements and blocked placements.
"""


def make_due_parameters(now: datetime, drain_deadline: timedelta, *, with_deadlines: bool = True) -> dict[str, object]:
    """Return the parameters of :data:`HAS_DUE_TRANSITION` and :data:`FIND_DUE`.

    Unless ``with_deadlines``, no transition of ``DEADLINES`` is due: no time is earlier than NULL.
    """
    return {"ended_before": now if with_deadlines else None, "drained_before": now - drain_deadline}
