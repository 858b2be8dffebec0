"""Requests that wait at the same moment share one transaction: its lock and its way to the disk are paid for once.

Nobody waits for company: whoever finds the turn free takes along those who came while it was not. When one of them
meets an error, nothing of that transaction stays, and each is done again in a transaction of its own.
"""

from collections import deque
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from threading import Lock
from typing import Generic, TypeVar

from virtcloud.model.errors import DatabaseUnavailable

MOST_AT_ONCE = 16
"""They hold the lock for all others together: some tens of milliseconds."""

U = TypeVar("U")
T = TypeVar("T")


@dataclass(slots=True)
class Request(Generic[U]):
    """What one thread waits for: ``work`` puts what came of it where that thread finds it."""

    work: Callable[[U], None]
    done: bool = False
    error: Exception | None = None


@dataclass
class Together(Generic[U]):
    """Does the requests of many threads."""

    _waiting: deque[Request[U]] = field(default_factory=deque)
    _turn: Lock = field(default_factory=Lock)

    def do(self, change: Callable[[], AbstractContextManager[U]], work: Callable[[U], T]) -> T:
        """Do ``work`` in a transaction that ``change`` gives; raises what it raises.

        It may be done twice, the first time in a transaction of which nothing stays.
        """
        results: list[T] = []
        mine = Request[U](lambda unit: results.append(work(unit)))
        self._waiting.append(mine)
        with self._turn:
            while not mine.done:
                self._do_some(change)
        if mine.error is not None:
            raise mine.error
        return results[-1]

    def _do_some(self, change: Callable[[], AbstractContextManager[U]]) -> None:
        some = [self._waiting.popleft() for _ in range(min(len(self._waiting), MOST_AT_ONCE))]
        error = _done_as_one(change, some)
        again = error is not None and len(some) > 1 and not isinstance(error, DatabaseUnavailable)
        for request in some:
            request.error = _done_as_one(change, [request]) if again else error
            request.done = True


def _done_as_one(change: Callable[[], AbstractContextManager[U]], some: list[Request[U]]) -> Exception | None:
    try:
        with change() as unit:
            for request in some:
                request.work(unit)
    except Exception as error:  # noqa: BLE001 - it is raised in the thread that asked
        return error
    return None
