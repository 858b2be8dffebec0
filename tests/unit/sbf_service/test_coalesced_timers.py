"""Tests of coalesced timers, on an event loop whose time the test advances."""

import asyncio
import gc
import weakref
from collections.abc import Callable
from contextvars import Context
from functools import partial
from typing import Any

import pytest

from sbf_service.change_feed import ChangeFeed
from sbf_service.coalesced_timers import LEAST_S, MOST, STEP_S, CoalescedTimers, Timer


class ManualLoop(asyncio.SelectorEventLoop):
    """An event loop with the time ``now``. ``due`` contains the exact timers that it has started."""

    def __init__(self) -> None:
        super().__init__()
        self.now = 100.1
        self.due: list[asyncio.TimerHandle] = []
        self.faults: list[object] = []

    def time(self) -> float:
        return self.now

    def call_at(
        self, when: float, callback: Callable[..., object], *args: object, context: Context | None = None
    ) -> asyncio.TimerHandle:
        self.due.append(asyncio.TimerHandle(when, callback, args, self, context))
        return self.due[-1]

    def call_soon(
        self, callback: Callable[..., object], *args: object, context: Context | None = None
    ) -> asyncio.Handle:
        return self.call_at(self.now, callback, *args, context=context)

    def call_exception_handler(self, context: dict[str, Any]) -> None:
        self.faults.append(context["exception"])

    @property
    def moments(self) -> list[float]:
        return [timer.when() for timer in self.due if not timer.cancelled()]

    def advance(self, now: float) -> None:
        self.now = now
        expired = [timer for timer in self.due if timer.when() <= now]
        self.due = [timer for timer in self.due if timer.when() > now]
        for timer in expired:
            if not timer.cancelled():
                timer._run()


class Owner:
    """An object that owns a timer, like a connection."""

    def expire(self) -> None:
        pass


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
    assert loop.moments == [155.0]
    loop.advance(155.0)
    assert sorted(expired) == list(range(20))


@pytest.mark.parametrize("seconds", [LEAST_S, 30.0, 55.3, 59.99])
def test_a_timer_expires_at_most_a_step_early(loop: ManualLoop, seconds: float) -> None:
    CoalescedTimers().call_later(loop, seconds, lambda: None)
    assert loop.now + seconds - STEP_S < loop.moments[0] <= loop.now + seconds


def test_a_short_timer_is_exact(loop: ManualLoop) -> None:
    CoalescedTimers().call_later(loop, 0.3, lambda: None)
    assert loop.moments[0] == loop.now + 0.3


@pytest.mark.parametrize("seconds", [1, 55])
def test_a_cancelled_timer_does_not_expire(loop: ManualLoop, seconds: float) -> None:
    timers, expired = CoalescedTimers(), list[str]()
    timers.call_later(loop, seconds, lambda: expired.append("cancelled")).cancel()
    timers.call_later(loop, seconds, lambda: expired.append("running"))
    loop.advance(loop.now + seconds)
    assert expired == ["running"]


def test_an_expiring_timer_may_cancel_another(loop: ManualLoop) -> None:
    timers, expired = CoalescedTimers(), list[int]()
    pair = list[Timer]()

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


def test_an_ended_timer_does_not_refer_to_its_owner(loop: ManualLoop) -> None:
    """Otherwise, each closed connection would wait for the garbage collector, which seldom runs (decision 93)."""
    timers, owners = CoalescedTimers(), [Owner(), Owner()]
    kept = [timers.call_later(loop, 55, owner.expire) for owner in owners]
    found = [weakref.ref(owner) for owner in owners]
    owners.clear()
    kept[0].cancel()
    assert [one() is None for one in found] == [True, False]
    loop.advance(loop.now + 55)
    assert [one() is None for one in found] == [True, True]


def test_a_cancelled_short_timer_does_not_wake_the_event_loop(loop: ManualLoop) -> None:
    CoalescedTimers().call_later(loop, 9, lambda: None).cancel()
    assert loop.moments == []


def test_a_closed_event_loop_releases_its_timers() -> None:
    timers, owner, loop = CoalescedTimers(), Owner(), asyncio.new_event_loop()
    timers.call_later(loop, 55, owner.expire)
    found = [weakref.ref(owner), weakref.ref(loop)]
    loop.close()
    del owner, loop
    gc.collect()
    assert [one() for one in found] == [None, None]


def test_other_calls_run_between_the_ends_of_many_timers(loop: ManualLoop) -> None:
    timers, expired = CoalescedTimers(), list[int]()
    for number in range(2 * MOST + 1):
        timers.call_later(loop, 55, partial(expired.append, number))
    counts = []
    for _ in range(3):
        loop.advance(155.0)
        counts.append(len(expired))
    assert counts == [MOST, 2 * MOST, 2 * MOST + 1]


def test_the_ends_of_many_waits_share_one_timer() -> None:
    async def wait(feed: ChangeFeed, topic: str) -> bool:
        with feed.watch(topic) as waiter:
            return await waiter.wait(55)

    async def act() -> list[bool]:
        feed, loop, moments = ChangeFeed(), asyncio.get_running_loop(), list[float]()
        call_at = loop.call_at

        def record(when: float, *arguments: Any, **options: Any) -> asyncio.TimerHandle:
            moments.append(when)
            return call_at(when, *arguments, **options)

        loop.time, loop.call_at = lambda: 100.1, record  # type: ignore[assignment]
        waits = [asyncio.create_task(wait(feed, f"element:{number}")) for number in range(5)]
        await asyncio.sleep(0)
        assert moments == [155.0]
        feed.close()
        return await asyncio.gather(*waits)

    assert asyncio.run(act()) == [True] * 5
