import time
from dataclasses import dataclass, field

import pytest
from limits import parse
from limits.strategies import MovingWindowRateLimiter

from sbf_service import call_counts
from sbf_service.call_counts import CallCounts

THREE = parse("3/minute")


@dataclass
class Counts:
    """A rate limiter whose clock the test sets."""

    now: float = 1000.0
    storage: CallCounts = field(init=False)

    def __post_init__(self) -> None:
        self.storage = CallCounts(lambda: self.now)
        self.limiter = MovingWindowRateLimiter(self.storage)

    def hit(self, who: str) -> bool:
        return self.limiter.hit(THREE, "failed", who)


@pytest.fixture
def counts() -> Counts:
    return Counts()


def test_calls_above_the_limit_are_refused_until_the_window_moves(counts: Counts) -> None:
    allowed = []
    for counts.now in (0.0, 10.0, 20.0, 30.0, 60.0, 60.5, 61.0, 70.5):
        allowed.append(counts.hit("a"))
    assert allowed == [True, True, True, False, False, True, False, True]


def test_a_check_of_the_limit_counts_no_call(counts: Counts) -> None:
    assert [counts.limiter.test(THREE, "failed", "a") for _ in range(5)] == [True] * 5
    for _ in range(3):
        counts.hit("a")
    assert not counts.limiter.test(THREE, "failed", "a")


def test_the_reset_time_is_when_the_oldest_calls_window_ends(counts: Counts) -> None:
    for counts.now in (1000.0, 1010.0):
        counts.hit("a")
    assert counts.limiter.get_window_stats(THREE, "failed", "a") == (1060.0, 1)


def test_the_default_clock_is_monotonic() -> None:
    before = time.monotonic()
    at, _ = CallCounts().get_moving_window("a", 3, 60)
    assert before <= at <= time.monotonic()


def test_windows_without_recent_calls_are_removed(counts: Counts) -> None:
    for number in range(500):
        counts.now += 1
        counts.hit(f"192.0.2.{number}")
    assert counts.storage.window_count <= 122
    counts.now += 121
    counts.hit("a")
    assert counts.storage.window_count == 1


def test_callers_do_not_share_a_window(counts: Counts) -> None:
    assert [counts.hit(who) for who in "aaaab"] == [True, True, True, False, True]


def test_the_number_of_windows_is_limited(counts: Counts, monkeypatch: pytest.MonkeyPatch) -> None:
    """The window without a call for the longest time is removed."""
    monkeypatch.setattr(call_counts, "MAX_WINDOWS", 3)
    for who in "aaabca" + "d":
        counts.hit(who)
    assert counts.storage.window_count == 3
    assert [counts.limiter.test(THREE, "failed", who) for who in "ab"] == [False, True]
