"""Tests of the readings of the worker scheduler: which devices each round reads from the database."""

from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass, field
from datetime import datetime
from threading import Event
from unittest.mock import Mock

import pytest
from support.sbf_fakes.world import World, spec

from sbf_service.domain.due_elements import DeviceStatus, DueDevices
from sbf_service.reconcile import work_queue
from sbf_service.reconcile.device_statuses import DeviceStatuses
from sbf_service.reconcile.scheduler import WorkerScheduler
from virtcloud.model.errors import DatabaseUnavailable
from virtcloud.model.values import Name


@dataclass
class RecordedStatuses:
    """The queries of a scheduler, with the devices of each reading. If ``fails`` is true, the next reading fails."""

    statuses: DeviceStatuses
    read_names: list[list[str]] = field(default_factory=list)
    fails: bool = False

    def read(self, holder: str, due: DueDevices) -> tuple[datetime, list[DeviceStatus]]:
        if self.fails:
            self.fails = False
            raise DatabaseUnavailable("the database does not answer")
        now, found = self.statuses.read(holder, due)
        self.read_names.append([status.name for status in found])
        return now, found

    def find_removed(self, names: Collection[Name]) -> set[Name]:
        return self.statuses.find_removed(names)

    def release_leases(self, holder: str) -> None:
        self.statuses.release_leases(holder)


@dataclass
class Scheduled:
    """A scheduler whose workers never run: the test ends their work. All three switches are due."""

    scheduler: WorkerScheduler
    recorded: RecordedStatuses
    started: list[str] = field(default_factory=list)

    def start(self, _work: Callable[[], None], thread: str) -> None:
        self.started.append(thread.removeprefix("converge-"))

    def end(self, *names: str) -> None:
        """End the work on these devices, which are then still due."""
        with self.scheduler._lock:
            for name in names:
                self.scheduler._free(Name(name))

    def run_round(self) -> tuple[list[list[str]], list[str]]:
        """Run a round between two complete readings. Return the devices that were read, and those that started."""
        self.recorded.read_names.clear()
        self.started.clear()
        self.scheduler.run_once(reads_all=False)
        return self.recorded.read_names, self.started


@pytest.fixture
def scheduled(world: World) -> Iterator[Scheduled]:
    scheduler = world.service.scheduler
    recorded = RecordedStatuses(scheduler.statuses)
    found = Scheduled(scheduler, recorded)
    scheduler.statuses, scheduler.spawn = recorded, found.start
    scheduler._queue.settings = scheduler.settings.model_copy(update={"workers": 2})
    yield found
    scheduler._queue.busy.clear()


def test_a_round_after_a_claim_reads_only_changed_devices(world: World, scheduled: Scheduled) -> None:
    scheduled.scheduler.run_once()
    assert scheduled.recorded.read_names == [["brno-sw1", "plzen-sw1", "praha-sw1"]]
    scheduled.scheduler._queue.waiting.clear()
    scheduled.scheduler._queue.busy.clear()
    world.put("demo", spec("praha-h1"))
    assert scheduled.run_round() == ([["praha-sw1"]], ["praha-sw1"])


def test_a_claim_reads_nothing_while_every_worker_is_busy(world: World, scheduled: Scheduled) -> None:
    scheduled.scheduler.run_once()
    assert scheduled.started == ["brno-sw1", "plzen-sw1"]
    world.put("demo", spec("praha-h1"))
    assert scheduled.run_round() == ([], [])
    scheduled.end("plzen-sw1")
    assert scheduled.run_round() == ([["plzen-sw1", "praha-sw1"]], ["plzen-sw1"])


def test_waiting_devices_start_when_a_worker_ends(world: World, scheduled: Scheduled) -> None:
    scheduled.scheduler.run_once()
    world.converge("brno-sw1")
    scheduled.end("brno-sw1")
    assert scheduled.run_round() == ([["brno-sw1", "praha-sw1"]], ["praha-sw1"])


def test_a_free_worker_skips_devices_that_another_replica_reconciled(
    world: World, scheduled: Scheduled, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(work_queue, "CANDIDATES", 1)
    scheduler = scheduled.scheduler
    scheduler._queue.settings = scheduler.settings.model_copy(update={"workers": 1})
    scheduler.run_once()
    world.converge("brno-sw1")
    world.converge("plzen-sw1")
    scheduled.end("brno-sw1")
    scheduler._wake.clear()
    assert scheduled.run_round() == ([["brno-sw1", "plzen-sw1"]], [])
    assert scheduler._wake.is_set()
    assert scheduled.run_round() == ([["praha-sw1"]], ["praha-sw1"])


@pytest.mark.parametrize("step", ["find_lost", "find_removed"])
def test_an_error_in_a_round_is_followed_by_a_pause(
    scheduled: Scheduled, step: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without the pause, the scheduler would repeat the failed round without end."""
    scheduler, now = scheduled.scheduler, 0.0
    scheduler.clock = lambda: now
    scheduler.run_once()
    now = 2.0
    owner = scheduler.worker.sessions if step == "find_lost" else scheduled.recorded
    monkeypatch.setattr(owner, step, Mock(side_effect=RuntimeError))
    scheduler.run_once(reads_all=scheduler._is_complete_due())
    assert scheduler._pause() == 1.0
    assert scheduler._is_complete_due()


def test_a_failed_reading_is_followed_by_a_complete_reading(scheduled: Scheduled) -> None:
    scheduled.scheduler.run_once()
    assert not scheduled.scheduler._is_complete_due()
    scheduled.end("brno-sw1")
    scheduled.recorded.fails = True
    assert scheduled.run_round() == ([], [])
    assert scheduled.scheduler._is_complete_due()


def test_claims_do_not_delay_the_next_complete_reading(scheduled: Scheduled) -> None:
    now = 0.0
    scheduled.scheduler.clock = lambda: now
    scheduled.scheduler.run_once()
    now = 0.75
    scheduled.run_round()
    assert scheduled.scheduler._pause() == 0.25


def test_a_claim_starts_its_switch_before_the_next_complete_reading(world: World) -> None:
    """No complete reading takes place after the claim, because the scheduler's clock stands."""
    world.settle()
    scheduler, confirmed = world.service.scheduler, Event()
    scheduler.clock = lambda: 0.0
    scheduler.record_metrics = lambda _platform, _outcome, _seconds: confirmed.set()
    scheduler.run_once()
    with scheduler._lock:
        assert scheduler._lock.wait_for(lambda: not scheduler._queue.busy, 10)
    confirmed.clear()
    scheduler.start()
    try:
        world.put("demo", spec("brno-h1"))
        assert confirmed.wait(10)
    finally:
        scheduler.stop()
    element = world.element("brno-sw1")
    assert element.confirmed_revision == element.wanted_revision
