"""Overload protection: a bounded number of threads for blocking calls, and rate limits for callers of this replica.

The threads are daemon threads: a call that hangs does not delay the end of the process.
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

        Raise ServiceBusy when no thread is free within ``max_wait_s`` seconds. If the caller is cancelled, ``call``
        continues, and its thread stays occupied until ``call`` ends.
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
        with suppress(RuntimeError):  # the service and its event loop have stopped
            outcome.get_loop().call_soon_threadsafe(_set_outcome, outcome, result, error)

    def _busy(self, reason: str) -> ServiceBusy:
        return ServiceBusy(f"too many {self.purpose}: {reason}; try again in {RETRY_AFTER_S} s", RETRY_AFTER_S)


def _catch(call: Callable[[], T]) -> tuple[list[T], Exception | None]:
    """Return a list with the call's result and None, or an empty list and the call's exception."""
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


@dataclass(frozen=True)
class RateLimiter:
    """Rate limits with counts in memory. Thread-safe.

    A method that refuses a call raises TooManyRequests, with the seconds after which the call may be repeated.
    """

    rates: RateLimits

    def check_address(self, address: str) -> None:
        """Raise TooManyRequests for an address that sent too many invalid tokens. Does not change the count."""
        rate = self.rates.failed_tokens
        if not self._limiter.test(_parse_rate(rate), "failed", address):
            raise self._too_many(rate, "failed", address, f"{address} sent too many invalid tokens")

    def record_failure(self, address: str) -> None:
        """Count an invalid token from an address."""
        self._limiter.hit(_parse_rate(self.rates.failed_tokens), "failed", address)

    def count_cluster(self, caller: Principal) -> None:
        """Count a user's request for a cluster or for a dry run. Requests of other roles are not limited."""
        if caller.role is Role.USER:
            self._count(self.rates.clusters, "cluster", caller, "requested clusters")

    def count_device_read(self, caller: Principal) -> None:
        """Count a caller's request to read devices."""
        self._count(self.rates.device_reads, "read", caller, "requested readings of devices")

    @cached_property
    def _limiter(self) -> MovingWindowRateLimiter:
        return MovingWindowRateLimiter(MemoryStorage())

    def _count(self, rate: RateLimit, kind: str, caller: Principal, action: str) -> None:
        if not self._limiter.hit(_parse_rate(rate), kind, caller.who):
            raise self._too_many(rate, kind, caller.who, f"{caller.who} {action} too often")

    def _too_many(self, rate: RateLimit, kind: str, who: str, reason: str) -> TooManyRequests:
        reset_time = self._limiter.get_window_stats(_parse_rate(rate), kind, who).reset_time
        retry_after_s = max(1, ceil(reset_time - time.time()))
        return TooManyRequests(f"{reason} (limit {rate}): try again in {retry_after_s} s", retry_after_s)


def _parse_rate(rate: RateLimit) -> RateLimitItem:
    return parse(rate)
