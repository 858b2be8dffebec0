"""Tests that the lab's main process reaps ended processes, except while a node is switched on or off."""

import os
import subprocess
from pathlib import Path

import pytest

from virtcloud.lab.fabric import node_power
from virtcloud.lab.fabric.build import Fabric
from virtcloud.lab.fabric.events import EventLog
from virtcloud.lab.fabric.plan import FabricPlan


def end_program() -> "subprocess.Popen[bytes]":
    """Return a program that has ended with exit code 1 and is not reaped."""
    program = subprocess.Popen(["/bin/false"])
    os.waitid(os.P_PID, program.pid, os.WEXITED | os.WNOWAIT)
    return program


@pytest.fixture
def fabric(tmp_path: Path) -> Fabric:
    return Fabric(FabricPlan((), ()), str(tmp_path), EventLog(tmp_path / "events"))


def test_ended_processes_are_reaped(fabric: Fabric) -> None:
    program = end_program()
    fabric.reap(0)
    with pytest.raises(ChildProcessError):
        os.waitpid(program.pid, 0)
    program.wait()


def test_exit_codes_are_available_while_a_node_is_switched_off(fabric: Fabric, monkeypatch: pytest.MonkeyPatch) -> None:
    codes = list[int]()

    def switch(*_: object) -> None:
        program = end_program()
        fabric.reap(0)
        codes.append(program.wait())

    monkeypatch.setattr(node_power, "power_off", switch)
    monkeypatch.setattr(fabric, "nodes", {"h1": None})
    fabric.power_off("h1")
    assert codes == [1]
