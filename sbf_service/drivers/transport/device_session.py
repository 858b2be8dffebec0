"""The connection under a driver: how long it may be used, and how another thread ends it.

A worker may use a device's connection for as long as its lease certainly lasts, and no longer than one conversation may
take. The limit is checked before anything is sent and while an answer is awaited; a library that waits by itself is
woken by the end of its connection.

A command line on a device, as the dialects need it.
"""

import math
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from threading import Lock
from typing import Protocol, runtime_checkable


class ConversationCancelledError(OSError):
    """The conversation may not go on; the message says why."""


@dataclass
class CancelScope:
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
            raise ConversationCancelledError(self.why)

    def _end(self) -> None:
        with self._lock:
            sever = self._sever
        if sever is not None:
            with suppress(Exception):
                sever()


SESSION_LOST = "ended the session since it was read: nothing more was sent; it is read again"
"""What is said of a device that may have restarted between a reading and the change that was computed from it."""


class CommandLine(Protocol):
    """Sends lines and reads until a pattern is seen; connects when first used, again after :meth:`close`.

    A session that the device ended is not replaced by :meth:`ask`, which raises Unreachable: the device may have
    restarted, and a change that was computed from the reading before would be wrong. A reading starts with
    :func:`renew`.
    """

    @property
    def prompt(self) -> str:
        """Give the pattern of the device's prompt, in whatever mode, at the start of a line (``re.MULTILINE``)."""

    def ask(self, command: str, until: str, times: int = 1, patience: float = 1) -> str:
        """Send one line or several, and give what came back from their echo up to the pattern ``until``.

        ``times`` is how often the pattern is waited for. ``patience`` is how much longer than usual the device may be
        silent. Raises Unreachable when it is silent for too long or ends the session, Refused when it does not let us
        in. After an error the session is closed: what it still may say belongs to no later question.
        """

    def close(self) -> None:
        """End the session; may be repeated, and never raises."""


@runtime_checkable
class DetectsSessionLoss(Protocol):
    """A session, or a driver with one, that knows without asking when the device has ended it."""

    def is_lost(self) -> bool:
        """Say whether a session was there and has ended by itself; may be called by any thread, and never raises."""


class Closable(Protocol):
    """A session that can be ended."""

    def close(self) -> None:
        """End the session; may be repeated, and never raises."""


def close_lost_session(session: Closable) -> None:
    """Close a session that the device ended, so that the next question opens a new one.

    Only a reading may start in this way, and what depends on no reading: see :class:`CommandLine`.
    """
    if isinstance(session, DetectsSessionLoss) and session.is_lost():
        session.close()
