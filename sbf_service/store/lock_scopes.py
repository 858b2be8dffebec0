"""Lock scopes: the locks of a unit of work on PostgreSQL. Decision 85 lists what each lock protects.

A unit locks either everything, or a :class:`LockScope`: the sites and names that the unit changes. Units run in
parallel if their scopes have no site and no name in common. All locks are PostgreSQL's advisory locks, which end with
the transaction, even if the connection is lost.

**Lock order.** Each unit first acquires the lock :data:`EVERYTHING`. A unit with a scope acquires this lock in shared
mode; a unit without a scope acquires this lock in exclusive mode. After that, a unit with a scope locks the keys of its
scope in ascending order, before its first change. For a unit that does not wait (``pg_try_advisory_xact_lock``), the
order does not matter.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from functools import reduce
from operator import or_
from typing import Final
from zlib import crc32

from sqlalchemy import Connection, bindparam, select, text
from sqlalchemy.dialects.postgresql import ARRAY
from sqlalchemy.types import Integer

from sbf_service.store.tables import TopologyRow

EVERYTHING: Final = 0x756E6974
"""The first key of the advisory lock of all units (the letters "unit"). The second key is 0."""
SCOPE_CLASS: Final = 0x73697465
"""The first key of the locks of scopes (the letters "site"). The second key is a hash of the site or name."""
MAX_KEYS = 64
"""The maximum number of keys in a scope. With more keys, a unit locks everything.

PostgreSQL's table of locks has space for 64 locks per connection (``max_locks_per_transaction``).
"""

_LOCK_ROW = select(TopologyRow.version).with_for_update()
_LOCK_EVERYTHING = text(f"SELECT pg_advisory_xact_lock({EVERYTHING}, 0)")
_SHARE_EVERYTHING = text(
    f"SELECT pg_advisory_xact_lock_shared({EVERYTHING}, 0), (SELECT version FROM topology FOR KEY SHARE)"  # noqa: S608 - a constant
)
"""This statement also locks the topology's row in shared mode: replicas of an earlier version lock this row for each
change.
"""
_KEYS = bindparam("keys", type_=ARRAY(Integer))
_LOCK_KEYS = text(f"SELECT pg_advisory_xact_lock({SCOPE_CLASS}, key) FROM unnest(:keys) AS key").bindparams(_KEYS)  # noqa: S608 - a constant
_TRY_KEYS = text(
    f"SELECT key FROM unnest(:keys) AS key WHERE pg_try_advisory_xact_lock({SCOPE_CLASS}, key)"  # noqa: S608 - a constant
).bindparams(_KEYS)


class OutsideScopeError(Exception):
    """A unit would change something outside its scope. The store locks everything and runs the unit's work again."""


@dataclass(frozen=True, slots=True)
class LockScope:
    """The sites and names that a unit locks. A name begins with its kind, for example ``owner alice``."""

    sites: frozenset[str]
    names: frozenset[str] = frozenset()

    @property
    def keys(self) -> frozenset[int]:
        """The second keys of the advisory locks: hashes of the sites and names.

        Two units whose names differ, but have the same hash, wait for each other. This wait costs time, but causes no
        error.
        """
        return frozenset(map(_hash, (*(f"site {site}" for site in self.sites), *self.names)))

    def __or__(self, other: "LockScope") -> "LockScope":
        """Return the scope that contains both scopes."""
        return LockScope(self.sites | other.sites, self.names | other.names)

    def contains(self, other: "LockScope") -> bool:
        """Return whether this scope contains another scope."""
        return self.sites >= other.sites and self.names >= other.names


NO_SCOPE: Final = LockScope(frozenset())


def join_scopes(scopes: Iterable[LockScope]) -> LockScope:
    """Return the scope that contains all ``scopes``."""
    return reduce(or_, scopes, NO_SCOPE)


def _hash(name: str) -> int:
    """Return a signed number of 32 bits, the type of an advisory lock's second key."""
    number: int = crc32(name.encode())
    return number - (1 << 32) if number >= 1 << 31 else number


def lock_everything(connection: Connection) -> None:
    """Lock everything until the end of the transaction. SQLite has one writer at a time, and needs no lock."""
    if connection.dialect.name == "postgresql":
        connection.execute(_LOCK_EVERYTHING)
        connection.execute(_LOCK_ROW).all()


def share_everything(connection: Connection) -> None:
    """Prevent other units from locking everything, until the end of the transaction. Only for PostgreSQL."""
    connection.execute(_SHARE_EVERYTHING)


def lock_scope(connection: Connection, scope: LockScope, *, wait: bool = True) -> frozenset[int]:
    """Lock the keys of a scope in ascending order. PostgreSQL locks the keys in the order of the list in ``unnest``.

    With ``wait``, wait for keys that another unit holds, and return an empty set. Without ``wait``, return the keys
    that another unit holds.
    """
    keys = sorted(scope.keys)
    if wait:
        connection.execute(_LOCK_KEYS, {"keys": keys}).all()
        return frozenset()
    return frozenset(keys) - frozenset(connection.execute(_TRY_KEYS, {"keys": keys}).scalars())
