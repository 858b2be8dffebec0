"""The connection under a driver: how long it may be used, and how another thread ends it.

A worker may use a device's connection for as long as its lease certainly lasts, and no longer than one conversation may
take. The limit is checked before anything is sent and while an answer is awaited; a library that waits by itself is
woken by the end of its connection.
"""

import math
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from threading import Lock


class ConversationCutError(OSError):
    """The conversation may not go on; the message says why."""


@dataclass
class Wire:
    """One driver's connection; thread-safe. ``until`` is on ``clock``, in seconds."""

    clock: Callable[[], float] = time.monotonic
    until: float = math.inf
    why: str = ""
    _is_cut: bool = False
    _sever: Callable[[], None] | None = None
    _lock: Lock = field(default_factory=Lock)

    def allow(self, until: float, why: str) -> None:
        """Permit use of the connection until a moment; ``why`` is said of it after that. What is cut stays cut."""
        with self._lock:
            if not self._is_cut:
                self.until, self.why = until, why

    def attach(self, sever: Callable[[], None]) -> None:
        """Name what ends a new connection at once and without waiting. It ends now when the wire is cut already."""
        with self._lock:
            self._sever = sever
            is_cut = self._is_cut
        if is_cut:
            self._end()

    def cut(self, why: str) -> None:
        """End the connection, and each that is made later. May be repeated; never raises."""
        with self._lock:
            self.why = self.why if self._is_cut else why
            self._is_cut = True
        self._end()

    @property
    def left(self) -> float:
        """How many seconds the connection may be used; 0 when it may not."""
        return 0.0 if self._is_cut else max(0.0, self.until - self.clock())

    def check(self) -> None:
        """Raise ConversationCutError when the connection may not be used any more."""
        if not self.left:
            raise ConversationCutError(self.why)

    def _end(self) -> None:
        with self._lock:
            sever = self._sever
        if sever is not None:
            with suppress(Exception):
                sever()
