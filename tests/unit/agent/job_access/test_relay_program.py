import socket
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from virtcloud.agent.job_access import relay_program
from virtcloud.agent.job_access.connect_program import request_connection


def test_a_caller_that_sends_single_bytes_ends_in_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(relay_program, "REQUEST_S", 0.2)
    monkeypatch.setattr(relay_program, "MAX_LINE", 1000)
    caller, relay = socket.socketpair()
    is_refused = threading.Event()

    def send() -> None:
        for _ in range(500):
            caller.send(b"x")
            if is_refused.wait(0.02):
                break

    sender = threading.Thread(target=send)
    with caller, relay:
        sender.start()
        with pytest.raises(TimeoutError):
            relay_program._read_line(relay)
        is_refused.set()
        sender.join()


def test_a_refusal_that_precedes_the_request_is_reported(tmp_path: Path) -> None:
    path = str(tmp_path / "relay")
    with socket.socket(socket.AF_UNIX) as relay, ThreadPoolExecutor() as threads:
        relay.bind(path)
        relay.listen()
        request = threads.submit(request_connection, path, "x" * 10_000_000)
        caller, _ = relay.accept()
        relay_program._refuse(caller, "refused: try again")
        with pytest.raises(ConnectionRefusedError, match="refused: try again"):
            request.result(30)


UNINSPECTED = """
import ctypes, os
from virtcloud.agent.job_access import relay_program
for name in ("setgroups", "setresgid", "setresuid"):  # a change of the user can also clear the dumpable flag
    setattr(os, name, lambda *_ids: None)
relay_program._drop_privileges()
PR_GET_DUMPABLE = 3
print(ctypes.CDLL(None).prctl(PR_GET_DUMPABLE, 0, 0, 0, 0))
"""


def test_no_process_of_the_same_user_can_control_a_relay() -> None:
    """A process that controls the relay could send any packets into the cluster's network."""
    done = subprocess.run([sys.executable, "-c", UNINSPECTED], capture_output=True, text=True, check=True, timeout=60)  # noqa: S603 - our own
    assert done.stdout.split() == ["0"]
