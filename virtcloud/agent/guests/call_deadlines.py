"""Calls that may never return: each runs in a thread of its own, and its caller waits until a deadline only.

At most one abandoned call exists per object. Until it returns, every further call fails at once: the abandoned call may
still change something, so nothing that is read meanwhile would be reliable. A call on a local socket always returns
when its daemon goes on, ends, or is started again.
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
    """A call whose caller waits no longer; ``since`` is a time of the clock."""

    what: str
    since: float
    returned: threading.Event


@dataclass(frozen=True, slots=True)
class CallResult(Generic[T]):
    """What a call returned, or raised."""

    value: T | None = None
    error: BaseException | None = None


class DeadlineCalls:
    """Runs one call at a time; ``whom`` names the callee in messages, with its remedy."""

    def __init__(self, whom: str, remedy: str, clock: Callable[[], float] = time.monotonic) -> None:
        """Start without an abandoned call."""
        self._whom = whom
        self._remedy = remedy
        self._clock = clock
        self._abandoned: AbandonedCall | None = None

    def run(self, what: str, call: Callable[[], T], seconds: float) -> T:
        """Return what ``call`` returns, or raise what it raises.

        Raise :class:`Unreachable` when it takes longer than ``seconds``, and while a former call has not returned.
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
        return outcome.value  # type: ignore[return-value]  # None is what T is then

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
    except BaseException as error:  # noqa: BLE001 - the caller raises it
        outcome = CallResult(error=error)
    returned.set()
    outcomes.put(outcome)
