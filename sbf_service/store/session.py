"""Units of work: one database transaction each, nothing half-done, one documented order of locks.

**Order of locks.** The topology row is locked first, by every unit that changes pools, claims, clusters, placements or
revisions. Changes are thus one after the other; each takes milliseconds, since no unit talks to a device. It is one
row, so that a cluster over a thousand sites locks no more than one over two. PostgreSQL locks it
(``SELECT … FOR UPDATE``), SQLite has one writer at a time (``BEGIN IMMEDIATE``). An element's lease, ``last_seen`` and
``checked_at`` are changed by :meth:`Store.touch`: one row, nothing else locked, so that no order is needed. Whoever
changes several elements' leases does so in :meth:`Store.change`.

**Clock.** ``unit.now`` is the database's clock, read once, after the locks were taken.
"""

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, field
from datetime import datetime
from functools import cached_property
from threading import Lock
from typing import TypeVar
from uuid import uuid4

from sqlalchemy import Connection, Engine, select
from sqlalchemy.orm import Session

from sbf_service.store.columns import database_now
from sbf_service.store.faults import translated
from sbf_service.store.tables import TopologyRow
from sbf_service.store.together import Together
from virtcloud.model.topology import Topology

Clock = Callable[[Session], datetime]
Publish = Callable[[frozenset[str]], None]
T = TypeVar("T")

_LOCK = select(TopologyRow.version).with_for_update()
_NOW = select(database_now())


@dataclass(slots=True)
class Unit:
    """One unit of work. ``changed`` names what it changed, so that those who wait are woken after the commit.

    ``topologies`` are those parsed before, by version; all units of a store share them.
    """

    session: Session
    now: datetime
    topologies: dict[int, Topology]
    who: str = "sbf"
    changed: set[str] = field(default_factory=set)

    @property
    def connection(self) -> Connection:
        """For prepared statements about rows that the session has not loaded: it does no bookkeeping."""
        return self.session.connection()


def database_clock(session: Session) -> datetime:
    """Read the database's clock."""
    return session.connection().execute(_NOW).scalar_one()


def random_id() -> str:
    """Make an identifier that was never used before."""
    return uuid4().hex


@dataclass(frozen=True)
class Store:
    """Gives units of work on one database; may be used by any number of threads."""

    engine: Engine
    publish: Publish = lambda _changed: None
    clock: Clock = database_clock
    new_id: Callable[[], str] = random_id
    _turn: Lock = field(default_factory=Lock)
    _topologies: dict[int, Topology] = field(default_factory=dict)
    _together: Together[Unit] = field(default_factory=Together)

    @contextmanager
    def read(self) -> Iterator[Unit]:
        """Read from one snapshot; nothing is written. Raises DatabaseUnavailable, as every unit does."""
        with translated(), Session(self._reading) as session:
            yield Unit(session, self.clock(session), self._topologies)

    @contextmanager
    def change(self, *, who: str = "sbf") -> Iterator[Unit]:
        """Change anything: all of it or, on any error, nothing. Raises :class:`Conflict` when overtaken."""
        with self._writing(who, lambda session: session.connection().execute(_LOCK).all()) as unit:
            yield unit

    @contextmanager
    def rehearse(self) -> Iterator[Unit]:
        """Try a change and roll it back: what it raises and what follows from it can be seen; nobody is woken."""
        session = Session(self._writer)
        with translated(), session, self._one_writer():
            session.connection().execute(_LOCK).all()
            try:
                yield Unit(session, self.clock(session), dict(self._topologies))
            finally:
                session.rollback()

    @contextmanager
    def touch(self, *, who: str = "sbf") -> Iterator[Unit]:
        """Change one row of an element (its lease, when it was last seen) and lock nothing else."""
        with self._writing(who) as unit:
            yield unit

    def together(self, work: Callable[[Unit], T]) -> T:
        """Change anything, in one transaction with others that ask at the same moment: see :mod:`.together`."""
        return self._together.do(self.change, work)

    def close(self) -> None:
        """Close all connections; one that is in use comes back to the same pool, where another call finds it."""
        self.engine.pool.dispose()

    @contextmanager
    def _writing(self, who: str, lock: Callable[[Session], object] = lambda _session: None) -> Iterator[Unit]:
        session = Session(self._writer)
        with translated(), session, self._one_writer(), session.begin():
            lock(session)
            unit = Unit(session, self.clock(session), self._topologies, who)
            yield unit
        if unit.changed:
            self.publish(frozenset(unit.changed))

    def _one_writer(self) -> AbstractContextManager[object]:
        """Let this process's threads write to SQLite in turn, at once: its own waiting is by looking again."""
        return self._turn if self.engine.dialect.name == "sqlite" else nullcontext()

    @cached_property
    def _writer(self) -> Engine:
        return self.engine.execution_options(virtcloud_write=True)

    @cached_property
    def _reading(self) -> Engine:
        """Let PostgreSQL show one snapshot to a whole unit; SQLite always does."""
        if self.engine.dialect.name != "postgresql":
            return self.engine
        return self.engine.execution_options(isolation_level="REPEATABLE READ", postgresql_readonly=True)
