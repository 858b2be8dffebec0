"""A lock that threads acquire in the order of their requests.

Python's own lock is unfair: a thread that releases and immediately requests it usually overtakes waiting threads. On
SQLite, workers could thus delay a user's call by seconds.
"""

from collections import deque
from dataclasses import dataclass, field
from threading import Lock


@dataclass
class FairLock:
    """A lock for ``with`` statements. The thread that has waited longest acquires the lock next. Not reentrant.

    Each request has a *waiter*: a locked ``threading.Lock``, whose release ends the wait of the requesting thread.
    """

    _holder: "Lock | None" = None
    """The waiter of the request whose thread holds the lock, or None."""
    _queue: deque[Lock] = field(default_factory=deque)
    """The waiters of the requests whose threads wait for the lock, in the order of the requests."""
    _guard: Lock = field(default_factory=Lock)
    """Protects the other fields. No thread holds the guard while it waits for the lock."""

    @property
    def waiting(self) -> int:
        """The number of threads that wait for the lock."""
        return len(self._queue)

    def __enter__(self) -> None:
        """Acquire the lock, after all threads that requested the lock earlier."""
        waiter = Lock()
        waiter.acquire()
        try:
            with self._guard:
                if self._holder is None:
                    self._holder = waiter
                    return
                self._queue.append(waiter)
            waiter.acquire()  # released by the thread that passes the lock on
        except BaseException:  # the handler of a signal raised an error, for example KeyboardInterrupt
            self._withdraw(waiter)
            raise

    def __exit__(self, *_error: object) -> None:
        """Pass the lock on to the thread that has waited longest, or release the lock."""
        with self._guard:
            self._pass_on()

    def _pass_on(self) -> None:
        self._holder = self._queue.popleft() if self._queue else None
        if self._holder is not None:
            self._holder.release()

    def _withdraw(self, waiter: Lock) -> None:
        with self._guard:
            if waiter in self._queue:
                self._queue.remove(waiter)
            elif self._holder is waiter:
                self._pass_on()
