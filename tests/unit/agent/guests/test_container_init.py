"""Tests of the search for a container's first process, and of the signal that powers systemd off.

The first process is the only child of the process that controls the container.
"""

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from virtcloud.agent.guests import container_init
from virtcloud.agent.guests.container_init import POWER_OFF_SYSTEMD, find_init, power_off_systemd
from virtcloud.model.errors import Refused

CONTROLLER = """
import subprocess, sys
child = subprocess.Popen(["sleep", "60"])
print(child.pid, flush=True)
print(child.wait(), flush=True)
sys.stdin.read()
"""


@pytest.fixture
def controller() -> Iterator[subprocess.Popen[str]]:
    argv = [sys.executable, "-c", CONTROLLER]
    with subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:  # noqa: S603
        yield process


def read_number(controller: "subprocess.Popen[str]") -> int:
    assert controller.stdout
    return int(controller.stdout.readline())


def test_the_only_child_is_the_first_process(controller: "subprocess.Popen[str]") -> None:
    child = read_number(controller)
    assert find_init("demo", controller.pid) == child
    os.kill(child, signal.SIGKILL)


def test_systemd_gets_the_signal_that_powers_it_off(controller: "subprocess.Popen[str]") -> None:
    read_number(controller)
    power_off_systemd("demo", controller.pid)
    assert read_number(controller) == -POWER_OFF_SYSTEMD


def test_an_ended_container_has_no_first_process(controller: "subprocess.Popen[str]") -> None:
    os.kill(read_number(controller), signal.SIGKILL)
    read_number(controller)
    with pytest.raises(Refused, match="container demo has no process"):
        find_init("demo", controller.pid)


@pytest.mark.parametrize("controller_id", [-1, 0])
def test_a_container_without_a_process_never_means_the_host(controller_id: int) -> None:
    """The ID of a container that does not run is -1 in libvirt. The host's own init has the parent 0."""
    with pytest.raises(Refused, match="container demo has no process"):
        find_init("demo", controller_id)


def test_a_program_may_have_any_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A user can give a process any name, including a name that is not UTF-8 (prctl(2), PR_SET_NAME)."""
    (tmp_path / "8").mkdir()
    (tmp_path / "8/stat").write_bytes(b"8 (\xff) S 7 8 8 0\n")
    monkeypatch.setattr(container_init, "PROC", tmp_path)
    assert find_init("demo", 7) == 8
