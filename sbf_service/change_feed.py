"""The change feed: wakes the calls in this process that wait for a change, and calls listeners."""

import asyncio
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from threading import Lock


@dataclass(frozen=True, slots=True)
class _Waiter:
    loop: asyncio.AbstractEventLoop
    event: asyncio.Event

    def wake(self) -> None:
        self.loop.call_soon_threadsafe(self.event.set)


@dataclass
class ChangeFeed:
    """Wakes waiters of topics such as ``cluster:demo`` or ``element:sw1``, and calls listeners. Thread-safe."""

    closed: bool = False
    _lock: Lock = field(default_factory=Lock)
    _waiters: dict[str, set[_Waiter]] = field(default_factory=lambda: defaultdict(set))
    _listeners: list[Callable[[frozenset[str]], None]] = field(default_factory=list)

    def add_listener(self, listener: Callable[[frozenset[str]], None]) -> None:
        """Call ``listener`` after every change, in the thread that made the change."""
        self._listeners.append(listener)

    def publish(self, topics: frozenset[str]) -> None:
        """Wake the waiters of these topics and call the listeners. Must be called after the commit."""
        with self._lock:
            waiters = [waiter for topic in topics for waiter in self._waiters.get(topic, ())]
            for waiter in waiters:
                waiter.wake()
        for listener in self._listeners:
            listener(topics)

    def close(self) -> None:
        """Wake all waiters, because the service stops."""
        self.closed = True
        self.publish(frozenset(self._waiters))

    @contextmanager
    def watch(self, topic: str) -> Iterator[asyncio.Event]:
        """Yield an event that is set at every change of the topic. No thread is used to wait for the event."""
        waiter = _Waiter(asyncio.get_running_loop(), asyncio.Event())
        with self._lock:
            self._waiters[topic].add(waiter)
        try:
            yield waiter.event
        finally:
            with self._lock:
                self._waiters[topic].discard(waiter)
                if not self._waiters[topic]:
                    del self._waiters[topic]


async def wait_for_change(event: asyncio.Event, seconds: float) -> None:
    """Wait until ``event`` is set, for at most ``seconds``. Then clear the event."""
    try:
        await asyncio.wait_for(event.wait(), seconds)
    except TimeoutError:
        return
    event.clear()
