"""Which clusters may move now, said in SQL: the same as ``settle.py`` decides, of clusters that are not read for it.

Thousands of clusters wait or are well; every confirmation and every sweep asks which of them move. The pure decision
stays the one that is made: what it is asked about is narrowed here, and a test holds the two against each other.
"""

from datetime import datetime, timedelta

from sqlalchemy import ColumnElement, and_, exists, or_, select, true
from sqlalchemy.orm import aliased

from sbf_service.store.tables import ClusterRow, ElementRow, PlacementRow
from virtcloud.model.cluster import ENDED, LEAVING, WANTED, State

_THEIRS = ElementRow.name == PlacementRow.element
_LOST = or_(ElementRow.confirmed_revision < PlacementRow.added_revision, ElementRow.reachable.is_(False))
_BEHIND = or_(ElementRow.confirmed_revision < ElementRow.wanted_revision, ElementRow.reachable.is_(False))
"""An element that has lost a part is behind; said apart, since few elements are, and each has an index of its parts."""
_INCOMPLETE = (
    select(PlacementRow.cluster_id)
    .join(ElementRow, _THEIRS)
    .where(PlacementRow.removed_revision.is_(None), _LOST, _BEHIND)
)
_BLOCKED = select(PlacementRow.cluster_id).where(
    PlacementRow.removed_revision.is_(None), PlacementRow.blocked == true()
)
_KEPT = or_(PlacementRow.removed_revision.is_(None), ElementRow.confirmed_revision < PlacementRow.removed_revision)
_CARRIED = exists().where(PlacementRow.cluster_id == ClusterRow.id, _THEIRS, _KEPT)
_MEMBER = aliased(ClusterRow)
_HAS_MEMBERS = exists().where(
    _MEMBER.network == ClusterRow.id, or_(_MEMBER.state.not_in(ENDED), _MEMBER.quarantined == true())
)
_STILL_CARRIED = or_(_CARRIED, _HAS_MEMBERS)


def movable(now: datetime, drain_deadline: timedelta) -> ColumnElement[bool]:
    """Select the clusters that have a move to make: those for which ``settle`` gives one."""
    incomplete = or_(ClusterRow.id.in_(_INCOMPLETE), ClusterRow.id.in_(_BLOCKED))
    return or_(
        and_(ClusterRow.state.in_(WANTED), ClusterRow.lease_ends <= now),
        and_(ClusterRow.state == State.CONFIGURING, or_(~incomplete, ClusterRow.deadline <= now)),
        and_(ClusterRow.state == State.ACTIVE, incomplete),
        and_(ClusterRow.state == State.DEGRADED, ~incomplete),
        and_(ClusterRow.state.in_(LEAVING), or_(~_STILL_CARRIED, ClusterRow.leaving_since <= now - drain_deadline)),
        and_(ClusterRow.state.in_(ENDED), ClusterRow.quarantined == true(), ~_STILL_CARRIED),
    )
