import fcntl
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import termios
import time
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from virtcloud.agent.gateway.ssh_admission import SshSession
from virtcloud.agent.gateway.ssh_gateway import SshdRecord
from virtcloud.agent.gateway.ssh_sessions import RecordedSshSessions
from virtcloud.agent.host_services.server_processes import write_record
from virtcloud.agent.network.interfaces import BOOT_ID
from virtcloud.agent.own_processes import read_start_time
from virtcloud.model.values import UserName

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
    started = []

    def begin() -> subprocess.Popen[bytes]:
        argv = [sys.executable, "-m", "virtcloud.cli", "agent", "--config", str(config)]
        process = subprocess.Popen(argv, stderr=subprocess.PIPE)  # noqa: S603
        started.append(process)
        assert process.stderr is not None
        assert any(b"started" in line for line in process.stderr), "the agent ended before it started to listen"
        return process

    yield begin
    for process in started:
        process.kill()
        process.communicate()


def ask(path: Path, request: dict[str, Any]) -> dict[str, Any]:
    with socket.socket(socket.AF_UNIX) as connection:
        send(connection, path, request)
        return receive(connection)


def send(connection: socket.socket, path: Path, request: dict[str, Any]) -> None:
    connection.settimeout(60)
    connection.connect(str(path))
    connection.sendall(json.dumps(request).encode() + b"\n")


def receive(connection: socket.socket) -> dict[str, Any]:
    answer: dict[str, Any] = json.loads(connection.makefile().readline())
    return answer


def await_reading(connection: socket.socket) -> None:
    """Wait until the agent has read all bytes that the test sent."""
    deadline = time.monotonic() + 60
    while any(fcntl.ioctl(connection, termios.TIOCOUTQ, bytes(4))):
        assert time.monotonic() < deadline
        time.sleep(0.01)


def test_sigterm_ends_the_agent_and_answers_waiting_callers(path: Path, start: Start) -> None:
    process = start()
    ask(path, UP)
    ask(path, {**STATE, "wait": 0})
    with socket.socket(socket.AF_UNIX) as waiting:
        send(waiting, path, STATE)
        await_reading(waiting)
        process.send_signal(signal.SIGTERM)
        assert process.wait(15) == 0
        assert receive(waiting)["state"] == "waiting"
    assert not path.exists()


def test_a_restarted_agent_has_the_records_of_a_killed_agent(path: Path, start: Start) -> None:
    first = start()
    ask(path, UP)
    first.kill()
    first.wait()
    assert path.exists(), "expected the socket of the killed agent to remain"
    start()
    assert [one["cluster"] for one in ask(path, {"do": "list"})["clusters"]] == ["12.pbs"]


@pytest.mark.skipif(os.geteuid() != 0, reason="NOT TESTED: only root can change the owner of the sshd's socket")
def test_a_lease_ends_ssh_connections_after_a_restart_without_sbf(tmp_path: Path, start: Start) -> None:
    """Two processes ``sleep`` replace an sshd and a relay that an earlier agent process started and recorded."""
    folder, boot = tmp_path / "state/ssh", BOOT_ID.read_text().strip()
    (folder / "requests").mkdir(parents=True)
    sleep = [shutil.which("sleep") or "sleep", "60"]
    with subprocess.Popen(sleep) as sshd, subprocess.Popen(sleep) as relay:  # noqa: S603
        record = SshdRecord(pid=sshd.pid, started=read_start_time(sshd.pid) or 0, boot=boot, config="x")
        write_record(folder / "record.json", record)
        session = SshSession(
            pid=relay.pid,
            started=read_start_time(relay.pid) or 0,
            network="c1",
            cluster="c1",
            user=UserName("alice"),
            guest="g1@c1",
            serial=1,
            remote="192.0.2.1 5000",
            expires_at=datetime.now(UTC) - timedelta(seconds=1),
        )
        (folder / "sessions.json").write_text(RecordedSshSessions(sessions=(session,)).model_dump_json())
        start()
        try:
            assert relay.wait(20) == -signal.SIGKILL
        finally:
            relay.kill()
            sshd.kill()


BROKEN = """
import sys
from virtcloud.agent.job_socket.removals import JobRemovals
from virtcloud.cli import main

def broken(self, beat):
    raise RuntimeError("out of order")

JobRemovals._run = broken
main(prog_name="virtcloud")
"""


def test_a_failed_thread_ends_the_agent_with_an_error(tmp_path: Path, config: Path) -> None:
    argv = [sys.executable, "-c", BROKEN, "agent", "--config", str(config)]
    done = subprocess.run(argv, capture_output=True, text=True, check=False, timeout=60)  # noqa: S603
    assert done.returncode == 1
    message = "the agent ends because the thread removals ended with RuntimeError: out of order"
    assert f"virtcloud: {message}; systemd restarts the agent" in done.stderr.splitlines()


def test_the_log_names_an_unreadable_ca_file_of_the_collector(tmp_path: Path, config: Path) -> None:
    keys = f'[telemetry]\nendpoint = "https://127.0.0.1:1"\nca_file = "{tmp_path}/absent.pem"\n'
    config.write_text(config.read_text() + keys)
    argv = [sys.executable, "-c", BROKEN, "agent", "--config", str(config)]
    done = subprocess.run(argv, capture_output=True, text=True, check=False, timeout=60)  # noqa: S603
    assert f'traces_not_sent why="telemetry.ca_file {tmp_path}/absent.pem: expected certificates (PEM)' in done.stderr


def test_systemd_gets_readiness_and_watchdog_notifications(
    tmp_path: Path, start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    """SBF is unreachable. The agent notifies the watchdog after each attempt to connect to SBF."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as manager:
        manager.bind(str(tmp_path / "notify"))
        manager.settimeout(60)
        monkeypatch.setenv("NOTIFY_SOCKET", str(tmp_path / "notify"))
        process = start()
        notifications = [manager.recv(100) for _ in range(3)]
        process.send_signal(signal.SIGTERM)
        assert process.wait(15) == 0
        while notifications[-1] != b"STOPPING=1":
            notifications.append(manager.recv(100))
    assert notifications[:3] == [b"READY=1", b"WATCHDOG=1", b"WATCHDOG=1"]
