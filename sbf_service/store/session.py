"""Units of work: one database transaction each, nothing half-done, one documented order of locks.

**Order of locks.** Rows are locked in one order only: the topology row, then the
sites in name order, by every unit that changes pools, claims, clusters, placements or revisions. Changes are thus one
after the other; each takes milliseconds, since no unit talks to a device. PostgreSQL locks rows
(``SELECT … FOR UPDATE``), SQLite has one writer at a time (``BEGIN IMMEDIATE``). An element's lease, ``last_seen`` and
``checked_at`` are changed by :meth:`Store.touch`: one row, nothing else locked, so that no order is needed.

**Clock.** ``unit.now`` is the database's clock, read once, after the locks were taken.
"""

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, field
from datetime import datetime
from threading import Lock
from uuid import uuid4

from sqlalchemy import Connection, Engine, create_engine, event, select
from sqlalchemy.engine.interfaces import DBAPIConnection
from sqlalchemy.exc import ArgumentError, IntegrityError
from sqlalchemy.orm import Session
from sqlalchemy.pool import ConnectionPoolEntry

from sbf_service.store.columns import database_now
from sbf_service.store.tables import SiteRow, TopologyRow
from virtcloud.model.errors import BadInput, Conflict

BUSY_TIMEOUT_S = 30.0
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
        """Read from one snapshot; nothing is written."""
        with Session(self.engine.execution_options(**self._snapshot())) as session:
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
        """Close all connections."""
        self.engine.dispose()

    @contextmanager
    def _writing(self, who: str) -> Iterator[Unit]:
        with Session(self.engine.execution_options(virtcloud_write=True)) as session:
            try:
                with self._one_writer(), session.begin():
                    unit = Unit(session, self.clock(session), who)
                    yield unit
            except IntegrityError as error:
                raise Conflict("another call changed the same thing at the same time: ask again") from error
        if unit.changed:
            self.publish(frozenset(unit.changed))

    def _one_writer(self) -> AbstractContextManager[object]:
        """Let this process's threads write to SQLite in turn, at once: its own waiting is by looking again."""
        return self._turn if self.engine.dialect.name == "sqlite" else nullcontext()

    def _snapshot(self) -> dict[str, str]:
        return {"isolation_level": "REPEATABLE READ"} if self.engine.dialect.name == "postgresql" else {}


def make_engine(url: str) -> Engine:
    """Make an engine for SQLite or PostgreSQL; nothing is connected yet. Raises BadInput for no such address."""
    try:
        return _engine(url)
    except (ArgumentError, ImportError) as error:
        raise BadInput(
            f"database: expected an address such as sqlite:////var/lib/virtcloud/sbf.db or "
            f"postgresql+psycopg://user@host/name, got one that cannot be used: {error}"
        ) from error


def _engine(url: str) -> Engine:
    if not url.startswith("sqlite"):
        return create_engine(url, pool_pre_ping=True, pool_size=20, max_overflow=40)
    engine = create_engine(url, connect_args={"timeout": BUSY_TIMEOUT_S}, max_overflow=-1)
    event.listen(engine, "connect", _prepare_sqlite)
    event.listen(engine, "begin", _begin_sqlite)
    return engine


def _prepare_sqlite(connection: DBAPIConnection, _entry: ConnectionPoolEntry) -> None:
    """Leave transactions to :func:`_begin_sqlite`; let readers go on while one writes; keep foreign keys."""
    connection.isolation_level = None
    cursor = connection.cursor()
    for pragma in ("journal_mode=WAL", "synchronous=FULL", "foreign_keys=ON"):
        cursor.execute(f"PRAGMA {pragma}")
    cursor.close()


def _begin_sqlite(connection: Connection) -> None:
    """Say at once that a unit will write, so that two never both read and then wait for each other."""
    writes = connection.get_execution_options().get("virtcloud_write", False)
    connection.exec_driver_sql("BEGIN IMMEDIATE" if writes else "BEGIN")
