"""Blocking calls in threads of their own, at most so many at once, so that they take none from other calls.

The threads are daemons: a call that hangs does not hold the service back when it stops.
"""

import asyncio
import time
from collections.abc import Callable
from contextlib import suppress
from contextvars import copy_context
from dataclasses import dataclass, field
from functools import partial
from threading import BoundedSemaphore, Thread
from typing import TypeVar

from virtcloud.model.errors import ServiceBusy

LOOK_AGAIN_S = 0.02
RETRY_AFTER_S = 5
T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class BoundedThreads:
    """Runs at most ``size`` calls at once. ``what`` names them in the message of ServiceBusy: "readings of devices"."""

    size: int
    what: str
    _free: BoundedSemaphore = field(init=False)

    def __post_init__(self) -> None:
        """Begin with all threads free."""
        object.__setattr__(self, "_free", BoundedSemaphore(self.size))

    async def run(self, work: Callable[[], T], patience: float = 0) -> T:
        """Run ``work`` in a thread and return what it returns, or raise what it raises.

        Raise ServiceBusy when no thread is free within ``patience`` seconds. When the caller is cancelled, the call
        goes on in its thread, which is free once that has ended.
        """
        until = time.monotonic() + patience
        while not self._free.acquire(blocking=False):
            if time.monotonic() >= until:
                raise self._busy(f"{self.size} run")
            await asyncio.sleep(LOOK_AGAIN_S)
        found: asyncio.Future[T] = asyncio.get_running_loop().create_future()
        self._start(partial(copy_context().run, self._call, work, found))
        return await found

    def require_one(self) -> None:
        """Raise ServiceBusy when no thread is free now."""
        if not self._free.acquire(blocking=False):
            raise self._busy(f"{self.size} run")
        self._free.release()

    def _start(self, target: Callable[[], None]) -> None:
        try:
            Thread(target=target, name=self.what, daemon=True).start()
        except RuntimeError as error:
            self._free.release()
            raise self._busy("no thread can be started") from error

    def _call(self, work: Callable[[], T], found: "asyncio.Future[T]") -> None:
        result, error = _outcome(work)
        self._free.release()
        with suppress(RuntimeError):  # the service has stopped, and its loop with it
            found.get_loop().call_soon_threadsafe(_settle, found, result, error)

    def _busy(self, why: str) -> ServiceBusy:
        return ServiceBusy(f"too many {self.what} at once: {why}; try again in {RETRY_AFTER_S} s", RETRY_AFTER_S)


def _outcome(work: Callable[[], T]) -> tuple[list[T], Exception | None]:
    try:
        return [work()], None
    except Exception as error:  # noqa: BLE001 - it is raised again where the call was made
        return [], error


def _settle(found: "asyncio.Future[T]", result: list[T], error: Exception | None) -> None:
    if found.done():
        return
    if error is not None:
        found.set_exception(error)
    else:
        found.set_result(result[0])
