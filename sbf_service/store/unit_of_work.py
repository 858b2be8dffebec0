"""Units of work: one database transaction each, nothing half-done, one documented order of locks.

**Order of locks.** The topology row is locked first, by every unit that changes pools, claims, clusters, placements or
revisions. Changes are thus one after the other; each takes milliseconds, since no unit talks to a device. It is one
row, so that a cluster over a thousand sites locks no more than one over two. PostgreSQL locks it
(``SELECT … FOR UPDATE``), SQLite has one writer at a time (``BEGIN IMMEDIATE``). An element's lease, ``last_seen`` and
``checked_at`` are changed by :meth:`Store.touch`: one row, nothing else locked, so that no order is needed. Whoever
changes several elements' leases does so in :meth:`Store.change`.

**Clock.** ``unit.now`` is the database's clock, read once, after the locks were taken.

Requests that wait at the same moment share one transaction: its lock and its way to the disk are paid for once.

Nobody waits for company: whoever finds the turn free takes along those who came while it was not. When one of them
meets an error, nothing of that transaction stays, and each is done again in a transaction of its own.

A database's errors in our words: what is raised in a unit of work leaves it as one of ours (STYLE rule 11).

Reading the topology that is in force.

The audit log: who changed what, when, why, on which element, with the difference (DESIGN.md §7.8).
"""

from collections import deque
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, field
from datetime import datetime
from functools import cached_property
from threading import Lock
from typing import Generic, TypeVar
from uuid import uuid4

from sqlalchemy import Connection, Engine, exc, insert, select
from sqlalchemy.orm import Session

from sbf_service.log import get_log
from sbf_service.store.columns import database_now
from sbf_service.store.tables import AuditRow, Base, TopologyRow
from virtcloud.model.document import Document
from virtcloud.model.errors import Conflict, DatabaseUnavailable, NotFound
from virtcloud.model.topology import Topology

log = get_log(__name__)

OVERTAKEN_SQLSTATES = frozenset({"40001", "40P01"})
"""PostgreSQL's serialization failure and deadlock: another unit went first. The order of locks leaves no room for
them; who holds locks out of that order is not one of us."""


@contextmanager
def translate_errors() -> Iterator[None]:
    """Raise Conflict for a unit that was overtaken, DatabaseUnavailable for a database that cannot do it now."""
    try:
        yield
    except exc.IntegrityError as error:
        raise _make_overtaken() from error
    except (exc.OperationalError, exc.InternalError, exc.InterfaceError, exc.TimeoutError) as error:
        cause = error.orig if isinstance(error, exc.DBAPIError) else error
        if getattr(cause, "sqlstate", None) in OVERTAKEN_SQLSTATES:
            raise _make_overtaken() from error
        log.warning("database_unavailable", cause=" ".join(str(cause).split()))
        raise DatabaseUnavailable(
            "the database does not answer; nothing was changed by this call or it can be repeated: try again"
        ) from error


def _make_overtaken() -> Conflict:
    return Conflict("another call changed the same thing at the same time: ask again")


MAX_GROUP = 16
"""They hold the lock for all others together: some tens of milliseconds."""

Transaction = TypeVar("Transaction")
Result = TypeVar("Result")


@dataclass(slots=True)
class QueuedChange(Generic[Transaction]):
    """What one thread waits for: ``work`` puts what came of it where that thread finds it."""

    work: Callable[[Transaction], None]
    done: bool = False
    error: Exception | None = None


@dataclass
class GroupCommit(Generic[Transaction]):
    """Does the requests of many threads."""

    _waiting: deque[QueuedChange[Transaction]] = field(default_factory=deque)
    _turn: Lock = field(default_factory=Lock)

    def do(
        self, change: Callable[[], AbstractContextManager[Transaction]], work: Callable[[Transaction], Result]
    ) -> Result:
        """Do ``work`` in a transaction that ``change`` gives; raises what it raises.

        It may be done twice, the first time in a transaction of which nothing stays.
        """
        results: list[Result] = []
        mine = QueuedChange[Transaction](lambda unit: results.append(work(unit)))
        self._waiting.append(mine)
        with self._turn:
            while not mine.done:
                self._do_some(change)
        if mine.error is not None:
            raise mine.error
        return results[-1]

    def _do_some(self, change: Callable[[], AbstractContextManager[Transaction]]) -> None:
        some = [self._waiting.popleft() for _ in range(min(len(self._waiting), MAX_GROUP))]
        error = _commit_together(change, some)
        again = error is not None and len(some) > 1 and not isinstance(error, DatabaseUnavailable)
        for request in some:
            request.error = _commit_together(change, [request]) if again else error
            request.done = True


