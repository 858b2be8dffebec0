"""Lock scopes: what a unit of work on PostgreSQL locks. Decision 85 lists what each lock protects.

A unit locks either everything, or a :class:`LockScope`: the sites and names that the unit changes. Units with disjoint
scopes run side by side. PostgreSQL's advisory locks of a transaction end with the transaction, also when the connection
of the replica is lost.

**Lock order.** Each unit first locks :data:`EVERYTHING`: shared if the unit has a scope, otherwise exclusively. A unit
with a scope then locks the keys of its scope in ascending order, all before its first change. A unit that does not wait
(``pg_try_advisory_xact_lock``) may lock keys in any order. A unit that locks everything excludes all other units.
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
"""The first key of the advisory locks of scopes (the letters "site"). The second key is a hash of the site or name."""
MAX_KEYS = 64
"""The highest number of locks of one unit. A unit that needs more locks everything.

PostgreSQL's table of locks has room for 64 locks per connection (``max_locks_per_transaction``).
"""

_LOCK_ROW = select(TopologyRow.version).with_for_update()
_LOCK_EVERYTHING = text(f"SELECT pg_advisory_xact_lock({EVERYTHING}, 0)")
_SHARE_EVERYTHING = text(
    f"SELECT pg_advisory_xact_lock_shared({EVERYTHING}, 0), (SELECT version FROM topology FOR KEY SHARE)"  # noqa: S608 - a constant
)
"""The lock of the row excludes units of an earlier version, which lock the topology row."""
_KEYS = bindparam("keys", type_=ARRAY(Integer))
_LOCK_KEYS = text(f"SELECT pg_advisory_xact_lock({SCOPE_CLASS}, key) FROM unnest(:keys) AS key").bindparams(_KEYS)  # noqa: S608 - a constant
_TRY_KEYS = text(
    f"SELECT key FROM unnest(:keys) AS key WHERE pg_try_advisory_xact_lock({SCOPE_CLASS}, key)"  # noqa: S608 - a constant
).bindparams(_KEYS)


class OutsideScopeError(Exception):
    """A unit has to change more than its scope. The store repeats the unit and locks everything."""


@dataclass(frozen=True, slots=True)
class LockScope:
    """The sites that a unit changes, and the names that no other unit may use at the same time.

    A name contains its kind, for example ``owner alice``.
    """

    sites: frozenset[str]
    names: frozenset[str] = frozenset()

    @property
    def keys(self) -> frozenset[int]:
        """The second keys of the advisory locks. Two names may have the same key, and then exclude each other."""
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
    """Lock everything until the end of the transaction. SQLite needs no lock, because it has one writer at a time."""
    if connection.dialect.name == "postgresql":
        connection.execute(_LOCK_EVERYTHING)
        connection.execute(_LOCK_ROW).all()


def share_everything(connection: Connection) -> None:
    """Exclude the units that lock everything until the end of the transaction. Only for PostgreSQL."""
    connection.execute(_SHARE_EVERYTHING)


def lock_scope(connection: Connection, scope: LockScope, *, wait: bool = True) -> frozenset[int]:
    """Lock the keys of a scope. Return the keys that another unit holds, which are none if ``wait``.

    The function scan of ``unnest`` returns the keys in their order, so the database locks them in ascending order.
    """
    keys = sorted(scope.keys)
    if wait:
        connection.execute(_LOCK_KEYS, {"keys": keys}).all()
        return frozenset()
    return frozenset(keys) - frozenset(connection.execute(_TRY_KEYS, {"keys": keys}).scalars())
