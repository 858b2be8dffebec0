"""Coalesced timers: timers of many connections that expire at the same moment, several times a second.

With 10,000 waiting polls, the event loop would otherwise wake some 500 times a second. A poll after a pause takes more
processor time than a poll that directly follows another poll, probably because the data and the instructions are no
longer in the processor's caches (decision 89 contains the measurements).
"""

from asyncio import AbstractEventLoop, TimerHandle
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final
from weakref import WeakValueDictionary

STEP_S: Final = 0.25
"""The interval between two moments at which coalesced timers expire, in seconds."""
LEAST_S: Final = 10.0
"""A shorter timer is exact, because ``STEP_S`` would be a large part of this time."""
MOST: Final = 50
"""The maximum number of timers of a group that expire in one iteration of the event loop.

Other calls run between the iterations.
"""


class TimerGroup(dict["CoalescedTimer", Callable[[], None]]):
    """The timers that expire at one moment, and their callbacks."""


@dataclass(eq=False, slots=True)
class CoalescedTimer:
    """A timer that :meth:`CoalescedTimers.call_later` has started.

    Only ``group`` refers to the callback. Therefore, an ended timer and its owner are no reference cycle.
    """

    group: TimerGroup

    def cancel(self) -> None:
        """Cancel the timer. Do nothing if the timer has expired."""
        self.group.pop(self, None)


Timer = CoalescedTimer | TimerHandle
"""A timer that can be cancelled."""


@dataclass
class CoalescedTimers:
    """Starts timers. A timer of at least ``LEAST_S`` seconds expires up to ``STEP_S`` seconds early.

    Use the timers of an event loop only in this event loop.
    """

    _groups: "WeakValueDictionary[tuple[AbstractEventLoop, int], TimerGroup]" = field(
        default_factory=WeakValueDictionary
    )
    """The groups that have not expired. Each event loop refers to its groups until it is closed."""

    def call_later(self, loop: AbstractEventLoop, seconds: float, callback: Callable[[], None]) -> Timer:
        """Start a timer, which calls ``callback`` after about ``seconds``."""
        expires_at = loop.time() + seconds
        if seconds < LEAST_S:
            return loop.call_at(expires_at, callback)
        step = int(expires_at / STEP_S)
        group = self._groups.get((loop, step))
        if group is None:
            group = self._groups[loop, step] = TimerGroup()
            loop.call_at(step * STEP_S, _expire, loop, group)
        timer = CoalescedTimer(group)
        group[timer] = callback
        return timer


def _expire(loop: AbstractEventLoop, group: TimerGroup) -> None:
    for _ in range(MOST):
        if not group:
            return
        _, callback = group.popitem()
        try:
            callback()
        except Exception as error:  # noqa: BLE001 - one timer must not stop the timers of other connections
            loop.call_exception_handler({"message": "error of a coalesced timer", "exception": error})
    loop.call_soon(_expire, loop, group)
