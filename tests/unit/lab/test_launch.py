import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from virtcloud.lab import launch
from virtcloud.lab.errors import LabFailed
from virtcloud.lab.fabric.events import EventLog, LabEvent
from virtcloud.lab.launch import defer_interrupts, terminate_as_interrupt
from virtcloud.lab.state import LabState

BOTH = pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])


def send_deferred(*numbers: signal.Signals) -> list[str]:
    actions = []
    try:
        with terminate_as_interrupt(), defer_interrupts():
            for number in numbers:
                os.kill(os.getpid(), number)
                actions.append(f"after {number.name}")
    except KeyboardInterrupt:
        return [*actions, "interrupted"]
    return actions


@BOTH
def test_a_deferred_signal_arrives_after_the_context(number: signal.Signals) -> None:
    assert send_deferred(number) == [f"after {number.name}", "interrupted"]


def test_several_deferred_signals_raise_one_interrupt() -> None:
    assert send_deferred(signal.SIGTERM, signal.SIGINT) == ["after SIGTERM", "after SIGINT", "interrupted"]


@BOTH
def test_a_process_started_within_the_context_receives_signals(number: signal.Signals) -> None:
    program = "import signal, time; signal.signal(signal.SIGINT, signal.SIG_DFL); print(); time.sleep(60)"
    with defer_interrupts():
        child = subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE)  # noqa: S603 - a constant program
    with child:
        assert child.stdout
        child.stdout.readline()
        child.send_signal(number)
    assert child.returncode == -number


@BOTH
def test_the_former_signal_handlers_are_restored(number: signal.Signals) -> None:
    before = signal.getsignal(number)
    with terminate_as_interrupt(), defer_interrupts():
        pass
    assert signal.getsignal(number) is before


def test_a_kernel_that_dies_after_the_stations_start_is_reported(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(launch, "DEADLINE_S", 5.0)
    (tmp_path / "console.log").write_text("Kernel panic\n")
    station, fabric = EventLog(tmp_path / "station.events"), EventLog(tmp_path / "fabric.events")
    station.write("ready", "done")
    fabric.write("nodes", "begin")

    def die_while_the_nodes_start(event: LabEvent) -> None:
        if event.step == "nodes":
            station.write("kernel", "failed", "the kernel ended")

    message = "kernel: the kernel ended\n    the end of console.log:\n    Kernel panic"
    with subprocess.Popen(["cat"], stdin=subprocess.PIPE) as process, pytest.raises(LabFailed, match=message):  # noqa: S607
        launch._wait_for_start(LabState(tmp_path), "uml", process, die_while_the_nodes_start)
