"""Coalesced timers: timers of many connections that expire at the same moment, several times a second.

With 10,000 waiting polls, the event loop would otherwise wake some 500 times a second. A poll after a pause takes more
processor time than a poll that directly follows another poll, probably because the data and the instructions are no
longer in the processor's caches (decision 89 contains the measurements).
"""

from asyncio import AbstractEventLoop
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final

STEP_S: Final = 0.25
"""The interval between two moments at which coalesced timers expire, in seconds."""
LEAST_S: Final = 10.0
"""A shorter timer is exact, because ``STEP_S`` would be a large part of this time."""


@dataclass(eq=False, slots=True)
class CoalescedTimer:
    """A timer that :meth:`CoalescedTimers.call_later` has started. ``group`` are the timers with the same moment."""

    callback: Callable[[], None]
    group: set["CoalescedTimer"]

    def cancel(self) -> None:
        """Cancel the timer. Do nothing if the timer has expired."""
        self.group.discard(self)


@dataclass
class CoalescedTimers:
    """Starts timers. A timer of at least ``LEAST_S`` seconds expires up to ``STEP_S`` seconds early.

    Use the timers of an event loop only in this event loop.
    """

    _groups: dict[tuple[AbstractEventLoop, int], set[CoalescedTimer]] = field(default_factory=dict)

    def call_later(self, loop: AbstractEventLoop, seconds: float, callback: Callable[[], None]) -> CoalescedTimer:
        """Start a timer, which calls ``callback`` after about ``seconds``."""
        expires_at = loop.time() + seconds
        if seconds < LEAST_S:
            timer = CoalescedTimer(callback, set())
            timer.group.add(timer)
            loop.call_at(expires_at, _expire, loop, timer.group)
            return timer
        key = loop, int(expires_at / STEP_S)
        group = self._groups.get(key)
        if group is None:
            group = self._groups[key] = set()
            loop.call_at(key[1] * STEP_S, self._expire_group, key)
        timer = CoalescedTimer(callback, group)
        group.add(timer)
        return timer

    def _expire_group(self, key: tuple[AbstractEventLoop, int]) -> None:
        _expire(key[0], self._groups.pop(key))


def _expire(loop: AbstractEventLoop, group: set[CoalescedTimer]) -> None:
    while group:
        try:
            group.pop().callback()
        except Exception as error:  # noqa: BLE001 - one timer must not stop the timers of other connections
            loop.call_exception_handler({"message": "error of a coalesced timer", "exception": error})
