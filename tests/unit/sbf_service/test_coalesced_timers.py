"""Tests of coalesced timers, on an event loop whose time the test advances."""

import asyncio
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest

from sbf_service.change_feed import ChangeFeed
from sbf_service.coalesced_timers import LEAST_S, STEP_S, CoalescedTimer, CoalescedTimers


class ManualLoop(asyncio.SelectorEventLoop):
    """An event loop with the time ``now``. ``due`` contains the exact timers that it has started."""

    def __init__(self) -> None:
        super().__init__()
        self.now = 100.1
        self.due: list[tuple[float, Callable[[], object]]] = []
        self.faults: list[object] = []

    def time(self) -> float:
        return self.now

    def call_at(  # type: ignore[override] # a timer of this loop has no handle
        self, when: float, callback: Callable[..., object], *args: object, context: object = None
    ) -> None:
        self.due.append((when, partial(callback, *args)))

    def call_exception_handler(self, context: dict[str, Any]) -> None:
        self.faults.append(context["exception"])

    def advance(self, now: float) -> None:
        self.now = now
        expired = [one for one in self.due if one[0] <= now]
        self.due = [one for one in self.due if one[0] > now]
        for _, callback in expired:
            callback()


@pytest.fixture
def loop() -> ManualLoop:
    made = ManualLoop()
    made.close()
    return made


def test_timers_of_one_moment_wake_the_event_loop_once(loop: ManualLoop) -> None:
    timers, expired = CoalescedTimers(), list[int]()
    for number in range(20):
        timers.call_later(loop, 55, partial(expired.append, number))
        loop.now += STEP_S / 100
    assert [when for when, _ in loop.due] == [155.0]
    loop.advance(155.0)
    assert sorted(expired) == list(range(20))


@pytest.mark.parametrize("seconds", [LEAST_S, 30.0, 55.3, 59.99])
def test_a_timer_expires_at_most_a_step_early(loop: ManualLoop, seconds: float) -> None:
    CoalescedTimers().call_later(loop, seconds, lambda: None)
    assert loop.now + seconds - STEP_S < loop.due[0][0] <= loop.now + seconds


def test_a_short_timer_is_exact(loop: ManualLoop) -> None:
    CoalescedTimers().call_later(loop, 0.3, lambda: None)
    assert loop.due[0][0] == loop.now + 0.3


@pytest.mark.parametrize("seconds", [1, 55])
def test_a_cancelled_timer_does_not_expire(loop: ManualLoop, seconds: float) -> None:
    timers, expired = CoalescedTimers(), list[str]()
    timers.call_later(loop, seconds, lambda: expired.append("cancelled")).cancel()
    timers.call_later(loop, seconds, lambda: expired.append("running"))
    loop.advance(loop.now + seconds)
    assert expired == ["running"]


def test_an_expiring_timer_may_cancel_another(loop: ManualLoop) -> None:
    timers, expired = CoalescedTimers(), list[int]()
    pair = list[CoalescedTimer]()

    def expire() -> None:
        expired.append(1)
        for timer in pair:
            timer.cancel()

    pair += [timers.call_later(loop, 55, expire) for _ in range(2)]
    loop.advance(loop.now + 55)
    assert expired == [1]


def test_an_error_of_one_timer_does_not_stop_the_others(loop: ManualLoop) -> None:
    timers, expired, error = CoalescedTimers(), list[int](), ValueError("of the test")

    def fail() -> None:
        raise error

    for callback in (fail, lambda: expired.append(1), fail):
        timers.call_later(loop, 55, callback)
    loop.advance(loop.now + 55)
    assert (expired, loop.faults) == ([1], [error, error])


def test_the_ends_of_many_waits_share_one_timer(loop: ManualLoop) -> None:
    async def wait(feed: ChangeFeed, topic: str) -> None:
        with feed.watch(topic) as waiter:
            waiter.loop = loop
            await waiter.wait(55)

    feed = ChangeFeed()

    async def act() -> None:
        waits = [asyncio.create_task(wait(feed, f"element:{number}")) for number in range(5)]
        await asyncio.sleep(0)
        assert len(loop.due) == 1
        for task in waits:
            task.cancel()
        await asyncio.gather(*waits, return_exceptions=True)

    asyncio.run(act())
