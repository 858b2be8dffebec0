"""Tests of ``virtcloud cluster ssh`` in the script of a job, with a program that stands for ssh."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest


class FakeSsh:
    """A shell script that stands for ssh."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        (folder / "config").touch()

    def start(self, script: str) -> "subprocess.Popen[str]":
        """Start ``virtcloud cluster ssh`` with this script in the place of ssh."""
        (self._folder / "ssh").write_text(f"#!/bin/sh\n{script}\n")
        (self._folder / "ssh").chmod(0o755)
        job = {"VCLUSTER_ID": "12.pbs", "VCLUSTER_SSH_CONFIG": str(self._folder / "config"), "VCLUSTER_GUESTS": "g1"}
        environment = {**os.environ, **job, "PATH": f"{self._folder}:{os.environ['PATH']}"}
        argv = [sys.executable, "-m", "virtcloud.cli", "cluster", "ssh", "12.pbs", "g1", "--", "hostname"]
        pipe = subprocess.PIPE
        return subprocess.Popen(  # noqa: S603
            argv, env=environment, stdin=pipe, stdout=pipe, stderr=pipe, text=True, process_group=0
        )


@pytest.fixture
def ssh(tmp_path: Path) -> FakeSsh:
    return FakeSsh(tmp_path)


def test_the_remedy_follows_a_refused_key(ssh: FakeSsh) -> None:
    process = ssh.start("echo 'eva@g1: Permission denied (publickey).' >&2; exit 255")
    _, messages = process.communicate()
    first, remedy = messages.splitlines()
    assert (process.returncode, first) == (255, "eva@g1: Permission denied (publickey).")
    assert remedy.startswith("virtcloud: expected a key that the guest accepts: load your key into the ssh-agent")


def test_the_output_and_exit_code_of_a_command_are_unchanged(ssh: FakeSsh) -> None:
    process = ssh.start("cat; echo 'Permission denied' >&2; exit 3")
    assert process.communicate("text\n") == ("text\n", "Permission denied\n")
    assert process.returncode == 3


def test_a_signal_ends_ssh(ssh: FakeSsh) -> None:
    process = ssh.start("echo $$ >&2; exec sleep 60")
    assert process.stderr is not None
    pid = int(process.stderr.readline())
    process.send_signal(signal.SIGTERM)
    process.communicate()
    assert process.returncode == -signal.SIGTERM
    with pytest.raises(ProcessLookupError):
        os.kill(pid, 0)


def test_ssh_ends_if_the_program_is_killed(ssh: FakeSsh) -> None:
    process = ssh.start("echo started >&2; exec sleep 600")
    assert process.stderr is not None
    process.stderr.readline()
    process.kill()
    assert process.communicate(timeout=60) == ("", "")


def test_a_slow_reader_receives_all_messages(ssh: FakeSsh) -> None:
    """The messages fill the pipe to the reader, and the rest is still in the pipe from ssh when ssh ends."""
    process = ssh.start("head -c 100000 /dev/zero | tr '\\0' x >&2; echo ended")
    assert process.stdout is not None
    process.stdout.readline()
    with pytest.raises(subprocess.TimeoutExpired):
        process.wait(1.5)
    assert process.communicate() == ("", "x" * 100_000)
    assert process.returncode == 0


def test_a_suspended_program_continues_with_ssh(ssh: FakeSsh) -> None:
    process = ssh.start("echo started; read line; exit 4")
    assert process.stdout is not None
    process.stdout.readline()
    os.killpg(process.pid, signal.SIGTSTP)
    os.waitid(os.P_PID, process.pid, os.WSTOPPED)
    os.killpg(process.pid, signal.SIGCONT)
    process.communicate("line\n", timeout=60)
    assert process.returncode == 4
