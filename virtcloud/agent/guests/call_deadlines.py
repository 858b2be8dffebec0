"""Calls with a deadline, for a library whose calls may never return. Each call runs in its own thread.

A `DeadlineCalls` object has at most one abandoned call. Until that call returns, every further call fails immediately:
the abandoned call may still change something, so a reading in the meantime would be unreliable. A call on a local
socket always returns when the daemon continues, ends, or is restarted.
"""

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from queue import Empty, SimpleQueue
from typing import Generic, TypeVar

from virtcloud.model.errors import Unreachable

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class AbandonedCall:
    """A call for which the caller no longer waits. ``since`` is the time when the call began."""

    what: str
    since: float
    returned: threading.Event


@dataclass(frozen=True, slots=True)
class CallResult(Generic[T]):
    """The return value of a call, or the error that it raised."""

    value: T | None = None
    error: BaseException | None = None


class DeadlineCalls:
    """Runs one call at a time.

    ``whom`` is the callee's name in messages, ``remedy`` an instruction for an administrator.
    """

    def __init__(self, whom: str, remedy: str, clock: Callable[[], float] = time.monotonic) -> None:
        """Create the object without an abandoned call."""
        self._whom = whom
        self._remedy = remedy
        self._clock = clock
        self._abandoned: AbandonedCall | None = None

    def run(self, what: str, call: Callable[[], T], seconds: float) -> T:
        """Return the value of ``call``, or raise its error.

        Raise Unreachable when the call takes longer than ``seconds``, or while an abandoned call has not returned.
        """
        self._check_free(what)
        outcomes: SimpleQueue[CallResult[T]] = SimpleQueue()
        returned = threading.Event()
        began = self._clock()
        self._start(what, lambda: _run(call, outcomes, returned))
        try:
            outcome = outcomes.get(timeout=seconds)
        except Empty as error:
            self._abandoned = AbandonedCall(what, began, returned)
            raise Unreachable(f"{self._whom} did not {what} within {seconds:g} s; {self._remedy}") from error
        if outcome.error is not None:
            raise outcome.error
        return outcome.value  # type: ignore[return-value] # T may be None

    def _check_free(self, what: str) -> None:
        stuck = self._abandoned
        if stuck is None or stuck.returned.is_set():
            self._abandoned = None
            return
        waited = self._clock() - stuck.since
        raise Unreachable(
            f"{self._whom} cannot {what}: it was asked to {stuck.what} {waited:.0f} s ago and has not answered; "
            f"{self._remedy}"
        )

    def _start(self, what: str, work: Callable[[], None]) -> None:
        try:
            threading.Thread(target=work, name="bounded", daemon=True).start()
        except RuntimeError as error:
            raise Unreachable(f"{self._whom} was not asked to {what}: {error} on this machine") from error


def _run(call: Callable[[], T], outcomes: SimpleQueue[CallResult[T]], returned: threading.Event) -> None:
    try:
        outcome: CallResult[T] = CallResult(value=call())
    except BaseException as error:  # noqa: BLE001 - raised by the caller
        outcome = CallResult(error=error)
    returned.set()
    outcomes.put(outcome)
