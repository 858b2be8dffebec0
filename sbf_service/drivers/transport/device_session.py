"""Sessions with devices: the interfaces (``Protocol``) of sessions, and the deadline of a session.

The deadline is the earlier of the end of a conversation's time limit and a time before the end of the device's lease.
Every session checks the deadline before it sends and while it waits. If a library call waits at the deadline, SBF
closes the connection to interrupt the call.
"""

import math
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from threading import Lock
from typing import Protocol, runtime_checkable

RETRIED = "; SBF tries again"
"""The end of messages about unreachable devices. A program that contacts a device only once removes this text."""
SESSION_LOST = "ended the session after SBF had read the device: nothing more was sent; SBF reads the device again"
"""The message for a device that may have restarted between a reading and the change."""


class ConversationCancelledError(OSError):
    """The deadline passed or the conversation was cancelled. The message contains the reason."""


@dataclass
class CancelScope:
    """The deadline of one driver's connection, which other threads can cancel. Thread-safe.

    ``deadline`` is a time of ``clock``, in seconds. ``reason`` is the message of the error that :meth:`check` raises.
    """

    clock: Callable[[], float] = time.monotonic
    deadline: float = math.inf
    reason: str = ""
    _is_cancelled: bool = False
    _disconnect: Callable[[], None] | None = None
    _lock: Lock = field(default_factory=Lock)

    def allow(self, deadline: float, reason: str) -> None:
        """Set the deadline and the reason, unless the connection is cancelled."""
        with self._lock:
            if not self._is_cancelled:
                self.deadline, self.reason = deadline, reason

    def attach(self, disconnect: Callable[[], None]) -> None:
        """Register ``disconnect``, a function that ends a new connection without waiting.

        Call ``disconnect`` immediately if the connection was already cancelled.
        """
        with self._lock:
            self._disconnect = disconnect
            is_cancelled = self._is_cancelled
        if is_cancelled:
            self._end_connection()

    def cancel(self, reason: str) -> None:
        """End the connection, and every connection that is attached later. Idempotent; never raises."""
        with self._lock:
            self.reason = self.reason if self._is_cancelled else reason
            self._is_cancelled = True
        self._end_connection()

    @property
    def remaining(self) -> float:
        """The seconds until the deadline; 0 after the deadline or a cancellation."""
        return 0.0 if self._is_cancelled else max(0.0, self.deadline - self.clock())

    def check(self) -> None:
        """Raise ConversationCancelledError after the deadline or a cancellation."""
        if not self.remaining:
            raise ConversationCancelledError(self.reason)

    def _end_connection(self) -> None:
        with self._lock:
            disconnect = self._disconnect
        if disconnect is not None:
            with suppress(Exception):
                disconnect()


class CommandLine(Protocol):
    """A terminal session, which sends lines and reads until a pattern appears.

    The session connects on first use, and again on first use after :meth:`close`. If the device ended the session,
    :meth:`exchange` raises Unreachable and does not connect again: after a restart, a change computed from an earlier
    reading would be wrong. Before a new reading, :func:`close_lost_session` closes the lost session.
    """

    @property
    def prompt(self) -> str:
        """The pattern of the device's prompt in every mode, at the start of a line (``re.MULTILINE``)."""

    def exchange(self, command: str, until: str, times: int = 1, patience: float = 1) -> str:
        """Send one or several lines, and return the output from their echo up to the pattern ``until``.

        The pattern must appear ``times`` times, and ``patience`` multiplies the timeout. Raise Unreachable when the
        device prints nothing within the timeout or ends the session. Raise Refused when the device rejects the login,
        and Unsafe when the device's host key is not accepted. An error closes the session, so that a late answer is not
        taken for the answer to the next command.
        """

    def close(self) -> None:
        """End the session. Idempotent; never raises."""


@runtime_checkable
class DetectsSessionLoss(Protocol):
    """A session or driver that can detect, without sending anything, that the device ended the session."""

    def is_lost(self) -> bool:
        """Return whether the device ended a session; False if no session was open. Thread-safe; never raises."""


class Closable(Protocol):
    """A session that can be ended."""

    def close(self) -> None:
        """End the session. Idempotent; never raises."""


def close_lost_session(session: Closable) -> None:
    """Close a session that the device ended. The next command then opens a new session.

    Call this only when no change depends on an earlier reading (see :class:`CommandLine`).
    """
    if is_session_lost(session):
        session.close()


def is_session_lost(session: Closable) -> bool:
    """Return whether the device ended a session; False if the session cannot detect its end."""
    return isinstance(session, DetectsSessionLoss) and session.is_lost()
