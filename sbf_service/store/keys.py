"""What stands under a key: the newest cluster, whatever it is, and what its owners had under it before.

A key whose cluster has ended may go to another owner: its *turn* grows then, and attempts count anew. Attempts of one
owner never do, so that a late call of an earlier one changes nothing.
"""

from sqlalchemy import bindparam, exists, func, select

from sbf_service.calls import Former
from sbf_service.store.session import Unit
from sbf_service.store.standing import spec_in, spec_of
from sbf_service.store.tables import ClusterRow
from virtcloud.model.cluster import State

_NEWEST = ClusterRow.turn.desc(), ClusterRow.attempt.desc()
_LATEST = select(ClusterRow).where(ClusterRow.key == bindparam("key")).order_by(*_NEWEST).limit(1)


def latest(unit: Unit, key: str) -> ClusterRow | None:
    """Find the newest cluster under a key."""
    return unit.session.scalars(_LATEST, {"key": key}).first()


def has_had(unit: Unit, key: str, owner: str) -> bool:
    """Say whether an owner has, or ever had, a cluster under a key."""
    theirs = ClusterRow.key == key, ClusterRow.owner == owner
    return bool(unit.session.scalar(select(exists().where(*theirs))))


def turn_after(row: ClusterRow | None, owner: str) -> int:
    """Give the turn of a cluster of ``owner`` that follows this one under its key."""
    return 0 if row is None else row.turn + (row.owner != owner)


def former_of(row: ClusterRow | None) -> Former | None:
    """Give the newest cluster as calls are judged by it."""
    return None if row is None else Former(row.attempt, State(row.state), spec_in(row.spec), shown=spec_of(row))


def highest_of(unit: Unit, row: ClusterRow | None, owner: str) -> int | None:
    """Give the highest attempt of an owner under the key of ``row``, its newest cluster, where that is another's."""
    if row is None or row.owner == owner:
        return None
    theirs = ClusterRow.key == row.key, ClusterRow.owner == owner
    return unit.session.scalar(select(func.max(ClusterRow.attempt)).where(*theirs))
