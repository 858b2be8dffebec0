"""Ten thousand fault schedules on a virtual clock, and that they would find what they look for."""

import os
from concurrent.futures import ProcessPoolExecutor
from dataclasses import replace
from datetime import datetime, timedelta
from multiprocessing import get_context

import pytest
from simulation.schedule import BrokenError, Planted, Schedule

from sbf_service.settle import Move, Standing, settle
from virtcloud.model.cluster import LEAVING
from virtcloud.model.views import Progress

SCHEDULES = 10_000
AT_ONCE = 250


def fault_of(seed: int, planted: Planted | None = None) -> str | None:
    """Run a schedule; give what was broken, if anything, with the command that shows it again."""
    schedule = Schedule(seed, planted or Planted())
    try:
        schedule.run()
    except BrokenError as error:
        return f"{error}; to see it: PYTHONPATH=tests .venv/bin/python -m simulation {seed}"
    return None


def faults_of(first: int) -> list[str]:
    return [fault for seed in range(first, first + AT_ONCE) if (fault := fault_of(seed)) is not None]


def test_ten_thousand_fault_schedules_break_nothing() -> None:
    """§7.1, 2, 3, 5 and 7 after every step of each, and in the end, left alone, all carry exactly what is wanted."""
    with ProcessPoolExecutor(os.cpu_count(), mp_context=get_context("spawn")) as processes:
        found = [fault for some in processes.map(faults_of, range(0, SCHEDULES, AT_ONCE)) for fault in some]
    assert found == []


def frees_before_all_confirmed(cluster: Standing, now: datetime, drain: timedelta) -> Move | None:
    """A bug: one element that confirmed its removal is enough."""
    gone = [part for part in cluster.parts if part.progress is Progress.REMOVED]
    return settle(replace(cluster, parts=tuple(gone)) if cluster.state in LEAVING and gone else cluster, now, drain)


def frees_before_members_let_go(cluster: Standing, now: datetime, drain: timedelta) -> Move | None:
    """A bug: a network's numbers are given back while its members' elements may carry them."""
    return settle(replace(cluster, members=()), now, drain)


@pytest.mark.parametrize(
    ("planted", "broken"),
    [
        (Planted(settle=frees_before_all_confirmed), "7.2"),
        (Planted(settle=frees_before_members_let_go), "7.2"),
        (Planted(reads_back=False), "7."),
        (Planted(keeps_fence=False), "7."),
    ],
    ids=[
        "frees numbers before all confirmed",
        "frees them before members let go",
        "confirms without reading back",
        "ignores the fence",
    ],
)
def test_a_planted_bug_is_found(planted: Planted, broken: str) -> None:
    found = next((fault for seed in range(SCHEDULES) if (fault := fault_of(seed, planted)) is not None), "nothing")
    assert found.startswith(broken)


def test_a_seed_is_the_same_story_each_time() -> None:
    stories = []
    for _ in range(2):
        schedule = Schedule(7)
        schedule.run()
        stories.append(schedule.told)
    assert stories[0] == stories[1]
    assert len(stories[0]) > 80
