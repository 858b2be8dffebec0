"""Overload protection: limits on the threads for blocking calls, and on log lines about connections not accepted.

Calls that hang do not delay the end of the process, because the threads are daemon threads.
"""

import asyncio
import errno
import time
from collections.abc import Callable
from contextlib import suppress
from contextvars import copy_context
from dataclasses import dataclass, field
from functools import partial
from threading import BoundedSemaphore, Thread
from typing import Any, Final, TypeVar

from sbf_service.log import get_log
from virtcloud.model.errors import ServiceBusy

THREAD_POLL_S = 0.02
RETRY_AFTER_S = 5
SCARCE: Final = frozenset({errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM})
"""The errors with which accept(2) reports a lack of file descriptors or memory."""
ACCEPT_LOG_S: Final = 60.0
T = TypeVar("T")
log = get_log(__name__)


@dataclass(frozen=True, slots=True)
class BoundedThreads:
    """Runs at most ``size`` calls at the same time, each in a new thread.

    ``purpose`` describes the calls in the message of ServiceBusy, such as "readings of devices".
    """

    size: int
    purpose: str
    _free: BoundedSemaphore = field(init=False)

    def __post_init__(self) -> None:
        """Create the semaphore that counts the free threads."""
        object.__setattr__(self, "_free", BoundedSemaphore(self.size))

    async def run(self, call: Callable[[], T], max_wait_s: float = 0) -> T:
        """Run ``call`` in a thread. Return its result or raise its exception.

        Raise ServiceBusy when no thread is free within ``max_wait_s`` seconds, or if the thread cannot start. If the
        caller is cancelled, ``call`` continues and occupies its thread.
        """
        deadline = time.monotonic() + max_wait_s
        while not self._free.acquire(blocking=False):
            if time.monotonic() >= deadline:
                raise self._busy(f"{self.size} are running")
            await asyncio.sleep(THREAD_POLL_S)
        outcome: asyncio.Future[T] = asyncio.get_running_loop().create_future()
        self._start(partial(copy_context().run, self._run, call, outcome))
        return await outcome

    def require_free(self) -> None:
        """Raise ServiceBusy when no thread is free now."""
        if not self._free.acquire(blocking=False):
            raise self._busy(f"{self.size} are running")
        self._free.release()

    def _start(self, target: Callable[[], None]) -> None:
        try:
            Thread(target=target, name=self.purpose, daemon=True).start()
        except RuntimeError as error:
            self._free.release()
            raise self._busy("no thread can be started") from error

    def _run(self, call: Callable[[], T], outcome: "asyncio.Future[T]") -> None:
        result, error = _catch(call)
        self._free.release()
        with suppress(RuntimeError):  # the service has stopped, and its event loop is closed
            outcome.get_loop().call_soon_threadsafe(_set_outcome, outcome, result, error)

    def _busy(self, reason: str) -> ServiceBusy:
        return ServiceBusy(f"too many {self.purpose}: {reason}; try again in {RETRY_AFTER_S} s", RETRY_AFTER_S)


@dataclass
class AcceptFaults:
    """An exception handler for the event loop, which logs a lack of file descriptors or memory at most once a minute.

    During such a lack, asyncio repeats accept(2) up to ``BACKLOG`` times (``listen_sockets.py``). asyncio's own handler
    would log a traceback for each attempt, thousands a second, and leave no time for open connections.
    """

    clock: Callable[[], float] = time.monotonic
    _last_log: float | None = None

    def __call__(self, loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        """Log a fault that the event loop reports.

        A lack of file descriptors or memory is logged at most once in ``ACCEPT_LOG_S`` seconds.
        """
        error = context.get("exception")
        if not isinstance(error, OSError) or error.errno not in SCARCE or "socket" not in context:
            loop.default_exception_handler(context)
        elif self._last_log is None or self.clock() - self._last_log >= ACCEPT_LOG_S:
            self._last_log = self.clock()
            log.warning(
                "connections_not_accepted",
                why=f"{error.strerror}: SBF accepts new connections when other connections close; raise the limit "
                "LimitNOFILE of the unit virtcloud-sbf, or find the callers with many connections (ss -tnp)",
            )


def _catch(call: Callable[[], T]) -> tuple[list[T], Exception | None]:
    """Run ``call``. Return ``([result], None)``, or ``([], error)`` if the call raises an exception."""
    try:
        return [call()], None
    except Exception as error:  # noqa: BLE001 - the error is raised again in the calling task
        return [], error


def _set_outcome(outcome: "asyncio.Future[T]", result: list[T], error: Exception | None) -> None:
    if outcome.done():
        return
    if error is not None:
        outcome.set_exception(error)
    else:
        outcome.set_result(result[0])
