"""Tests that the agent finds and kills its processes even while they start or end."""

import os
import resource
import signal
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from virtcloud.agent import own_processes
from virtcloud.agent.host_services.server_processes import RecordedProcess, read_record, write_record
from virtcloud.agent.own_processes import kill_processes, list_isolated_processes, read_start_time
from virtcloud.model.errors import Refused

send_signal = signal.pidfd_send_signal


def test_a_process_that_ends_before_the_signal_is_success(monkeypatch: pytest.MonkeyPatch) -> None:
    argv = ["sh", "-c", "echo started; read end", "unique argument"]
    process = subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE)  # noqa: S603
    assert process.stdout is not None
    process.stdout.readline()

    def end_first(descriptor: int, number: signal.Signals) -> None:
        process.kill()
        process.communicate()
        send_signal(descriptor, number)

    monkeypatch.setattr(signal, "pidfd_send_signal", end_first)
    kill_processes("unique argument", [process.pid])
    assert process.returncode == -signal.SIGKILL


def test_a_process_is_killed_directly_after_its_start(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(own_processes, "EXEC_S", 30.0)
    for number in range(200):  # on a busy machine, the process has no arguments yet in most attempts
        argv = ["/usr/bin/setpriv", "--no-new-privs", "sleep", f"60.{number:03}"]
        pid = os.posix_spawn(argv[0], argv, {"PATH": os.defpath})
        kill_processes(argv[-1], [pid])
        assert os.waitpid(pid, 0)[1] == signal.SIGKILL


def test_an_isolated_process_may_have_any_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each user chooses the names of the user's processes (prctl(2), PR_SET_NAME)."""
    (tmp_path / "8/root/seen").mkdir(parents=True)
    (tmp_path / "8/status").write_bytes(b"Name:\t\xff\r\nUid:\t5\t5\t5\t5\nNSpid:\t8\t1\n")
    monkeypatch.setattr(own_processes, "PROC", tmp_path)
    assert list_isolated_processes(5, tmp_path / "8/root/seen", Path("/seen")) == [8]


@contextmanager
def without_descriptors() -> Iterator[None]:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (0, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def test_a_lack_of_file_descriptors_is_no_process_end() -> None:
    with subprocess.Popen(["/usr/bin/sleep", "60"]) as process:
        with without_descriptors():
            with pytest.raises(Refused, match=r"cannot read stat of process .*: Too many open files"):
                read_start_time(process.pid)
            with pytest.raises(Refused, match=r"cannot read cmdline of process .*: Too many open files"):
                kill_processes("60", [process.pid])
        process.kill()


def test_a_lack_of_file_descriptors_is_no_unreadable_record(tmp_path: Path) -> None:
    """If the agent took the record for unreadable, it would replace the recorded server."""
    record = RecordedProcess(pid=1, started=2, boot="b")
    write_record(tmp_path / "record.json", record)
    with without_descriptors(), pytest.raises(Refused, match=r"cannot read .*record\.json: Too many open files"):
        read_record(tmp_path / "record.json", RecordedProcess)
    assert read_record(tmp_path / "record.json", RecordedProcess) == record
