"""The change feed: wakes calls in this process that wait for a change, and notifies listeners."""

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

    def listen(self, listener: Callable[[frozenset[str]], None]) -> None:
        """Call ``listener`` after every change, in the thread that made the change."""
        self._listeners.append(listener)

    def publish(self, changed: frozenset[str]) -> None:
        """Wake the waiters of these topics and call the listeners. Call this method after the commit."""
        with self._lock:
            woken = [waiter for name in changed for waiter in self._waiters.get(name, ())]
            for waiter in woken:
                waiter.wake()
        for listener in self._listeners:
            listener(changed)

    def close(self) -> None:
        """Wake all waiters because the service stops."""
        self.closed = True
        self.publish(frozenset(self._waiters))

    @contextmanager
    def watch(self, name: str) -> Iterator[asyncio.Event]:
        """Yield an event that is set whenever the topic ``name`` changes. Waiting for the event uses no thread."""
        waiter = _Waiter(asyncio.get_running_loop(), asyncio.Event())
        with self._lock:
            self._waiters[name].add(waiter)
        try:
            yield waiter.event
        finally:
            with self._lock:
                self._waiters[name].discard(waiter)
                if not self._waiters[name]:
                    del self._waiters[name]


async def wait_for_change(event: asyncio.Event, seconds: float) -> None:
    """Wait at most ``seconds`` until ``event`` is set, and clear the event."""
    try:
        await asyncio.wait_for(event.wait(), seconds)
    except TimeoutError:
        return
    event.clear()
