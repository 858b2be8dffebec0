from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field
from functools import partial
from threading import Event
from time import monotonic, sleep

import pytest

from sbf_service.store.transactions.group_commit import FindScope, GroupCommit
from sbf_service.store.transactions.lock_scopes import NO_SCOPE
from virtcloud.model.errors import Conflict, DatabaseUnavailable


@dataclass
class Transactions:
    """Records the rows of each committed transaction. Each transaction waits until ``go_on`` is set."""

    committed: list[list[str]] = field(default_factory=list)
    started: Event = field(default_factory=Event)
    go_on: Event = field(default_factory=Event)

    @contextmanager
    def change(self) -> Iterator[list[str]]:
        self.started.set()
        assert self.go_on.wait(10)
        rows: list[str] = []
        yield rows
        self.committed.append(rows)

    def change_scopes(
        self, find_scopes: Sequence[FindScope[list[str]]], *, wait: bool
    ) -> AbstractContextManager[Sequence[list[str] | frozenset[int]]]:
        raise NotImplementedError


def add(name: str) -> Callable[[list[str]], str]:
    def work(rows: list[str]) -> str:
        rows.append(name)
        return name

    return work


def refuse(rows: list[str]) -> str:
    rows.append("half")
    raise Conflict("no")


def raise_unavailable(_rows: list[str]) -> str:
    raise DatabaseUnavailable("it went away")


def wait_until(holds: Callable[[], bool]) -> None:
    ends = monotonic() + 10
    while not holds():
        assert monotonic() < ends
        sleep(0.001)


def is_waiting(together: GroupCommit[list[str]], count: int) -> bool:
    return together.waiting == count


@contextmanager
def queue_during_transaction(
    transactions: Transactions, *works: Callable[[list[str]], str]
) -> Iterator[list[Future[str]]]:
    """Queue ``works`` in order while another transaction runs.

    Then end the other transaction, and yield the futures of ``works``.
    """
    together = GroupCommit[list[str]]()
    with ThreadPoolExecutor(1 + len(works)) as threads:
        first = threads.submit(partial(together.run, transactions, add("first")))
        assert transactions.started.wait(10)
        futures = []
        for number, work in enumerate(works, start=1):
            futures.append(threads.submit(partial(together.run, transactions, work)))
            wait_until(partial(is_waiting, together, number))
        transactions.go_on.set()
        assert first.result(10) == "first"
        yield futures


def test_simultaneously_waiting_changes_share_one_transaction() -> None:
    transactions = Transactions()
    with queue_during_transaction(transactions, add("a"), add("b"), add("c")) as futures:
        assert [one.result(10) for one in futures] == ["a", "b", "c"]
    assert transactions.committed == [["first"], ["a", "b", "c"]]


def test_a_failing_change_affects_no_other_change() -> None:
    transactions = Transactions()
    with queue_during_transaction(transactions, add("a"), refuse, add("c")) as futures:
        assert [futures[0].result(10), futures[2].result(10)] == ["a", "c"]
        with pytest.raises(Conflict, match=r"^no$"):
            futures[1].result(10)
    assert transactions.committed == [["first"], ["a"], ["c"]]


def test_an_unavailable_database_is_tried_once_per_group() -> None:
    transactions = Transactions()
    with queue_during_transaction(transactions, add("a"), raise_unavailable, add("c")) as futures:
        for one in futures:
            with pytest.raises(DatabaseUnavailable):
                one.result(10)
    assert transactions.committed == [["first"]]


@dataclass
class GatedTransactions(Transactions):
    """The n-th transaction ends when the n-th event of ``gates`` is set."""

    gates: Sequence[Event] = field(default_factory=lambda: [Event(), Event(), Event()])

    @contextmanager
    def change(self) -> Iterator[list[str]]:
        with super().change() as rows:
            yield rows
            assert self.gates[len(self.committed)].wait(10)


def test_a_committed_change_does_not_wait_for_the_next_group() -> None:
    transactions = GatedTransactions()
    transactions.go_on.set()
    together = GroupCommit[list[str]]()
    with ThreadPoolExecutor(4) as threads:
        futures = [threads.submit(partial(together.run, transactions, add("first")))]
        assert transactions.started.wait(10)
        for waiting, name in enumerate("ab", start=1):
            futures.append(threads.submit(partial(together.run, transactions, add(name))))
            wait_until(partial(is_waiting, together, waiting))
        transactions.gates[0].set()
        wait_until(partial(is_waiting, together, 0))
        futures.append(threads.submit(partial(together.run, transactions, add("c"))))
        wait_until(partial(is_waiting, together, 1))
        transactions.gates[1].set()
        assert [future.result(10) for future in futures[:3]] == ["first", "a", "b"]
        assert not futures[3].done()
        transactions.gates[2].set()
        assert futures[3].result(10) == "c"
    assert transactions.committed == [["first"], ["a", "b"], ["c"]]


def interrupt(_rows: list[str]) -> str:
    raise KeyboardInterrupt


def test_an_interrupted_leader_ends_the_waits_of_its_group() -> None:
    transactions = Transactions()
    with queue_during_transaction(transactions, interrupt, add("b")) as futures:
        with pytest.raises(KeyboardInterrupt):
            futures[0].result(10)
        with pytest.raises(DatabaseUnavailable):
            futures[1].result(10)


class LockedTransactions(Transactions):
    """Transactions that must wait for the lock 5, which another transaction holds."""

    @contextmanager
    def change_scopes(self, finders: Sequence[object], *, wait: bool) -> Iterator[Sequence[list[str] | frozenset[int]]]:
        yield [[] if wait else frozenset({5}) for _ in finders]


def test_no_queue_of_a_released_lock_remains() -> None:
    together = GroupCommit[list[str]]()
    assert together.run(LockedTransactions(), add("a"), lambda _rows: NO_SCOPE) == "a"
    assert together._by_missing_lock == {}
