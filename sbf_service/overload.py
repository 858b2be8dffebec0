"""Overload protection: a bounded number of threads for blocking calls, and rate limits for callers of this replica.

The threads are daemon threads, so a call that hangs does not delay the end of the process.
"""

import asyncio
import time
from collections.abc import Callable
from contextlib import suppress
from contextvars import copy_context
from dataclasses import dataclass, field
from functools import cached_property, partial
from math import ceil
from threading import BoundedSemaphore, Thread
from typing import TypeVar

from limits import RateLimitItem, parse
from limits.storage import MemoryStorage
from limits.strategies import MovingWindowRateLimiter

from sbf_service.domain.authentication import Principal
from sbf_service.settings import RateLimit, RateLimits
from virtcloud.model.access import Role
from virtcloud.model.errors import ServiceBusy, TooManyRequests

THREAD_POLL_S = 0.02
RETRY_AFTER_S = 5
T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class BoundedThreads:
    """Runs at most ``size`` calls at the same time.

    ``what`` describes the calls in the message of ServiceBusy, such as "readings of devices".
    """

    size: int
    what: str
    _free: BoundedSemaphore = field(init=False)

    def __post_init__(self) -> None:
        """Create the semaphore that counts the free threads."""
        object.__setattr__(self, "_free", BoundedSemaphore(self.size))

    async def run(self, work: Callable[[], T], patience: float = 0) -> T:
        """Run ``work`` in a thread. Return its result or raise its exception.

        Raise ServiceBusy when no thread is free within ``patience`` seconds. If the caller is cancelled, ``work``
        continues, and its thread is free again when ``work`` ends.
        """
        until = time.monotonic() + patience
        while not self._free.acquire(blocking=False):
            if time.monotonic() >= until:
                raise self._busy(f"{self.size} run")
            await asyncio.sleep(THREAD_POLL_S)
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
        result, error = _run_work(work)
        self._free.release()
        with suppress(RuntimeError):  # the service and its event loop have stopped
            found.get_loop().call_soon_threadsafe(_set_outcome, found, result, error)

    def _busy(self, why: str) -> ServiceBusy:
        return ServiceBusy(f"too many {self.what} at once: {why}; try again in {RETRY_AFTER_S} s", RETRY_AFTER_S)


def _run_work(work: Callable[[], T]) -> tuple[list[T], Exception | None]:
    try:
        return [work()], None
    except Exception as error:  # noqa: BLE001 - the error is raised again in the calling task
        return [], error


def _set_outcome(found: "asyncio.Future[T]", result: list[T], error: Exception | None) -> None:
    if found.done():
        return
    if error is not None:
        found.set_exception(error)
    else:
        found.set_result(result[0])


@dataclass(frozen=True)
class RateLimiter:
    """Rate limits with counts in memory. Thread-safe.

    A method that refuses a call raises TooManyRequests with the number of seconds until the next try.
    """

    rates: RateLimits

    def check_address(self, address: str) -> None:
        """Raise TooManyRequests for an address that sent too many invalid tokens. The check itself counts nothing."""
        rate = self.rates.failed_tokens
        if not self._limiter.test(_parse_rate(rate), "failed", address):
            raise self._too_many(rate, "failed", address, f"too many tokens from {address} were not valid")

    def record_failure(self, address: str) -> None:
        """Count an invalid token from an address."""
        self._limiter.hit(_parse_rate(self.rates.failed_tokens), "failed", address)

    def count_cluster(self, caller: Principal) -> None:
        """Count a user's request for a cluster or for a dry run. Requests of other roles are not limited."""
        if caller.role is Role.USER:
            self._count(self.rates.clusters, "cluster", caller, "asked for clusters")

    def count_device_read(self, caller: Principal) -> None:
        """Count a caller's request to read devices."""
        self._count(self.rates.device_reads, "read", caller, "requested readings of devices")

    @cached_property
    def _limiter(self) -> MovingWindowRateLimiter:
        return MovingWindowRateLimiter(MemoryStorage())

    def _count(self, rate: RateLimit, what: str, caller: Principal, complaint: str) -> None:
        if not self._limiter.hit(_parse_rate(rate), what, caller.who):
            raise self._too_many(rate, what, caller.who, f"{caller.who} {complaint} too often")

    def _too_many(self, rate: RateLimit, what: str, who: str, complaint: str) -> TooManyRequests:
        resets = self._limiter.get_window_stats(_parse_rate(rate), what, who).reset_time
        after = max(1, ceil(resets - time.time()))
        return TooManyRequests(f"{complaint} (limit {rate}): try again in {after} s", after)


def _parse_rate(rate: RateLimit) -> RateLimitItem:
    return parse(rate)