def _commit_together(
    change: Callable[[], AbstractContextManager[Transaction]], some: list[QueuedChange[Transaction]]
) -> Exception | None:
    try:
        with change() as unit:
            for request in some:
                request.work(unit)
    except Exception as error:  # noqa: BLE001 - it is raised in the thread that asked
        return error
    return None


Clock = Callable[[Session], datetime]
Publish = Callable[[frozenset[str]], None]
T = TypeVar("T")

_LOCK_TOPOLOGY = select(TopologyRow.version).with_for_update()
_READ_CLOCK = select(database_now())


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


def read_database_clock(session: Session) -> datetime:
    """Read the database's clock."""
    return session.connection().execute(_READ_CLOCK).scalar_one()


def make_random_id() -> str:
    """Make an identifier that was never used before."""
    return uuid4().hex


@dataclass(frozen=True)
class Store:
    """Gives units of work on one database; may be used by any number of threads."""

    engine: Engine
    publish: Publish = lambda _changed: None
    clock: Clock = read_database_clock
    new_id: Callable[[], str] = make_random_id
    _turn: Lock = field(default_factory=Lock)
    _topologies: dict[int, Topology] = field(default_factory=dict)
    _together: GroupCommit[Unit] = field(default_factory=GroupCommit)

    @contextmanager
    def read(self) -> Iterator[Unit]:
        """Read from one snapshot; nothing is written. Raises DatabaseUnavailable, as every unit does."""
        with translate_errors(), Session(self._reading) as session:
            yield Unit(session, self.clock(session), self._topologies)

    @contextmanager
    def change(self, *, who: str = "sbf") -> Iterator[Unit]:
        """Change anything: all of it or, on any error, nothing. Raises :class:`Conflict` when overtaken."""
        with self._writing(who, lambda session: session.connection().execute(_LOCK_TOPOLOGY).all()) as unit:
            yield unit

    @contextmanager
    def rehearse(self) -> Iterator[Unit]:
        """Try a change and roll it back: what it raises and what follows from it can be seen; nobody is woken."""
        session = Session(self._writer)
        with translate_errors(), session, self._one_writer():
            session.connection().execute(_LOCK_TOPOLOGY).all()
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
        with translate_errors(), session, self._one_writer(), session.begin():
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


TOPOLOGY_TOPIC = "topology"
"""Who waits for another topology waits for this."""

_READ_VERSION = select(TopologyRow.version)
_READ_DOCUMENT = select(TopologyRow.document)
_READ_PRESENCE = select(TopologyRow.version, TopologyRow.document.is_not(None))


def read_topology_version(unit: Unit) -> int | None:
    """Return the version of the topology in force; None before the first one was put."""
    version, is_there = unit.connection.execute(_READ_PRESENCE).one()
    return version if is_there else None


def read_topology(unit: Unit) -> Topology:
    """Read the topology; raises NotFound before the first one was put.

    Every unit reads it, so that the newest one is kept, by its version. One that this unit put is not: it may yet be
    rolled back, and another one get its version.
    """
    version = unit.connection.execute(_READ_VERSION).scalar_one()
    found = unit.topologies.get(version)
    if found is None:
        found = _parse_topology(unit)
        if TOPOLOGY_TOPIC not in unit.changed:
            unit.topologies.clear()
            unit.topologies[version] = found
    return found


def _parse_topology(unit: Unit) -> Topology:
    """Parse what was checked when it was put."""
    document = unit.session.execute(_READ_DOCUMENT).scalar_one()
    if document is None:
        raise NotFound("there is no topology yet: put one with PUT /v1/topology")
    return Topology.model_validate_json(document)


AUDIT_TOPIC = "audit"
"""Who waits for new rows waits for this."""

_INSERT_AUDIT = insert(Base.metadata.tables[AuditRow.__tablename__]).inline()


def record_audit(  # noqa: PLR0913 - these are the questions that an audit row answers
    unit: Unit,
    what: str,
    *,
    why: str | None = None,
    element: str | None = None,
    cluster_id: str | None = None,
    difference: Document | None = None,
) -> None:
    """Write one row, in the transaction that makes the change."""
    shown = None if difference is None else difference.model_dump_json(exclude_defaults=True)
    said = {"who": unit.who, "what": what, "why": why, "element": element, "cluster_id": cluster_id}
    unit.connection.execute(_INSERT_AUDIT, {"at": unit.now, "difference": shown, **said})
    unit.changed.add(AUDIT_TOPIC)
