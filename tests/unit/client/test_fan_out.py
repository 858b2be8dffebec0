"""Tests of the fan-out: the same work with many guests at the same time."""

import signal
import subprocess
import threading
import time

import pytest

from virtcloud.client.fan_out import FanOutProgress, GuestTask, fan_out
from virtcloud.model.errors import BadInput


def run_program(task: GuestTask, *arguments: str) -> int:
    with task.run(arguments, subprocess.DEVNULL, subprocess.DEVNULL) as process:
        return process.wait()


def test_results_have_the_order_of_the_names() -> None:
    assert list(fan_out(["b", "a"], lambda name, _task: name * 2).items()) == [("b", "bb"), ("a", "aa")]


def test_an_empty_list_of_guests_has_no_results() -> None:
    assert fan_out([], lambda name, _task: name) == {}


def test_the_number_of_simultaneous_tasks_is_limited() -> None:
    running, most = 0, 0
    lock, three = threading.Lock(), threading.Barrier(3)

    def work(_name: str, _task: GuestTask) -> None:
        nonlocal running, most
        with lock:
            running += 1
            most = max(most, running)
        three.wait(10)
        time.sleep(0.01)  # a fourth task could start now
        with lock:
            running -= 1

    fan_out(map(str, range(12)), work, jobs=3)
    assert most == 3


def test_a_guest_that_hangs_ends_at_its_time_limit() -> None:
    late: dict[str, bool] = {}

    def work(name: str, task: GuestTask) -> int:
        code = run_program(task, "sleep", "60" if name == "hung" else "0")
        late[name] = task.is_late
        return code

    assert fan_out(["hung", "quick"], work, timeout=2) == {"hung": -15, "quick": 0}
    assert late == {"hung": True, "quick": False}


def test_a_program_that_ignores_sigterm_is_killed(monkeypatch: pytest.MonkeyPatch) -> None:
    """A program ignores the signals that its parent ignores. So this program ignores SIGTERM from its start."""
    monkeypatch.setattr("virtcloud.client.fan_out.GRACE_S", 0.1)
    former = signal.signal(signal.SIGTERM, signal.SIG_IGN)
    try:
        assert fan_out(["g1"], lambda _name, task: run_program(task, "sleep", "60"), timeout=0.2) == {"g1": -9}
    finally:
        signal.signal(signal.SIGTERM, former)


def test_an_interruption_ends_all_programs_at_once() -> None:
    started = time.monotonic()
    codes: list[int] = []

    def interrupt(_progress: FanOutProgress) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        fan_out("abc", lambda _n, task: codes.append(run_program(task, "sleep", "60")), jobs=2, progress=interrupt)
    assert time.monotonic() - started < 10
    assert threading.active_count() == 1 or not [t for t in threading.enumerate() if t.name.startswith("guest")]


def test_a_missing_program_is_bad_input() -> None:
    with pytest.raises(BadInput, match="expected the program ssh on this machine, found none: apt-get install"):
        fan_out(["g1"], lambda _name, task: run_program(task, "/no/ssh"))
