"""Tests of the requests to the relay of a job."""

import socket
import threading

import pytest

from virtcloud.agent.job_access import relay_program


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
