import os
import signal
import socket
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from virtcloud.agent.supervision import ReportProgress, StopRequested, StopSignal, ThreadSupervisor, notify_systemd


class Clock:
    """A clock that the test sets."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


def wait_for(event: threading.Event) -> None:
    event.wait()


@pytest.fixture
def stop() -> StopSignal:
    return StopSignal()


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def notified() -> list[str]:
    return []


@pytest.fixture
def supervisor(stop: StopSignal, notified: list[str], clock: Clock) -> ThreadSupervisor:
    return ThreadSupervisor(stop, notified.append, clock)


def test_a_progress_report_notifies_the_watchdog(
    supervisor: ThreadSupervisor, notified: list[str], stop: StopSignal
) -> None:
    supervisor.report_ready()
    supervisor.report_progress()
    assert (notified, stop.failure) == (["READY=1", "WATCHDOG=1"], None)


def test_a_thread_that_ends_with_an_error_ends_the_agent(
    supervisor: ThreadSupervisor, notified: list[str], stop: StopSignal
) -> None:
    def work(_report: ReportProgress) -> None:
        raise OSError(28, "No space left on device")

    supervisor.start("removals", work, 60).join()
    assert stop.requested
    assert stop.failure == "the thread removals ended with OSError: [Errno 28] No space left on device"


def test_a_thread_that_returns_without_request_ends_the_agent(supervisor: ThreadSupervisor, stop: StopSignal) -> None:
    supervisor.start("socket", lambda _report: None, 60).join()
    assert stop.failure == "the thread socket ended without a request to stop"


def test_a_hung_thread_stops_the_watchdog_notifications(
    supervisor: ThreadSupervisor, notified: list[str], stop: StopSignal, clock: Clock
) -> None:
    release = threading.Event()
    thread = supervisor.start("socket", lambda _report: wait_for(release), 60)
    clock.now = 60.0
    supervisor.report_progress()
    clock.now = 61.0
    supervisor.report_progress()
    release.set()
    thread.join()
    assert (notified, stop.failure) == (["WATCHDOG=1"], "the thread socket has made no progress for 61 s")


def test_a_thread_that_reports_progress_is_not_overdue(
    supervisor: ThreadSupervisor, notified: list[str], stop: StopSignal, clock: Clock
) -> None:
    may_report, release, reported = threading.Event(), threading.Event(), threading.Event()

    def work(report: ReportProgress) -> None:
        may_report.wait()
        report()
        reported.set()
        release.wait()

    thread = supervisor.start("socket", work, 60)
    clock.now = 50.0
    may_report.set()
    reported.wait()
    clock.now = 100.0
    supervisor.report_progress()
    supervisor.report_stopping()
    release.set()
    thread.join()
    assert (notified, stop.failure) == (["WATCHDOG=1", "STOPPING=1"], None)


def test_a_thread_may_end_when_the_agent_stops(supervisor: ThreadSupervisor, stop: StopSignal) -> None:
    release = threading.Event()
    thread = supervisor.start("socket", lambda _report: wait_for(release), 60)
    supervisor.report_stopping()
    release.set()
    thread.join()
    assert stop.failure is None


@pytest.mark.parametrize("abstract", [False, True])
def test_systemd_receives_one_datagram(tmp_path: Path, *, abstract: bool) -> None:
    name = f"@virtcloud-test-{os.getpid()}" if abstract else str(tmp_path / "notify")
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as systemd:
        systemd.bind(f"\0{name[1:]}" if abstract else name)
        notify_systemd("READY=1", {"NOTIFY_SOCKET": name})
        assert systemd.recv(100) == b"READY=1"


def test_an_unreachable_systemd_is_logged_only(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    notify_systemd("READY=1", {"NOTIFY_SOCKET": str(tmp_path / "gone")})
    assert "systemd_not_notified" in caplog.text


@pytest.fixture
def handlers() -> Iterator[None]:
    former = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)}
    yield
    for number, handler in former.items():
        signal.signal(number, handler)


def test_a_signal_ends_a_wait_immediately(handlers: None) -> None:
    never_set = threading.Event()

    def sleep(_seconds: float) -> None:
        os.kill(os.getpid(), signal.SIGTERM)
        never_set.wait(60)

    stop = StopSignal(sleep)
    stop.handle_signals()
    with pytest.raises(StopRequested):
        stop.pause(60)


def test_a_signal_outside_a_wait_interrupts_nothing(handlers: None) -> None:
    stop = StopSignal()
    stop.handle_signals()
    os.kill(os.getpid(), signal.SIGTERM)
    assert stop.requested
    with pytest.raises(StopRequested):
        stop.check()


def test_a_wait_that_begins_after_the_signal_ends_immediately() -> None:
    stop = StopSignal(lambda _: pytest.fail("expected no wait"))
    stop.request()
    with pytest.raises(StopRequested):
        stop.pause(60)


def test_another_threads_pause_does_not_interrupt_the_main_thread() -> None:
    interruptible: list[bool] = []
    signals = [StopSignal(lambda _: interruptible.append(signals[0]._interruptible))]
    with ThreadPoolExecutor(1) as thread:
        thread.submit(signals[0].pause, 1).result()
    assert interruptible == [False]
