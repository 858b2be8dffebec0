"""Long polls: calls that wait until a document is newer than a version.

A waiting call uses neither a thread nor a query. The change feed wakes the call, which then reads the document in a
thread.

After a restart, all agents call at the same time. At most ``AGENT_THREADS`` threads read for agents, so that agents do
not delay other callers. Further calls of agents wait for a thread. If too many calls wait, SBF answers 503 with a
random ``Retry-After``, which spreads the next calls.
"""

import asyncio
import random
import time
from collections.abc import Awaitable, Callable, Iterable
from dataclasses import dataclass, field
from functools import partial
from typing import Annotated, TypeVar

from anyio import CapacityLimiter
from anyio.to_thread import run_sync
from fastapi import Depends, Request
from fastapi.concurrency import run_in_threadpool

from sbf_service.bootstrap import SbfService
from sbf_service.change_feed import Waiter
from sbf_service.http.auth.authorization import CurrentCaller
from sbf_service.http.auth.caller import Caller
from sbf_service.http.batched_reads import BatchedReads
from sbf_service.http.poll_pace import PollKey, PollPace
from sbf_service.store.elements.agent_heartbeats import AgentElement
from sbf_service.store.users.tokens import token_topic
from virtcloud.model.access import Role
from virtcloud.model.errors import ServiceBusy, ServiceStopping, ServiceUnreachable, TooManyRequests

AGENT_THREADS = 4
MAX_QUEUED = 500
"""The maximum number of agents' calls that wait for a thread. SBF answers further calls with 503."""
RETURNS_PER_S = 250
"""The rate, in calls per second, at which agents should repeat refused calls.

For N refused calls, SBF chooses each ``Retry-After`` at random between 1 s and about N / 250 s.
"""
LONGEST_SPREAD_S = 20
"""The longest ``Retry-After`` in seconds when the service stops.

A short time suffices, because one query answers many of the repeated calls.
"""
LONGEST_BUSY_SPREAD_S = 100
"""The longest ``Retry-After`` in seconds of a busy service.

With a shorter time, refusals would occupy the event loop.
"""
T = TypeVar("T")
ReadVersion = Callable[[], Awaitable[int]]


@dataclass
class PollAdmission:
    """Assigns agents' calls to threads, and refuses calls if too many calls wait.

    All polls of the API share one instance of this class.
    """

    service: SbfService
    pace: PollPace = field(default_factory=PollPace)
    jitter: Callable[[], float] = random.random
    _threads: tuple[asyncio.AbstractEventLoop, CapacityLimiter] | None = None
    _elements: BatchedReads[str, AgentElement] = field(init=False)
    _refused: int = 0

    def __post_init__(self) -> None:
        """Create the batched reads of elements."""
        self._elements = BatchedReads(self.service.heartbeats.receive_many)

    async def read_element(self, name: str) -> AgentElement:
        """Receive a heartbeat of an agent, and return the agent's element. One query serves several simultaneous calls.

        Raise NotFound for an unknown element. Raise Conflict for a device.
        """
        return await self._elements.read(name)

    async def read_for_agent(self, call: Callable[[], T]) -> T:
        """Run ``call`` in one of the threads for agents. Raise ServiceBusy if too many calls wait for a thread."""
        threads = self._find_threads()
        queued = threads.statistics().tasks_waiting
        if queued >= MAX_QUEUED:
            self._refused += 1
            seconds = self.spread(queued + self._refused, LONGEST_BUSY_SPREAD_S)
            raise ServiceBusy(f"{queued} agents' calls wait for SBF: try again in {seconds} s", seconds)
        if not queued:
            self._refused = 0
        return await run_sync(call, limiter=threads)

    def make_stop_error(self) -> ServiceStopping:
        """Return the error that a waiting call raises when the service stops."""
        seconds = self.spread(self.service.change_feed.waiters_at_close)
        return ServiceStopping(f"this SBF stops: try again in {seconds} s; nothing was changed", seconds)

    def spread(self, calls: int, longest_s: float = LONGEST_SPREAD_S) -> int:
        """Return a random ``Retry-After`` in seconds. ``calls`` is the number of calls to spread."""
        return 1 + int(self.jitter() * min(calls / RETURNS_PER_S, longest_s))

    def _find_threads(self) -> CapacityLimiter:
        """Return the limiter of the running event loop. Each event loop needs its own limiter of anyio."""
        loop = asyncio.get_running_loop()
        if self._threads is None or self._threads[0] is not loop:
            self._threads = loop, CapacityLimiter(AGENT_THREADS)
        return self._threads[1]


