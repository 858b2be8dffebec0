import signal
import subprocess

import pytest

from virtcloud.agent.own_processes import kill_processes

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
