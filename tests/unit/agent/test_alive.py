"""Long-lived threads are watched, and systemd's watchdog is fed by completed work only."""

import os
import socket
import threading
from pathlib import Path

import pytest

from virtcloud.agent.alive import Beat, Life, notify
from virtcloud.agent.stopping import Stop


class Clock:
    """Time that a test sets."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def stop() -> Stop:
    return Stop()


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def told() -> list[str]:
    return []


@pytest.fixture
def life(stop: Stop, told: list[str], clock: Clock) -> Life:
    return Life(stop, told.append, clock)


def test_completed_work_feeds_the_watchdog(life: Life, told: list[str], stop: Stop) -> None:
    life.ready()
    life.progress()
    assert (told, stop.failure) == (["READY=1", "WATCHDOG=1"], None)


def test_a_thread_that_ends_with_an_error_ends_the_agent(life: Life, told: list[str], stop: Stop) -> None:
    def work(_beat: Beat) -> None:
        raise OSError(28, "No space left on device")

    life.start("removals", work, 60).join()
    assert stop.requested
    assert stop.failure == "the thread removals ended with OSError: [Errno 28] No space left on device"


def test_a_thread_that_returns_by_itself_ends_the_agent(life: Life, stop: Stop) -> None:
    life.start("socket", lambda _beat: None, 60).join()
    assert stop.failure == "the thread socket ended without having been told to"


def test_a_thread_that_hangs_ends_the_agent_and_starves_the_watchdog(
    life: Life, told: list[str], stop: Stop, clock: Clock
) -> None:
    release = threading.Event()
    thread = life.start("socket", lambda _beat: release.wait() and None, 60)
    clock.now = 60.0
    life.progress()
    clock.now = 61.0
    life.progress()
    release.set()
    thread.join()
    assert (told, stop.failure) == (["WATCHDOG=1"], "the thread socket has completed nothing for 61 s")


def test_a_thread_that_reports_work_is_not_overdue(life: Life, told: list[str], stop: Stop, clock: Clock) -> None:
    beat, release, beaten = threading.Event(), threading.Event(), threading.Event()

    def work(report: Beat) -> None:
        beat.wait()
        report()
        beaten.set()
        release.wait()

    thread = life.start("socket", work, 60)
    clock.now = 50.0
    beat.set()
    beaten.wait()
    clock.now = 100.0
    life.progress()
    life.ending()
    release.set()
    thread.join()
    assert (told, stop.failure) == (["WATCHDOG=1", "STOPPING=1"], None)


def test_a_thread_may_end_once_the_agent_ends(life: Life, stop: Stop) -> None:
    release = threading.Event()
    thread = life.start("socket", lambda _beat: release.wait() and None, 60)
    life.ending()
    release.set()
    thread.join()
    assert stop.failure is None


@pytest.mark.parametrize("abstract", [False, True])
def test_the_service_manager_gets_one_datagram(tmp_path: Path, *, abstract: bool) -> None:
    name = f"@virtcloud-test-{os.getpid()}" if abstract else str(tmp_path / "notify")
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as manager:
        manager.bind(f"\0{name[1:]}" if abstract else name)
        notify("READY=1", {"NOTIFY_SOCKET": name})
        assert manager.recv(100) == b"READY=1"


def test_a_service_manager_that_is_gone_ends_nothing(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    notify("READY=1", {"NOTIFY_SOCKET": str(tmp_path / "gone")})
    assert "not_notified" in caplog.text
