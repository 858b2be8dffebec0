"""Work on a large document, such as a topology of many megabytes: interpreter settings, and pauses for other threads.

Each setting applies to the whole process, while at least one thread works on a large document.
"""

import gc
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, field
from threading import Lock

from virtcloud.model.yield_points import pausing_with

LARGE = 1 << 20
"""A document of at least this size, in bytes, is large."""
SHORT_TURN_S = 0.0005
"""The maximum time in seconds that a thread holds Python's interpreter while another thread waits for the interpreter.

Python's default is 5 ms. A call acquires the interpreter dozens of times, for example after each row from SQLite, and
with a wait of 5 ms each time, the call would wait for up to half a second.
"""
WORK_S = 0.005
"""A thread that gives way works at least this time in seconds between two pauses."""
MAX_PAUSE_S = 0.01
"""The maximum duration of a pause in seconds. A thread that computes thus pauses two thirds of the time at most."""
LOOK_S = 0.0003
"""While a thread pauses, it checks at these intervals, in seconds, whether other threads still run."""
IDLE_SHARE = 0.3
"""If all threads together use less than this share of an interval ``LOOK_S``, the pause ends."""


@dataclass(slots=True)
class Pauses:
    """The pauses of a thread that computes for a long time.

    After ``WORK_S``, :meth:`pause` sleeps while other threads of the process use the processor, but at most
    ``MAX_PAUSE_S``. Without the pauses, the computing thread would acquire the interpreter whenever another thread
    releases it.

    ``clock`` returns the time, and ``processor_clock`` returns the processor time of the process.
    """

    clock: Callable[[], float] = time.monotonic
    processor_clock: Callable[[], float] = time.process_time
    sleep: Callable[[float], None] = time.sleep
    next_pause: float = field(init=False)

    def __post_init__(self) -> None:
        """Begin to work."""
        self.next_pause = self.clock() + WORK_S

    def pause(self) -> None:
        """Pause if the thread has worked long enough. Otherwise, return at once."""
        now = self.clock()
        if now < self.next_pause:
            return
        end, used = now + MAX_PAUSE_S, self.processor_clock()
        while now < end:
            self.sleep(LOOK_S)
            now, before, used = self.clock(), used, self.processor_clock()
            if used - before < IDLE_SHARE * LOOK_S:
                break
        self.next_pause = now + WORK_S


@dataclass(slots=True)
class _ProcessSetting:
    """A setting that applies while at least one thread is in the context of :meth:`use`.

    ``begin`` applies the setting when the first thread enters the context. ``end`` reverts the setting when the last
    thread leaves the context. ``users`` is the number of threads in the context.
    """

    begin: Callable[[], None]
    end: Callable[[], None]
    lock: Lock = field(default_factory=Lock)
    users: int = 0

    @contextmanager
    def use(self) -> Iterator[None]:
        """Apply the setting during the context. Thread-safe."""
        with self.lock:
            self.users += 1
            if self.users == 1:
                self.begin()
        try:
            yield
        finally:
            with self.lock:
                self.users -= 1
                if self.users == 0:
                    self.end()


def _collect_again() -> None:
    gc.freeze()
    gc.enable()


_USUAL_TURN_S = sys.getswitchinterval()
_LATE_COLLECTIONS = _ProcessSetting(gc.disable, _collect_again)
_SHORT_TURNS = _ProcessSetting(
    lambda: sys.setswitchinterval(SHORT_TURN_S), lambda: sys.setswitchinterval(_USUAL_TURN_S)
)


def collect_later(size: int) -> AbstractContextManager[None]:
    """Disable garbage collections during the context if a document of ``size`` bytes is large.

    A large topology consists of millions of objects without reference cycles. Garbage collections would take two thirds
    of the time of parsing, and up to a quarter of the time of the preparation of a change. At the end, all existing
    objects are excluded from later collections (``gc.freeze``). Otherwise, later collections would visit all objects of
    the topology, and delay calls by up to half a second. Python still frees an excluded object with its last reference,
    unless the object is in a reference cycle. Unused reference cycles of other calls at the end of the context are
    never freed. Therefore, use this context only for large documents, which are rare.
    """
    return nullcontext() if size < LARGE else _LATE_COLLECTIONS.use()


def take_short_turns() -> AbstractContextManager[None]:
    """Return a context in which a thread holds the interpreter at most ``SHORT_TURN_S`` while other threads wait."""
    return _SHORT_TURNS.use()


@contextmanager
def give_way() -> Iterator[None]:
    """Take short turns, and pause at each yield point while other threads run (:mod:`virtcloud.model.yield_points`).

    Do not reach a yield point in a transaction, or with a lock for which other threads wait.
    """
    with take_short_turns(), pausing_with(Pauses().pause):
        yield
