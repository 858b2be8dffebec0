"""Stopping promptly: a signal ends a wait at once, and a change between two steps."""

import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager


class Stopped(BaseException):
    """The agent was asked to stop. No Exception: nothing that handles errors is to catch it."""


class Stop:
    """Whether the agent was asked to stop. Waits are interrupted; what changes something is not."""

    def __init__(self, sleep: Callable[[float], None] = time.sleep) -> None:
        """Not asked yet; ``sleep`` waits some seconds."""
        self.requested = False
        self.failure: str | None = None
        self._on_signals = False
        self._interruptible = False
        self._sleep = sleep

    def on_signals(self) -> None:
        """Take SIGTERM and SIGINT as the request; only the main thread may call this."""
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, lambda _number, _frame: self.request())
        self._on_signals = True

    def request(self) -> None:
        """Ask the agent to stop."""
        self.requested = True
        if self._interruptible:
            raise Stopped

    def fail(self, reason: str) -> None:
        """Ask the agent to stop, from any thread, because a part of it does not work; the first reason is kept."""
        self.failure = self.failure or reason
        self.requested = True
        main = threading.main_thread().ident
        if self._on_signals and main is not None:
            signal.pthread_kill(main, signal.SIGTERM)  # interrupts the main thread's wait

    def check(self) -> None:
        """Raise :class:`Stopped` if asked to stop."""
        if self.requested:
            raise Stopped

    @contextmanager
    def interruptible(self) -> Iterator[None]:
        """Let the signal end what is done here, wherever it is."""
        self._interruptible = True
        try:
            self.check()
            yield
        finally:
            self._interruptible = False

    def pause(self, seconds: float) -> None:
        """Wait, unless asked to stop: then raise :class:`Stopped`."""
        with self.interruptible():
            self._sleep(seconds)
