"""A lock that threads acquire in the order of their requests.

Python's own lock is unfair: a thread that releases it and requests it again at once usually overtakes the threads that
wait. On SQLite, workers that write often could thereby delay a user's call by seconds.
"""

from collections import deque
from dataclasses import dataclass, field
from threading import Lock


@dataclass
class FairLock:
    """A lock for ``with`` statements. The thread that has waited longest acquires the lock next. Not reentrant."""

    _is_held: bool = False
    _queue: deque[Lock] = field(default_factory=deque)
    """A locked lock for each waiting thread, in the order of the requests."""
    _guard: Lock = field(default_factory=Lock)
    """Protects the other fields. No thread holds it while it waits."""

    @property
    def waiting(self) -> int:
        """The number of threads that wait for the lock."""
        return len(self._queue)

    def __enter__(self) -> None:
        """Acquire the lock, after all threads that requested it earlier."""
        turn = Lock()
        turn.acquire()
        try:
            with self._guard:
                if not self._is_held:
                    self._is_held = True
                    return
                self._queue.append(turn)
            turn.acquire()  # released by the thread that passes the lock on
        except BaseException:  # the handler of a signal raised an error, for example KeyboardInterrupt
            self._stop_waiting(turn)
            raise

    def __exit__(self, *_error: object) -> None:
        """Pass the lock on to the thread that has waited longest, or release it."""
        with self._guard:
            if self._queue:
                self._queue.popleft().release()
            else:
                self._is_held = False

    def _stop_waiting(self, turn: Lock) -> None:
        """Leave the queue. If the lock was passed to this thread in the meantime, pass the lock to the next thread."""
        with self._guard:
            if turn in self._queue:
                self._queue.remove(turn)
                return
        if not turn.locked():
            self.__exit__()
