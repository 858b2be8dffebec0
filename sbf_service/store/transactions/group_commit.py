"""Group commit: one thread, the leader, commits the changes of all callers that queued during the previous commit.

On PostgreSQL, a group of changes with scopes locks only the sites and names in these scopes (:mod:`.lock_scopes`), and
does not wait for locks. A change that needs a lock of another transaction moves to a queue for this lock. The other
changes of the group are committed.
"""

from collections import deque
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from contextvars import copy_context
from dataclasses import dataclass, field
from threading import Lock
from typing import Generic, Protocol, TypeVar

from sbf_service.store.transactions.lock_scopes import LockScope, OutsideScopeError
from virtcloud.model.errors import DatabaseUnavailable

T = TypeVar("T")
U = TypeVar("U")
U_co = TypeVar("U_co", covariant=True)

MAX_GROUP = 16
"""The maximum number of changes in one transaction, which therefore holds its locks for less than 0.1 s."""
FindScope = Callable[[U], LockScope]
"""A function that returns the sites and names that a change must lock.

The function reads the database in the unit of work that it receives, and raises OutsideScopeError if the change must
lock everything.
"""


def _make_locked() -> Lock:
    lock = Lock()
    lock.acquire()
    return lock


class GroupTransactions(Protocol[U_co]):
    """Opens the transactions of groups."""

    def change(self) -> AbstractContextManager[U_co]:
        """Open a unit that locks everything."""

    def change_scopes(
        self, find_scopes: Sequence[FindScope[U_co]], *, wait: bool
    ) -> AbstractContextManager[Sequence[U_co | frozenset[int]]]:
        """Open one transaction with a unit for each scope, in the order of ``find_scopes``.

        Unless ``wait``, yield the keys of the locks that other transactions hold, instead of the scope's unit.
        """


@dataclass(slots=True, eq=False)
class _QueuedChange(Generic[U]):
    """A change whose thread waits for the commit.

    ``is_finished``: the change is committed, has failed, or must wait for the locks with the keys ``missing``.
    ``woken`` is a locked lock, whose release ends the wait of the change's thread.
    """

    work: Callable[[U], None]
    find_scope: FindScope[U] | None
    is_finished: bool = False
    missing: frozenset[int] = frozenset()
    error: Exception | None = None
    woken: Lock = field(default_factory=_make_locked)


