"""The agent as a process: it listens, stops promptly though somebody waits, and outlives SIGKILL."""

import json
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("pyroute2")
pytest.importorskip("libvirt")

UP = {"do": "up", "cluster": "12.pbs", "attempt": 1}
STATE = {"do": "state", "cluster": "12.pbs", "attempt": 1, "wait": 30}
Start = Callable[[], subprocess.Popen[bytes]]


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "run" / "a.sock"


@pytest.fixture
def config(tmp_path: Path, path: Path) -> Path:
    """The settings of an agent whose SBF is away."""
    settings = {
        "element": "brno-h1",
        "sbf": "unix:///nowhere/sbf.sock",
        "state": str(tmp_path / "state"),
        "jobs": str(tmp_path / "jobs"),
        "socket": str(path),
    }
    config = tmp_path / "agent.toml"
    config.write_text("".join(f"{key} = {json.dumps(value)}\n" for key, value in settings.items()))
    return config


@pytest.fixture
def start(config: Path) -> Iterator[Start]:
    """Give what starts that agent, and waits until it listens."""
    started = []

    def begin() -> subprocess.Popen[bytes]:
        argv = [sys.executable, "-m", "virtcloud.cli", "agent", "--config", str(config)]
        process = subprocess.Popen(argv, stderr=subprocess.PIPE)  # noqa: S603
        started.append(process)
        assert process.stderr is not None
        assert any(b"started" in line for line in process.stderr), "it ended"
        return process

    yield begin
    for process in started:
        process.kill()
        process.communicate()


def ask(path: Path, request: dict[str, Any]) -> dict[str, Any]:
    with socket.socket(socket.AF_UNIX) as talk:
        talk.settimeout(60)
        talk.connect(str(path))
        talk.sendall(json.dumps(request).encode() + b"\n")
        said: dict[str, Any] = json.loads(talk.makefile().readline())
        return said


def test_sigterm_ends_it_at_once_and_who_waits_is_answered(path: Path, start: Start) -> None:
    """Not at the end of what was waited for, 30 s later."""
    process = start()
    ask(path, UP)
    ask(path, {**STATE, "wait": 0})
    with ThreadPoolExecutor(1) as thread:
        waiting = thread.submit(ask, path, STATE)
        time.sleep(0.3)  # so long it has surely been asked
        process.send_signal(signal.SIGTERM)
        assert process.wait(15) == 0
        assert waiting.result()["state"] == "waiting"
    assert not path.exists()


def test_an_agent_that_was_killed_is_followed_by_one_that_knows_the_same(path: Path, start: Start) -> None:
    first = start()
    ask(path, UP)
    first.kill()
    first.wait()
    assert path.exists(), "nobody could remove it"
    start()
    assert [one["cluster"] for one in ask(path, {"do": "list"})["clusters"]] == ["12.pbs"]


BROKEN = """
import sys
from virtcloud.agent.job_socket.removals import JobRemovals
from virtcloud.cli import main

def broken(self, beat):
    raise RuntimeError("out of order")

JobRemovals._run = broken
main(prog_name="virtcloud")
"""


def test_an_agent_whose_thread_ends_says_so_and_ends_with_an_error(tmp_path: Path, config: Path) -> None:
    argv = [sys.executable, "-c", BROKEN, "agent", "--config", str(config)]
    done = subprocess.run(argv, capture_output=True, text=True, check=False, timeout=60)  # noqa: S603
    assert done.returncode == 1
    words = "the agent ends, since the thread removals ended with RuntimeError: out of order"
    assert done.stderr.splitlines()[-1] == f"virtcloud: {words}; its supervisor starts it again"


def test_the_service_manager_is_told_that_it_is_up_and_fed_while_it_works(
    tmp_path: Path, start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    """SBF is away: each attempt to reach it is work, too."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as manager:
        manager.bind(str(tmp_path / "notify"))
        manager.settimeout(60)
        monkeypatch.setenv("NOTIFY_SOCKET", str(tmp_path / "notify"))
        process = start()
        told = [manager.recv(100) for _ in range(3)]
        process.send_signal(signal.SIGTERM)
        assert process.wait(15) == 0
        while told[-1] != b"STOPPING=1":
            told.append(manager.recv(100))
    assert told[:3] == [b"READY=1", b"WATCHDOG=1", b"WATCHDOG=1"]
