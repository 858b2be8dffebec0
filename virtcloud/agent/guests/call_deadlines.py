"""Calls with a deadline, in separate threads, for a library whose calls may never return.

After its deadline, a call is *abandoned*: the caller gets an error, and the thread continues. An abandoned call may
still change the host. So all further calls fail immediately until the abandoned call has returned.
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
    """A call that exceeded its deadline and has not returned. ``since`` is the time when the call began."""

    action: str
    since: float
    returned: threading.Event


@dataclass(frozen=True, slots=True)
class CallResult(Generic[T]):
    """The return value or the error of a call."""

    value: T | None = None
    error: BaseException | None = None


class DeadlineCalls:
    """Runs calls to a daemon. Thread-safe: calls of several threads run at the same time.

    ``callee`` is the daemon's name in messages. ``remedy`` is an instruction for an administrator.
    """

    def __init__(self, callee: str, remedy: str, clock: Callable[[], float] = time.monotonic) -> None:
        """Create the object without abandoned calls."""
        self._callee = callee
        self._remedy = remedy
        self._clock = clock
        self._lock = threading.Lock()
        self._abandoned: list[AbandonedCall] = []

    def run(self, action: str, call: Callable[[], T], seconds: float) -> T:
        """Call ``call``. Return its value, or raise its error. ``action`` describes the call in messages.

        Raise Unreachable if the call exceeds ``seconds``, an abandoned call has not returned, or no thread can be
        started.
        """
        self._check_free(action)
        outcomes: SimpleQueue[CallResult[T]] = SimpleQueue()
        returned = threading.Event()
        began = self._clock()
        self._start(action, lambda: _run(call, outcomes, returned))
        try:
            outcome = outcomes.get(timeout=seconds)
        except Empty as error:
            with self._lock:
                self._abandoned.append(AbandonedCall(action, began, returned))
            raise Unreachable(f"{self._callee} did not {action} within {seconds:g} s; {self._remedy}") from error
        if outcome.error is not None:
            raise outcome.error
        return outcome.value  # type: ignore[return-value] # T may be None

    def _check_free(self, action: str) -> None:
        with self._lock:
            self._abandoned = [call for call in self._abandoned if not call.returned.is_set()]
            abandoned = next(iter(self._abandoned), None)
        if abandoned is None:
            return
        waited = self._clock() - abandoned.since
        raise Unreachable(
            f"{self._callee} cannot {action}: the call '{abandoned.action}' of {waited:.0f} s ago has not returned; "
            f"{self._remedy}"
        )

    def _start(self, action: str, work: Callable[[], None]) -> None:
        try:
            threading.Thread(target=work, name="bounded", daemon=True).start()
        except RuntimeError as error:
            raise Unreachable(f"{self._callee} cannot {action}: the agent cannot start a thread: {error}") from error


def _run(call: Callable[[], T], outcomes: SimpleQueue[CallResult[T]], returned: threading.Event) -> None:
    try:
        outcome: CallResult[T] = CallResult(value=call())
    except BaseException as error:  # noqa: BLE001 - `DeadlineCalls.run` raises the error again
        outcome = CallResult(error=error)
    returned.set()
    outcomes.put(outcome)