@dataclass(frozen=True, slots=True)
class LongPoll:
    """A call that may wait for a newer version of a document."""

    admission: PollAdmission
    request: Request
    caller: Caller

    async def read(self, call: Callable[[], T]) -> T:
        """Run ``call``, which reads the database, in a thread.

        If the caller is an agent, raise ServiceBusy when too many calls of agents wait. Raise Unauthenticated if the
        caller's token was revoked during the poll.
        """
        await self._check_token()
        if self.caller.principal.role is Role.AGENT:
            return await self.admission.read_for_agent(call)
        return await run_in_threadpool(call)

    async def read_element(self, name: str) -> AgentElement:
        """Receive a heartbeat of an agent, and return the agent's element.

        Raise Unauthenticated if the caller's token was revoked during the poll.
        """
        await self._check_token()
        return await self.admission.read_element(name)

    def in_thread(self, read_version: Callable[[], int]) -> ReadVersion:
        """Return a function that runs ``read_version`` as :meth:`read` does."""
        return partial(self.read, read_version)

    async def wait_until_newer(  # noqa: PLR0913 - a version, a limit, and what is known of the version
        self,
        topic: str,
        read_version: ReadVersion,
        after: int | None,
        wait: float,
        *,
        is_exact: bool = True,
        others: Iterable[str] = (),
        uncompared: Iterable[str] = (),
        is_awaited: Callable[[], bool] = lambda: True,
    ) -> bool:
        """Wait at most ``wait`` seconds until the document has a version above ``after`` and ``is_awaited()`` is true.

        Return whether both conditions were met in time. If ``after`` is None, return False at once. If ``wait`` is 0,
        return at once whether the version is above ``after``, without a call of ``is_awaited``.

        - The change feed publishes changes of the document under ``topic``, ``others`` and ``uncompared``. The change
          reader does not compare the versions of the topics in ``uncompared`` with the versions in the database.
        - ``is_exact`` is true if ``read_version`` returns the version that the database has for ``topic``.
        - ``is_awaited`` returns whether the document, as last read by ``read_version``, ends the wait.

        Raise ServiceStopping when the service stops. Raise TooManyRequests for a caller that calls too often without
        waiting. Raise ServiceUnreachable if the caller closed the connection.
        """
        if after is None:
            return False
        if wait <= 0:
            return await self.read_version(topic, read_version) > after
        deadline = time.monotonic() + wait
        with self.admission.service.change_feed.watch(
            topic, *others, uncompared=(*uncompared, *self._own_topics())
        ) as waiter:
            self._check_stop()
            version = await self.read_version(topic, read_version)
            while version <= after or not is_awaited():
                if is_exact:
                    waiter.versions[topic] = version
                if not await self._wait(waiter, deadline):
                    return False
                version = await read_version()
        return True

    async def read_version(self, topic: str, read_version: ReadVersion) -> int:
        """Return the version of a document. Raise TooManyRequests if the caller requests the version too often."""
        key, rate = self._pace_key(topic), self.caller.rate_limiter.rates.polls
        try:
            self.admission.pace.check(key, rate)
        except TooManyRequests as error:
            self.caller.metrics.record_denial(error.slug)
            raise
        version = await read_version()
        self.admission.pace.count(key, version, rate)
        return version

    async def _wait(self, waiter: Waiter, deadline: float) -> bool:
        has_changed = await waiter.wait(max(0.0, deadline - time.monotonic()))
        self._check_stop()
        if has_changed and await self.request.is_disconnected():
            raise ServiceUnreachable("the caller closed the connection: nothing was read")
        return has_changed

    def _check_stop(self) -> None:
        if self.admission.service.change_feed.closed:
            raise self.admission.make_stop_error()

    async def _check_token(self) -> None:
        cache, token = self.admission.service.token_cache, self.caller.token
        if token is not None and cache.find(token) is None:
            await run_in_threadpool(cache.authenticate, token)

    def _own_topics(self) -> tuple[str, ...]:
        """Return the topic of the caller's token. A revocation of the token ends the poll at once."""
        token_id = self.caller.principal.token
        return () if token_id is None else (token_topic(token_id),)

    def _pace_key(self, topic: str) -> PollKey:
        return self.caller.who, topic


def make_poll(service: SbfService, request: Request, caller: Caller) -> LongPoll:
    """Return a long poll for a caller outside the API, such as a page of the console.

    The caller's polls of the API do not count against the limits of this poll.
    """
    return LongPoll(PollAdmission(service), request, caller)


async def _current_poll(request: Request, caller: CurrentCaller) -> LongPoll:
    return LongPoll(request.app.state.polls, request, caller)


CurrentPoll = Annotated[LongPoll, Depends(_current_poll)]
