"""Tests of supervision: threads are supervised, and only completed work notifies systemd's watchdog."""

import os
import signal
import socket
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from virtcloud.agent.supervision import ReportProgress, StopRequested, StopSignal, ThreadSupervisor, notify_systemd


class Clock:
    """A clock that the test sets."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def stop() -> StopSignal:
    return StopSignal()


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def told() -> list[str]:
    return []


@pytest.fixture
def life(stop: StopSignal, told: list[str], clock: Clock) -> ThreadSupervisor:
    return ThreadSupervisor(stop, told.append, clock)


def test_completed_work_feeds_the_watchdog(life: ThreadSupervisor, told: list[str], stop: StopSignal) -> None:
    life.report_ready()
    life.report_progress()
    assert (told, stop.failure) == (["READY=1", "WATCHDOG=1"], None)


def test_a_thread_that_ends_with_an_error_ends_the_agent(
    life: ThreadSupervisor, told: list[str], stop: StopSignal
) -> None:
    def work(_beat: ReportProgress) -> None:
        raise OSError(28, "No space left on device")

    life.start("removals", work, 60).join()
    assert stop.requested
    assert stop.failure == "the thread removals ended with OSError: [Errno 28] No space left on device"


def test_a_thread_that_returns_by_itself_ends_the_agent(life: ThreadSupervisor, stop: StopSignal) -> None:
    life.start("socket", lambda _beat: None, 60).join()
    assert stop.failure == "the thread socket ended without a request to stop"


def test_a_hung_thread_stops_the_watchdog_notifications(
    life: ThreadSupervisor, told: list[str], stop: StopSignal, clock: Clock
) -> None:
    release = threading.Event()
    thread = life.start("socket", lambda _beat: release.wait() and None, 60)
    clock.now = 60.0
    life.report_progress()
    clock.now = 61.0
    life.report_progress()
    release.set()
    thread.join()
    assert (told, stop.failure) == (["WATCHDOG=1"], "the thread socket has made no progress for 61 s")


def test_a_thread_that_reports_work_is_not_overdue(
    life: ThreadSupervisor, told: list[str], stop: StopSignal, clock: Clock
) -> None:
    beat, release, beaten = threading.Event(), threading.Event(), threading.Event()

    def work(report: ReportProgress) -> None:
        beat.wait()
        report()
        beaten.set()
        release.wait()

    thread = life.start("socket", work, 60)
    clock.now = 50.0
    beat.set()
    beaten.wait()
    clock.now = 100.0
    life.report_progress()
    life.report_stopping()
    release.set()
    thread.join()
    assert (told, stop.failure) == (["WATCHDOG=1", "STOPPING=1"], None)


def test_a_thread_may_end_once_the_agent_ends(life: ThreadSupervisor, stop: StopSignal) -> None:
    release = threading.Event()
    thread = life.start("socket", lambda _beat: release.wait() and None, 60)
    life.report_stopping()
    release.set()
    thread.join()
    assert stop.failure is None


@pytest.mark.parametrize("abstract", [False, True])
def test_the_service_manager_gets_one_datagram(tmp_path: Path, *, abstract: bool) -> None:
    name = f"@virtcloud-test-{os.getpid()}" if abstract else str(tmp_path / "notify")
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as manager:
        manager.bind(f"\0{name[1:]}" if abstract else name)
        notify_systemd("READY=1", {"NOTIFY_SOCKET": name})
        assert manager.recv(100) == b"READY=1"


def test_a_service_manager_that_is_gone_ends_nothing(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    notify_systemd("READY=1", {"NOTIFY_SOCKET": str(tmp_path / "gone")})
    assert "systemd_not_notified" in caplog.text


@pytest.fixture
def handlers() -> Iterator[None]:
    """Restore the former signal handlers."""
    before = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)}
    yield
    for number, handler in before.items():
        signal.signal(number, handler)


def test_a_signal_ends_a_wait_at_once(handlers: None) -> None:
    waiting = threading.Event()

    def sleep(_seconds: float) -> None:
        os.kill(os.getpid(), signal.SIGTERM)
        waiting.wait(60)

    stop = StopSignal(sleep)
    stop.handle_signals()
    with pytest.raises(StopRequested):
        stop.pause(60)


def test_a_signal_does_not_break_what_is_not_a_wait(handlers: None) -> None:
    stop = StopSignal()
    stop.handle_signals()
    os.kill(os.getpid(), signal.SIGTERM)
    assert stop.requested
    with pytest.raises(StopRequested):
        stop.check()


def test_a_wait_that_begins_after_the_signal_ends_at_once() -> None:
    stop = StopSignal(lambda _: pytest.fail("it waited"))
    stop.request()
    with pytest.raises(StopRequested):
        stop.pause(60)
