"""The store opens units of work on one database, and publishes their changes after the commit.

**Locks.** A unit that changes pools, claims, clusters, placements or revisions locks everything (:meth:`Store.change`),
or only a scope (:meth:`Store.change_scope`, :meth:`Store.group_commit`). :mod:`.transactions.lock_scopes` describes the
locks and their order. A change takes milliseconds, because no unit communicates with a device. On SQLite, which allows
one writer at a time (``BEGIN IMMEDIATE``), each change locks everything. A unit that changes a single row, such as an
element's lease, locks only this row (:meth:`Store.change_row`), and needs no lock order.

**Group commit.** See :mod:`.transactions.group_commit`.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import TypeVar
from uuid import uuid4

from sqlalchemy import Engine
from sqlalchemy.orm import Session

from sbf_service.log import get_log
from sbf_service.store.connections.database_errors import translate_errors
from sbf_service.store.tables.columns import read_database_clock
from sbf_service.store.topology.topology_cache import TopologyCache
from sbf_service.store.transactions.change_notices import send_notice
from sbf_service.store.transactions.fair_lock import FairLock
from sbf_service.store.transactions.group_commit import FindScope, GroupCommit
from sbf_service.store.transactions.lock_scopes import (
    MAX_KEYS,
    LockScope,
    OutsideScopeError,
    join_scopes,
    lock_everything,
    lock_scope,
    share_everything,
)
from sbf_service.store.unit_of_work import Clock, Unit
from virtcloud.model.topology import Topology

Publish = Callable[[frozenset[str]], None]
Measure = Callable[[str], AbstractContextManager[object]]
"""A function that measures the duration of a transaction (``read`` or ``write``), including the wait for locks."""
T = TypeVar("T")

log = get_log(__name__)


def make_random_id() -> str:
    """Return a new unique identifier."""
    return uuid4().hex


@dataclass(frozen=True)
class Store:
    """Opens units of work on one database. Thread-safe. Every unit can raise DatabaseUnavailable."""

    engine: Engine
    publish: Publish = lambda _changed: None
    clock: Clock = read_database_clock
    new_id: Callable[[], str] = make_random_id
    measure: Measure = lambda _kind: nullcontext()
    name: str = field(default_factory=make_random_id)
    """The name under which this store sends notices of its changes to other replicas."""
    _sqlite_writer: FairLock = field(default_factory=FairLock)
    _cache: TopologyCache = field(default_factory=TopologyCache)
    _group_commit: GroupCommit[Unit] = field(default_factory=GroupCommit)

    @contextmanager
    def read(self) -> Iterator[Unit]:
        """Open a unit that reads one snapshot, and must not write."""
        with self.measure("read"), translate_errors(), Session(self._reader) as session:
            unit = Unit(session, self.clock, self._cache)
            yield unit
            _commit_read(session)
        self._remember_checked(unit)

    @contextmanager
    def change(self, *, who: str = "sbf") -> Iterator[Unit]:
        """Open a unit for any change. An error rolls the unit back.

        Raise Conflict if a concurrent unit changed the same rows first.
        """
        with self._write(who, _lock_everything) as unit:
            yield unit

    def change_scope(self, find_scope: FindScope[Unit], work: Callable[[Unit], T], *, who: str = "sbf") -> T:
        """Run ``work`` in a unit that locks a scope, and return its result.

        Find the scope, lock it, and find it again. If the scope has grown, or if ``work`` raises OutsideScopeError, run
        ``work`` in a unit that locks everything.
        """
        if self.has_scopes:
            try:
                with self._write(who, lambda unit: _lock_found_scope(unit, find_scope)) as unit:
                    return work(unit)
            except OutsideScopeError as error:
                log.info("everything_locked", reason=str(error))
        with self.change(who=who) as unit:
            return work(unit)

    @contextmanager
    def change_scopes(
        self, find_scopes: Sequence[FindScope[Unit]], *, wait: bool
    ) -> Iterator[Sequence[Unit | frozenset[int]]]:
        """Open one transaction with a unit for each scope, as :class:`.GroupTransactions` describes."""
        scopes: list[LockScope] = []
        missing = frozenset[int]()

        def lock(unit: Unit) -> None:
            nonlocal missing
            unit.values.topology_version = share_everything(unit.connection)
            scopes.extend(_find_in(unit, find_scope) for find_scope in find_scopes)
            missing = _lock_scope(unit, join_scopes(scopes), wait=wait)

        with self._write("sbf", lock) as unit:
            yield [scope.keys & missing or replace(unit, scope=scope) for scope in scopes]

    @property
    def cached_topology(self) -> Topology | None:
        """The newest topology in the cache, or None. A replica may have stored a newer topology."""
        return self._cache.newest

    @property
    def has_scopes(self) -> bool:
        """Whether units can lock scopes, instead of everything as on SQLite."""
        return self.engine.dialect.name == "postgresql"

    @contextmanager
    def change_row(self, *, who: str = "sbf") -> Iterator[Unit]:
        """Open a unit that changes a single row, such as an element's lease, and locks nothing else."""
        with self._write(who) as unit:
            yield unit

    @contextmanager
    def dry_run(self) -> Iterator[Unit]:
        """Open a unit for any change, and roll the unit back at the end."""
        session = Session(self._writer)
        with translate_errors(), session, self._lock_sqlite():
            unit = Unit(session, self.clock, self._cache.copy())
            _lock_everything(unit)
            try:
                yield unit
            finally:
                session.rollback()

    def group_commit(self, work: Callable[[Unit], T], find_scope: FindScope[Unit] | None = None) -> T:
        """Run ``work`` in one transaction together with other callers' changes. See :meth:`GroupCommit.run`.

        Without ``find_scope``, the transaction locks everything.
        """
        return self._group_commit.run(self, work, find_scope if self.has_scopes else None)

    def close(self) -> None:
        """Close all idle connections."""
        self.engine.pool.dispose()

    @contextmanager
    def _write(self, who: str, lock: Callable[[Unit], object] = lambda _unit: None) -> Iterator[Unit]:
        session = Session(self._writer)
        with ExitStack() as until_cached:
            with self.measure("write"), translate_errors(), session, self._lock_sqlite(), session.begin():
                unit = Unit(session, self.clock, self._cache, who)
                lock(unit)
                yield unit
                if unit.changed:
                    send_notice(session.connection(), self.name, unit.changed)
                if unit.new_topology is not None and self._cache.committing.acquire(blocking=False):
                    # between the commit and the update of the cache, other threads would parse the whole topology
                    until_cached.callback(self._cache.committing.release)
            self._remember_checked(unit)
            if unit.new_topology is not None and unit.topology_version is not None:
                self._cache.add(unit.topology_version, unit.new_topology)
        if unit.changed:
            self.publish(frozenset(unit.changed))

    def _remember_checked(self, unit: Unit) -> None:
        if unit.values.checked_version is not None:
            self._cache.checked.add(unit.values.checked_version)

    def _lock_sqlite(self) -> AbstractContextManager[object]:
        """Return a lock for this process's SQLite writers, which would otherwise poll SQLite while they wait."""
        return self._sqlite_writer if self.engine.dialect.name == "sqlite" else nullcontext()

    @cached_property
    def _writer(self) -> Engine:
        return self.engine.execution_options(virtcloud_write=True)

    @cached_property
    def _reader(self) -> Engine:
        """The engine for transactions that read one snapshot, as every transaction on SQLite does."""
        if self.engine.dialect.name != "postgresql":
            return self.engine
        return self.engine.execution_options(isolation_level="REPEATABLE READ", postgresql_readonly=True)