@dataclass
class _CommitQueue(Generic[U]):
    """A queue of changes.

    One thread at a time, the leader, commits a group of changes. The leader's own change is the first of the group.
    Afterwards, the leader wakes all threads of the group, and the thread of the next queued change as the next leader.
    If ``waits``, leaders wait for locks of other transactions.
    """

    waits: bool
    changes: deque[_QueuedChange[U]] = field(default_factory=deque)
    _leader: _QueuedChange[U] | None = None
    """The change whose thread leads, or None."""
    _guard: Lock = field(default_factory=Lock)
    """Protects the other fields. No thread holds the guard while it waits or commits."""

    @property
    def is_idle(self) -> bool:
        return self._leader is None

    def commit(self, transactions: GroupTransactions[U], queued: _QueuedChange[U]) -> None:
        """Queue a change, and wait until it is committed, has failed, or must wait for a lock (``missing``)."""
        queued.is_finished, queued.missing, queued.woken = False, frozenset(), _make_locked()
        try:
            with self._guard:
                self.changes.append(queued)
                self._leader = self._leader or queued
                leads = self._leader is queued
            if not leads:
                queued.woken.acquire()  # released by a leader
            if not queued.is_finished:
                self._lead(transactions)
        finally:
            self._leave(queued)

    def _lead(self, transactions: GroupTransactions[U]) -> None:
        with self._guard:
            group = self._take_group()
        try:
            self._commit_group(transactions, group)
        finally:
            for queued in group:
                if not queued.is_finished:  # the handler of a signal raised an error, for example KeyboardInterrupt
                    queued.error, queued.is_finished = DatabaseUnavailable("the commit was interrupted"), True
                queued.woken.release()

    def _leave(self, queued: _QueuedChange[U]) -> None:
        """If the thread of ``queued`` is the leader, make the thread of the next queued change the leader.

        After an error of a signal's handler, such as KeyboardInterrupt, ``queued`` may still be in the queue.
        """
        with self._guard:
            if queued in self.changes:
                self.changes.remove(queued)
            if self._leader is queued:
                self._leader = self.changes[0] if self.changes else None
                if self._leader is not None:
                    self._leader.woken.release()

    def _take_group(self) -> list[_QueuedChange[U]]:
        """Remove the next group of changes from the queue.

        A group that begins with a scope ends before the next change that locks everything.
        """
        group = [self.changes.popleft()]
        while self.changes and len(group) < MAX_GROUP:
            if group[0].find_scope is not None and self.changes[0].find_scope is None:
                break
            group.append(self.changes.popleft())
        return group

    def _commit_group(self, transactions: GroupTransactions[U], group: Sequence[_QueuedChange[U]]) -> None:
        error = self._try_commit(transactions, group)
        is_final = error is None or isinstance(error, DatabaseUnavailable)
        run_again = not is_final and (len(group) > 1 or isinstance(error, OutsideScopeError))
        if len(group) == 1 and run_again:
            group[0].find_scope = None
        for queued in group:
            if not queued.missing:
                queued.error = self._commit_alone(transactions, queued) if run_again else error
            queued.is_finished = True

    def _commit_alone(self, transactions: GroupTransactions[U], queued: _QueuedChange[U]) -> Exception | None:
        error = self._try_commit(transactions, [queued])
        if isinstance(error, OutsideScopeError):
            queued.find_scope = None
            error = self._try_commit(transactions, [queued])
        return error

    def _try_commit(self, transactions: GroupTransactions[U], group: Sequence[_QueuedChange[U]]) -> Exception | None:
        finders = [queued.find_scope for queued in group if queued.find_scope is not None]
        try:
            if group[0].find_scope is None:
                with transactions.change() as unit:
                    for queued in group:
                        queued.work(unit)
            else:
                with transactions.change_scopes(finders, wait=self.waits) as units:
                    _work_where_locked(group, units)
        except Exception as error:  # noqa: BLE001 - raised again in the thread that queued the change
            for queued in group:
                queued.missing = frozenset()
            return error
        return None


def _work_where_locked(group: Sequence[_QueuedChange[U]], units: Sequence[U | frozenset[int]]) -> None:
    for queued, unit in zip(group, units, strict=True):
        if isinstance(unit, frozenset):
            queued.missing = unit
        else:
            queued.work(unit)


@dataclass
class GroupCommit(Generic[U]):
    """Commits the changes of many threads in shared transactions."""

    _first: _CommitQueue[U] = field(default_factory=lambda: _CommitQueue(waits=False))
    _by_missing_lock: dict[int, _CommitQueue[U]] = field(default_factory=dict)

    @property
    def waiting(self) -> int:
        """The number of changes that wait for the commit of another thread's group."""
        return len(self._first.changes)

    def run(
        self, transactions: GroupTransactions[U], work: Callable[[U], T], find_scope: FindScope[U] | None = None
    ) -> T:
        """Run ``work`` in a transaction, possibly with changes of other threads.

        Return the result of ``work``, or raise its error. After an error in a shared transaction, roll it back, and run
        each change again in a separate transaction. After OutsideScopeError, run the change again in a transaction that
        locks everything. After DatabaseUnavailable, run no change again: all callers of the transaction receive this
        error.
        """
        results: list[T] = []
        context = copy_context()  # another thread may run the change, and needs the caller's context variables
        queued = _QueuedChange[U](lambda unit: results.append(context.run(work, unit)), find_scope)
        self._first.commit(transactions, queued)
        if queued.missing:
            self._commit_after_lock(transactions, queued, min(queued.missing))
        if queued.error is not None:
            raise queued.error
        return results[-1]

    def _commit_after_lock(self, transactions: GroupTransactions[U], queued: _QueuedChange[U], key: int) -> None:
        """Commit a change through the queue for the lock ``key``. Delete the queue when no thread uses the queue.

        Two transactions may wait for the same lock if a thread adds a change to a queue that another thread has just
        deleted.
        """
        queue = self._by_missing_lock.setdefault(key, _CommitQueue(waits=True))
        queue.commit(transactions, queued)
        if queue.is_idle:
            self._by_missing_lock.pop(key, None)
