"""Tests of the interpreter's settings and of the pauses during work on large documents.

A turn is the longest time that a thread holds the interpreter while another thread waits. A collection is a run of the
garbage collector.
"""

import gc
import sys
from collections.abc import Iterator
from dataclasses import dataclass

import pytest

from sbf_service.large_documents import (
    LARGE,
    LOOK_S,
    MAX_PAUSE_S,
    SHORT_TURN_S,
    WORK_S,
    Pauses,
    collect_later,
    give_way,
    take_short_turns,
)
from virtcloud.model.yield_points import pausing_with, with_yield_points, yield_point


@pytest.fixture
def usual_turn_s() -> Iterator[float]:
    usual = sys.getswitchinterval()
    yield usual
    assert sys.getswitchinterval() == usual


def test_turns_are_short_until_the_last_thread_ends(usual_turn_s: float) -> None:
    with take_short_turns():
        with take_short_turns():
            pass
        assert sys.getswitchinterval() == pytest.approx(SHORT_TURN_S)
    assert sys.getswitchinterval() == usual_turn_s


def test_turns_are_usual_after_an_error(usual_turn_s: float) -> None:
    with pytest.raises(KeyError), take_short_turns():
        raise KeyError
    assert sys.getswitchinterval() == usual_turn_s


def test_only_a_large_document_delays_collections() -> None:
    with collect_later(LARGE - 1):
        assert gc.isenabled()
    with collect_later(LARGE):
        assert not gc.isenabled()
    assert gc.isenabled()


def test_later_collections_skip_the_objects_of_a_large_document() -> None:
    before = gc.get_freeze_count()
    with collect_later(LARGE):
        kept = [[number] for number in range(1000)]
    assert gc.get_freeze_count() >= before + len(kept)


@dataclass
class BusyProcess:
    """The clocks of a process whose other threads use the processor for ``busy_s`` seconds of each pause."""

    busy_s: float = 0.0
    now: float = 0.0
    used: float = 0.0
    sleeps: int = 0

    def sleep(self, seconds: float) -> None:
        self.now += seconds
        self.sleeps += 1
        work = min(seconds, max(self.busy_s - self.used, 0))
        self.used += work

    def pause_after(self, work_s: float) -> float:
        pauses = Pauses(lambda: self.now, lambda: self.used, self.sleep)
        self.now += work_s
        before = self.now
        pauses.pause()
        return self.now - before


def test_a_thread_works_before_it_pauses() -> None:
    assert BusyProcess(busy_s=1).pause_after(WORK_S / 2) == 0


def test_a_pause_ends_when_no_other_thread_runs() -> None:
    assert BusyProcess().pause_after(WORK_S) == pytest.approx(LOOK_S)
    assert BusyProcess(busy_s=3 * LOOK_S).pause_after(WORK_S) == pytest.approx(4 * LOOK_S)


def test_a_pause_ends_though_other_threads_still_run() -> None:
    assert MAX_PAUSE_S <= BusyProcess(busy_s=1).pause_after(WORK_S) <= MAX_PAUSE_S + LOOK_S


def test_a_thread_works_again_after_a_pause() -> None:
    process = BusyProcess()
    pauses = Pauses(lambda: process.now, lambda: process.used, process.sleep)
    process.now += WORK_S
    for _ in range(3):
        pauses.pause()
    assert process.sleeps == 1


def test_a_thread_that_gives_way_pauses_at_yield_points(monkeypatch: pytest.MonkeyPatch, usual_turn_s: float) -> None:
    passed: list[str] = []
    monkeypatch.setattr(Pauses, "pause", lambda _self: passed.append("pause"))
    with give_way():
        assert sys.getswitchinterval() == pytest.approx(SHORT_TURN_S) != usual_turn_s
        passed.extend(with_yield_points(["a", "b"]))
        yield_point()
    yield_point()
    assert passed == ["pause", "a", "pause", "b", "pause"]


def test_a_loop_can_pause_between_groups_of_items() -> None:
    passed: list[object] = []
    with pausing_with(lambda: passed.append("pause")):
        passed.extend(with_yield_points(range(5), every=2))
    assert passed.count("pause") == 3


def test_yield_points_without_a_pause_cost_nothing() -> None:
    items = ["a", "b"]
    assert with_yield_points(items) is items
