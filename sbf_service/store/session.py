"""Units of work: one database transaction each, nothing half-done, one documented order of locks.

**Order of locks.** Rows are locked in one order only: the topology row, then the
sites in name order, by every unit that changes pools, claims, clusters, placements or revisions. Changes are thus one
after the other; each takes milliseconds, since no unit talks to a device. PostgreSQL locks rows
(``SELECT … FOR UPDATE``), SQLite has one writer at a time (``BEGIN IMMEDIATE``). An element's lease, ``last_seen`` and
``checked_at`` are changed by :meth:`Store.touch`: one row, nothing else locked, so that no order is needed. Whoever
changes several elements' leases does so in :meth:`Store.change`.

**Clock.** ``unit.now`` is the database's clock, read once, after the locks were taken.
"""

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, field
from datetime import datetime
from threading import Lock
from uuid import uuid4

from sqlalchemy import Engine, select
from sqlalchemy.orm import Session

from sbf_service.store.columns import database_now
from sbf_service.store.faults import translated
from sbf_service.store.tables import SiteRow, TopologyRow

Clock = Callable[[Session], datetime]
Publish = Callable[[frozenset[str]], None]


@dataclass(slots=True)
class Unit:
    """One unit of work. ``changed`` names what it changed, so that those who wait are woken after the commit."""

    session: Session
    now: datetime
    who: str = "sbf"
    changed: set[str] = field(default_factory=set)


def database_clock(session: Session) -> datetime:
    """Read the database's clock."""
    return session.execute(select(database_now())).scalar_one()


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

    @contextmanager
    def read(self) -> Iterator[Unit]:
        """Read from one snapshot; nothing is written. Raises DatabaseUnavailable, as every unit does."""
        with translated(), Session(self.engine.execution_options(**self._snapshot())) as session:
            yield Unit(session, self.clock(session))

    @contextmanager
    def change(self, *, who: str = "sbf") -> Iterator[Unit]:
        """Change anything: all of it or, on any error, nothing. Raises :class:`Conflict` when overtaken."""
        with self._writing(who) as unit:
            unit.session.execute(select(TopologyRow.version).with_for_update()).all()
            unit.session.execute(select(SiteRow.name).order_by(SiteRow.name).with_for_update()).all()
            unit.now = self.clock(unit.session)
            yield unit

    @contextmanager
    def touch(self, *, who: str = "sbf") -> Iterator[Unit]:
        """Change one row of an element (its lease, when it was last seen) and lock nothing else."""
        with self._writing(who) as unit:
            yield unit

    def close(self) -> None:
        """Close all connections; one that is in use comes back to the same pool, where another call finds it."""
        self.engine.pool.dispose()

    @contextmanager
    def _writing(self, who: str) -> Iterator[Unit]:
        session = Session(self.engine.execution_options(virtcloud_write=True))
        with translated(), session, self._one_writer(), session.begin():
            unit = Unit(session, self.clock(session), who)
            yield unit
        if unit.changed:
            self.publish(frozenset(unit.changed))

    def _one_writer(self) -> AbstractContextManager[object]:
        """Let this process's threads write to SQLite in turn, at once: its own waiting is by looking again."""
        return self._turn if self.engine.dialect.name == "sqlite" else nullcontext()

    def _snapshot(self) -> dict[str, object]:
        if self.engine.dialect.name != "postgresql":
            return {}
        return {"isolation_level": "REPEATABLE READ", "postgresql_readonly": True}
