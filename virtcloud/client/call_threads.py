"""The threads in which the asynchronous client runs calls, and the cancellation of calls."""

import inspect
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from threading import Condition, Event
from typing import Any, TypeVar

from anyio import CapacityLimiter, from_thread, to_thread

from virtcloud.client.waiting import open_progress

MAX_THREADS = 64
"""Maximum number of simultaneous calls of one client. Each call needs a connection to SBF."""
R = TypeVar("R")


@dataclass
class CallThreads:
    """The threads of one client's calls. The thread of a cancelled call continues until the call ends."""

    limiter: CapacityLimiter = field(default_factory=lambda: CapacityLimiter(MAX_THREADS))
    running: int = 0
    _changed: Condition = field(default_factory=Condition)

    async def run(self, call: Callable[[], R]) -> R:
        """Return the result of ``call``, which runs in a thread."""
        return await to_thread.run_sync(partial(self._count, call), abandon_on_cancel=True, limiter=self.limiter)

    def wait_idle(self) -> None:
        """Wait until no thread runs a call. The wait is finite, because each call to SBF has a timeout."""
        with self._changed:
            self._changed.wait_for(lambda: not self.running)

    def _count(self, call: Callable[[], R]) -> R:
        self._add(1)
        try:
            return call()
        finally:
            self._add(-1)

    def _add(self, number: int) -> None:
        with self._changed:
            self.running += number
            self._changed.notify_all()


class CallAbandoned(BaseException):
    """The error that ends a call in its thread, after the waiting task was cancelled. Callers never receive it."""


async def run_waiting(threads: CallThreads, method: Callable[..., R], bound: inspect.BoundArguments) -> R:
    """Run a method that waits for SBF, such as ``wait_active``, in a thread.

    The caller's callback ``progress`` runs in the event loop's thread. The method receives ``relay`` instead of the
    callback, and calls ``relay`` at least every second. If the task is cancelled, the next call of ``relay`` raises
    CallAbandoned in the method's thread, and thereby ends the method.
    """
    cancelled = Event()
    with open_progress(bound.arguments.get("progress")) as shown:

        def relay(view: Any) -> None:  # noqa: ANN401 - a view of a cluster or of a guest
            if cancelled.is_set():
                raise CallAbandoned
            if shown is not None:
                from_thread.run_sync(shown, view)

        bound.arguments["progress"] = relay
        try:
            return await threads.run(partial(_end_if_abandoned, method, bound))
        finally:
            cancelled.set()


def _end_if_abandoned(method: Callable[..., R], bound: inspect.BoundArguments) -> R:
    """Return the result of ``method``. If CallAbandoned ends the call, raise RuntimeError.

    No task receives the RuntimeError, because the waiting task was cancelled.
    """
    with suppress(CallAbandoned):
        return method(*bound.args, **bound.kwargs)
    raise RuntimeError("the call was abandoned")
