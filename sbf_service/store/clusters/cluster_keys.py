"""Keys and names of clusters: the current cluster of a key, and the attempts with the key.

A caller gives numbers to its attempts to create a cluster with one key, for example by the run count of a batch job.
When the cluster with a key has ended, another owner may use the key. The *turn* in a cluster's row increases by 1 when
the key passes to another owner. The attempt numbers of each owner of a key never decrease. Therefore, SBF recognizes a
late call by its lower attempt number, even after another owner's turn.
"""

import re
from typing import NamedTuple

from sqlalchemy import bindparam, exists, func, or_, select

from sbf_service.domain.idempotency import LatestAttempt
from sbf_service.store.clusters.cluster_documents import parse_shown_spec, parse_spec
from sbf_service.store.tables.cluster_tables import ClusterRow
from sbf_service.store.unit_of_work import Unit
from virtcloud.model.cluster import ENDED_STATES, ClusterState
from virtcloud.model.values import Name

_IS_NAME = re.compile(Name.pattern).fullmatch
_READ_NAMED = select(ClusterRow.key).where(ClusterRow.name == bindparam("name"))
_NEWEST_FIRST = ClusterRow.turn.desc(), ClusterRow.attempt.desc()
_OF_KEY = ClusterRow.key == bindparam("key")
_READ_NEWEST = select(ClusterRow).where(_OF_KEY).order_by(*_NEWEST_FIRST).limit(1)
_NEWEST_ID = select(ClusterRow.id).where(_OF_KEY).order_by(*_NEWEST_FIRST).limit(1).correlate(None).scalar_subquery()
_IS_HOLDER = or_(ClusterRow.id == _NEWEST_ID, ClusterRow.name == bindparam("key"))
_FIND_HOLDER = select(ClusterRow.id).where(_IS_HOLDER).limit(1)
_READ_HOLDERS = select(ClusterRow).where(_IS_HOLDER)


class KeyHolders(NamedTuple):
    """The newest cluster with a key, and the running cluster that has another key, but this key as its name."""

    newest: ClusterRow | None
    named: ClusterRow | None


def find_newest_cluster(unit: Unit, key: str) -> ClusterRow | None:
    """Return the newest cluster with a key, or None if no cluster ever had the key."""
    return unit.session.scalars(_READ_NEWEST, {"key": key}).first()


def find_key_holders(unit: Unit, key: str) -> KeyHolders:
    """Return the clusters that a new cluster with ``key`` could collide with. Ended clusters have no names.

    Usually, there is no such cluster. Therefore, first look for a row without the costs of loading objects.
    """
    unit.session.flush()
    if unit.connection.execute(_FIND_HOLDER, {"key": key}).first() is None:
        return KeyHolders(None, None)
    rows = unit.session.scalars(_READ_HOLDERS, {"key": key}).all()
    of_key = (row for row in rows if row.key == key)
    newest = max(of_key, key=lambda row: (row.turn, row.attempt), default=None)
    return KeyHolders(newest, next((row for row in rows if row.key != key), None))


def find_running_cluster(unit: Unit, name_or_key: str) -> ClusterRow | None:
    """Return the cluster with this name or key, or None if there is no such cluster or the cluster has ended."""
    row = find_newest_cluster(unit, find_key_by_name(unit, name_or_key) or name_or_key)
    return None if row is None or row.state in ENDED_STATES else row


def find_key_by_name(unit: Unit, name: str) -> str | None:
    """Return the key of the cluster with this name, or None. Ended clusters have no names."""
    if not _IS_NAME(name):  # the keys of batch jobs contain a dot, names do not
        return None
    return unit.connection.execute(_READ_NAMED, {"name": name}).scalar()


def has_owned_key(unit: Unit, key: str, owner: str) -> bool:
    """Return whether ``owner`` has, or ever had, a cluster with this key."""
    of_owner = ClusterRow.key == key, ClusterRow.owner == owner
    return bool(unit.session.scalar(select(exists().where(*of_owner))))


def next_turn(row: ClusterRow | None, owner: str) -> int:
    """Return the turn of a new cluster of ``owner``. ``row`` is the newest cluster with the same key, or None."""
    return 0 if row is None else row.turn + (row.owner != owner)


def make_latest_attempt(row: ClusterRow | None) -> LatestAttempt | None:
    """Return the latest attempt with a key. ``row`` is the newest cluster with the key, or None."""
    if row is None:
        return None
    state, (shown, fault) = ClusterState(row.state), parse_shown_spec(row)
    if fault is not None:
        return LatestAttempt(row.attempt, state, shown, is_readable=False)
    return LatestAttempt(row.attempt, state, parse_spec(row.spec), shown=shown)


def find_highest_attempt(unit: Unit, row: ClusterRow | None, owner: str) -> int | None:
    """Return the highest attempt number that ``owner`` used with a key, if another owner has the key now.

    ``row`` is the newest cluster with the key. Return None if no other owner has the key, or if ``owner`` never had it.
    """
    if row is None or row.owner == owner:
        return None
    of_owner = ClusterRow.key == row.key, ClusterRow.owner == owner
    return unit.session.scalar(select(func.max(ClusterRow.attempt)).where(*of_owner))