def _commit_read(session: Session) -> None:
    """Commit a transaction that only read, without writing the session's objects.

    After a rollback, psycopg discards all prepared statements of the connection.
    """
    transaction = session.connection().get_transaction() if session.in_transaction() else None
    if transaction is not None:
        transaction.commit()


def _find_in(unit: Unit, find_scope: FindScope[Unit]) -> LockScope:
    scope = find_scope(unit)
    if len(scope.sites) + len(scope.names) > MAX_KEYS:
        raise OutsideScopeError(f"{len(scope.sites)} sites and {len(scope.names)} names")
    return scope


def _lock_everything(unit: Unit) -> None:
    unit.values.topology_version = lock_everything(unit.connection)


def _lock_scope(unit: Unit, scope: LockScope, *, wait: bool = True) -> frozenset[int]:
    """Lock a scope, and return the keys that another unit holds. The statement also reads the database's clock."""
    result = lock_scope(unit.connection, scope, wait=wait)
    if unit.clock is read_database_clock:
        unit.values.now = result.now or unit.values.now
    return result.missing


def _lock_found_scope(unit: Unit, find_scope: FindScope[Unit]) -> None:
    unit.values.topology_version = share_everything(unit.connection)
    unit.scope = _find_in(unit, find_scope)
    _lock_scope(unit, unit.scope)
    unit.session.expire_all()
    if not unit.scope.contains(find_scope(unit)):
        raise OutsideScopeError("the scope has grown")
