"""The circuit breaker: if SBF does not answer, the batch system waits for at most one timeout per minute."""

import re
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import suppress

import pytest
from support.batch_fakes.scripted_sbf import ScriptedSbf

from pbs_hooks.kit import http_exchange, sbf_client
from pbs_hooks.kit.deadline import Deadline
from pbs_hooks.kit.sbf_client import HookSbfClient, SbfAddress, SbfUnreachable

ALLOWED = 0.2


@pytest.fixture(autouse=True)
def _closed_circuit(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setenv(sbf_client.BREAKER_VARIABLE, "0")
    yield
    http_exchange.known_addresses.clear()


@pytest.fixture
def silent() -> Iterator[socket.socket]:
    with socket.create_server(("127.0.0.1", 0)) as server:
        server.setblocking(False)
        yield server


def address(server: socket.socket) -> str:
    return f"http://127.0.0.1:{server.getsockname()[1]}"


def count_calls(server: socket.socket) -> int:
    count = 0
    with suppress(BlockingIOError):
        while True:
            server.accept()[0].close()
            count += 1
    return count


def failed_call(url: str, pause: float = 60) -> str:
    with pytest.raises(SbfUnreachable) as caught:
        HookSbfClient(SbfAddress(url), Deadline(ALLOWED), ALLOWED, pause).network("x")
    return str(caught.value)


def test_a_timeout_opens_the_circuit(silent: socket.socket) -> None:
    assert failed_call(address(silent)) == "no answer in time"
    assert re.fullmatch(
        r"not called, because SBF did not answer .* in time; next call in \d\d s", failed_call(address(silent))
    )
    assert count_calls(silent) == 1


def test_the_circuit_closes_after_the_pause(silent: socket.socket) -> None:
    failed_call(address(silent), pause=0.05)
    time.sleep(0.06)
    assert failed_call(address(silent)) == "no answer in time"
    assert count_calls(silent) == 2


def test_calls_of_one_event_share_one_timeout(silent: socket.socket) -> None:
    sbf = HookSbfClient(SbfAddress(address(silent)), Deadline(ALLOWED), ALLOWED, 0.0)
    for _ in range(3):
        with pytest.raises(SbfUnreachable):
            sbf.network("x")
    assert count_calls(silent) == 1


def test_a_refused_connection_keeps_the_circuit_closed() -> None:
    """A refused connection costs no time, and after a restart SBF may answer the next call."""
    with socket.socket() as reserved:
        reserved.bind(("127.0.0.1", 0))  # nobody listens at this port
        url = address(reserved)
        assert [failed_call(url), failed_call(url)] == ["Connection refused", "Connection refused"]


def test_an_answer_keeps_the_circuit_closed(sbf: ScriptedSbf) -> None:
    for _ in range(2):
        assert HookSbfClient(SbfAddress(sbf.url), Deadline(60.0), 60.0, 60).network("x").slug == "not-found"


def test_the_state_survives_a_restart_of_the_interpreter() -> None:
    """PBS restarts its Python interpreter after a hundred hooks. Only environment variables survive."""
    sbf_client.record_failed_call(ALLOWED, ALLOWED, 60)
    read = "from pbs_hooks.kit import sbf_client; print(sbf_client.seconds_until_retry())"
    assert float(subprocess.check_output([sys.executable, "-c", read])) > 30  # noqa: S603 - our own code


def test_an_invalid_state_counts_as_closed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(sbf_client.BREAKER_VARIABLE, "soon")
    assert sbf_client.seconds_until_retry() == 0
