"""The change feed: wakes the calls in this process that wait for a change, and calls listeners.

A topic such as ``cluster:demo`` or ``element:sw1`` names what changed. The store publishes topics after a commit of
this replica. :mod:`sbf_service.change_reader` publishes the topics of other replicas' commits.

A waiter subscribes before it reads the state, so that it misses no change.
"""

import asyncio
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from functools import partial
from threading import Lock

from sbf_service.coalesced_timers import CoalescedTimers

Listener = Callable[[frozenset[str]], None]


@dataclass(eq=False, slots=True)
class Waiter:
    """A call that waits for changes of topics, without a thread.

    ``versions`` maps each topic to the version that the call has read, or to None if this version is unknown.
    """

    versions: dict[str, int | None]
    loop: asyncio.AbstractEventLoop
    timers: CoalescedTimers
    _has_changed: bool = False
    _end: "asyncio.Future[None] | None" = None

    async def wait(self, seconds: float) -> bool:
        """Wait for a change, for at most ``seconds``. A long wait can end a fraction of a second early.

        Return whether a change occurred since the end of the previous wait.
        """
        if not self._has_changed:
            # asyncio.timeout and asyncio.Event would create more objects for each of 10,000 waiting polls
            self._end = end = self.loop.create_future()
            timer = self.timers.call_later(self.loop, seconds, partial(_resolve, end))
            try:
                await end
            finally:
                timer.cancel()
        changed, self._has_changed = self._has_changed, False
        return changed

    def wake(self) -> None:
        """End the wait because of a change. Call this method in the waiter's event loop."""
        self._has_changed = True
        if self._end is not None:
            _resolve(self._end)


def _resolve(end: "asyncio.Future[None]") -> None:
    if not end.done():
        end.set_result(None)


@dataclass
class ChangeFeed:
    """Wakes the waiters of topics, and calls listeners. Thread-safe."""

    closed: bool = False
    waiters_at_close: int = 0
    _timers: CoalescedTimers = field(default_factory=CoalescedTimers)
    _lock: Lock = field(default_factory=Lock)
    _waiters: dict[str, set[Waiter]] = field(default_factory=lambda: defaultdict(set))
    _all: set[Waiter] = field(default_factory=set)
    _listeners: list[Listener] = field(default_factory=list)
    _remote_listeners: list[Listener] = field(default_factory=list)

    def add_listener(self, listener: Listener, *, remote: bool = False) -> None:
        """Add a function that :meth:`publish` calls with the topics of each change that this replica makes.

        If ``remote``, the change reader's thread also calls ``listener`` for changes by other replicas.
        """
        self._listeners.append(listener)
        if remote:
            self._remote_listeners.append(listener)

    def publish(self, topics: frozenset[str]) -> None:
        """Call the listeners, then wake the waiters of these topics. Call this method after the commit.

        The listeners come first: after a revocation, a listener must empty the token cache before a woken call reads
        it.
        """
        for listener in self._listeners:
            listener(topics)
        self._wake(topics)

    def publish_remote(self, topics: frozenset[str]) -> None:
        """Publish a change that another replica has committed."""
        for listener in self._remote_listeners:
            listener(topics)
        self._wake(topics)

    def publish_outdated(self, versions: Mapping[str, int | None]) -> None:
        """Publish all topics in ``versions``, and store these versions in the waiters.

        ``versions`` maps topics to their versions in the database.
        """
        with self._lock:
            for topic, version in versions.items():
                for waiter in self._waiters.get(topic, ()):
                    if topic in waiter.versions:
                        waiter.versions[topic] = version
        self.publish_remote(frozenset(versions))

    def list_versions(self) -> dict[str, int | None]:
        """Return the lowest version that a waiter has read, by topic; None if the version of any waiter is unknown."""
        with self._lock:
            read = [item for waiter in self._all for item in waiter.versions.items()]
        lowest: dict[str, int | None] = {}
        for topic, version in read:
            lowest[topic] = _find_lower(lowest[topic], version) if topic in lowest else version
        return lowest

    def count_waiters(self, topic: str | None = None) -> int:
        """Return the number of waiting calls, or of the calls that wait for changes of ``topic``."""
        with self._lock:
            return len(self._all if topic is None else self._waiters.get(topic, ()))

    def wake_all(self) -> None:
        """Wake all waiters, for example after a change whose topics are unknown."""
        self._wake(tuple(self._waiters))

    def close(self) -> None:
        """Wake all waiters, because the service stops."""
        if not self.closed:
            self.waiters_at_close = self.count_waiters()
        self.closed = True
        self.wake_all()

    @contextmanager
    def watch(self, *topics: str, uncompared: Iterable[str] = ()) -> Iterator[Waiter]:
        """Yield a waiter that every change of a topic in ``topics`` or ``uncompared`` wakes.

        The slow poll does not compare the versions of the topics in ``uncompared`` with the database.
        """
        waiter = Waiter(dict.fromkeys(topics), asyncio.get_running_loop(), self._timers)
        all_topics = *topics, *uncompared
        with self._lock:
            self._all.add(waiter)
            for topic in all_topics:
                self._waiters[topic].add(waiter)
        try:
            yield waiter
        finally:
            with self._lock:
                self._all.discard(waiter)
                for topic in all_topics:
                    self._discard(topic, waiter)

    def _discard(self, topic: str, waiter: Waiter) -> None:
        self._waiters[topic].discard(waiter)
        if not self._waiters[topic]:
            del self._waiters[topic]

    def _wake(self, topics: Iterable[str]) -> None:
        by_loop: dict[asyncio.AbstractEventLoop, list[Waiter]] = defaultdict(list)
        with self._lock:
            for waiter in {waiter for topic in self._waiters.keys() & topics for waiter in self._waiters[topic]}:
                by_loop[waiter.loop].append(waiter)
        for loop, waiters in by_loop.items():
            with suppress(RuntimeError):  # raised if the event loop has ended
                loop.call_soon_threadsafe(_wake_each, waiters)


def _wake_each(waiters: Iterable[Waiter]) -> None:
    for waiter in waiters:
        waiter.wake()


def _find_lower(one: int | None, other: int | None) -> int | None:
    return None if one is None or other is None else min(one, other)
