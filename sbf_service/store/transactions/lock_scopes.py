"""Lock scopes: the locks of a unit of work on PostgreSQL. Decision 85 lists what each lock protects.

A unit locks either everything, or a :class:`LockScope`: the sites and names that the unit changes. Units run in
parallel if their scopes have no site and no name in common. All locks are PostgreSQL's advisory locks, which end with
the transaction, even if the connection is lost.

**Lock order.** Each unit first acquires the lock :data:`EVERYTHING`. A unit with a scope acquires this lock in shared
mode, a unit without a scope in exclusive mode. After that, a unit with a scope locks the keys of its scope in ascending
order, before its first change. The order does not matter for a unit that does not wait (``pg_try_advisory_xact_lock``).
"""

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime
from functools import reduce
from operator import or_
from typing import Final
from zlib import crc32

from sqlalchemy import Connection, bindparam, func, select
from sqlalchemy.dialects.postgresql import ARRAY
from sqlalchemy.types import Integer

from sbf_service.store.tables.columns import database_now
from sbf_service.store.tables.tables import TopologyRow

EVERYTHING: Final = 0x756E6974
"""The first key of the advisory lock of all units (the letters "unit"). The second key is 0."""
SCOPE_CLASS: Final = 0x73697465
"""The first key of the locks of scopes (the letters "site"). The second key is a hash of the site or name."""
MAX_KEYS = 64
"""The maximum number of keys in a scope. With more keys, a unit locks everything.

PostgreSQL's table of locks has space for 64 locks per connection (``max_locks_per_transaction``).
"""

_VERSION = select(TopologyRow.version)
_LOCK_EVERYTHING = select(
    func.pg_advisory_xact_lock(EVERYTHING, 0), _VERSION.with_for_update().scalar_subquery().label("version")
)
_SHARE_EVERYTHING = select(
    func.pg_advisory_xact_lock_shared(EVERYTHING, 0),
    _VERSION.with_for_update(read=True).scalar_subquery().label("version"),
)
"""These statements also lock the topology's row, because replicas of an earlier version lock this row for each change.

This lock makes PostgreSQL return the newest version, although the statement's snapshot may be older after a wait. With
``FOR KEY SHARE``, PostgreSQL would return the version of the snapshot.
"""
_KEYS = bindparam("keys", type_=ARRAY(Integer))
_KEY = func.unnest(_KEYS).column_valued("key")
_NOW = database_now().label("now")
_LOCK_KEYS = select(func.pg_advisory_xact_lock(SCOPE_CLASS, _KEY), _KEY, _NOW)
_TRY_KEYS = select(_KEY, _NOW).where(func.pg_try_advisory_xact_lock(SCOPE_CLASS, _KEY))


class OutsideScopeError(Exception):
    """A unit would change something outside its scope. The store runs the work again with all locks."""


@dataclass(frozen=True, slots=True)
class LockScope:
    """The sites and names that a unit locks. A name begins with its kind, for example ``owner alice``."""

    sites: frozenset[str]
    names: frozenset[str] = frozenset()

    @property
    def keys(self) -> frozenset[int]:
        """The second keys of the advisory locks: hashes of the sites and names.

        Units with different names of the same hash wait for each other, without an error.
        """
        return frozenset(map(_hash, (*(f"site {site}" for site in self.sites), *self.names)))

    def __or__(self, other: "LockScope") -> "LockScope":
        """Return the scope that contains both scopes."""
        return LockScope(self.sites | other.sites, self.names | other.names)

    def contains(self, other: "LockScope") -> bool:
        """Return whether this scope contains another scope."""
        return self.sites >= other.sites and self.names >= other.names


@dataclass(frozen=True, slots=True)
class LockResult:
    """The keys that another unit holds, and the database's time after the last lock.

    ``now`` is None if no key was locked.
    """

    missing: frozenset[int]
    now: datetime | None


NO_SCOPE: Final = LockScope(frozenset())


def join_scopes(scopes: Iterable[LockScope]) -> LockScope:
    """Return the scope that contains all ``scopes``."""
    return reduce(or_, scopes, NO_SCOPE)


def _hash(name: str) -> int:
    """Return a hash in the range of an advisory lock's second key: 32 bits, signed."""
    number: int = crc32(name.encode())
    return number - (1 << 32) if number >= 1 << 31 else number


def lock_everything(connection: Connection) -> int | None:
    """Lock everything until the end of the transaction, and return the topology's version.

    Return None on SQLite, which has one writer at a time, or if the topology's row was replaced during the wait.
    """
    if connection.dialect.name != "postgresql":
        return None
    version: int | None = connection.execute(_LOCK_EVERYTHING).one().version
    return version


def share_everything(connection: Connection) -> int | None:
    """Prevent other units from locking everything, until the end of the transaction. This function requires PostgreSQL.

    Return the topology's version, or None if the topology's row was replaced during the wait.
    """
    version: int | None = connection.execute(_SHARE_EVERYTHING).one().version
    return version


def lock_scope(connection: Connection, scope: LockScope, *, wait: bool = True) -> LockResult:
    """Lock the keys of a scope in ascending order. ``unnest`` keeps the order of its list.

    Without ``wait``, return the keys that another unit holds, instead of waiting.
    """
    keys = sorted(scope.keys)
    rows = connection.execute(_LOCK_KEYS if wait else _TRY_KEYS, {"keys": keys}).all()
    return LockResult(frozenset(keys).difference(row.key for row in rows), rows[-1].now if rows else None)
