"""Tests of HTTP calls to SBF. Each call ends at its deadline, even if the server does not answer."""

import errno
import json
import os
import socket
import ssl
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest
from support.batch_fakes.scripted_sbf import problem, scripted_sbf

from pbs_hooks.kit import http_exchange
from pbs_hooks.kit.deadline import ChildError, Deadline, DeadlineExceeded, run_in_child
from pbs_hooks.kit.sbf_client import SbfAddress, SbfUnreachable, call_sbf

ALLOWED = 0.3
"""Time limit in seconds of the calls that get no answer."""
PATIENCE = 60.0
"""Time limit in seconds of the calls that must end long before their time limit."""


@contextmanager
def listener(behave: Callable[[socket.socket], None] | None = None, backlog: int = 8) -> Iterator[int]:
    """Listen on the loopback interface, and yield the port.

    ``behave`` serves one connection. If ``behave`` is None, no connection is accepted.
    """
    with socket.create_server(("127.0.0.1", 0), backlog=backlog) as server:
        thread = threading.Thread(target=_serve, args=(server, behave)) if behave else None
        if thread:
            thread.start()
        yield server.getsockname()[1]
        server.shutdown(socket.SHUT_RDWR)
        if thread:
            thread.join()


@contextmanager
def closed_port() -> Iterator[int]:
    """Reserve a port of the loopback interface at which no program listens. Yield the port's number."""
    with socket.socket() as reserved:
        reserved.bind(("127.0.0.1", 0))
        yield reserved.getsockname()[1]


def _serve(server: socket.socket, behave: Callable[[socket.socket], None]) -> None:
    try:
        opened, _ = server.accept()
    except OSError:
        return
    with opened, suppress(OSError):
        behave(opened)


def refused(url: str, token_file: Path | None = None, *, allowed: float = PATIENCE) -> str:
    where = SbfAddress(url, None if token_file is None else str(token_file))
    with pytest.raises(SbfUnreachable) as caught:
        call_sbf(where, "GET", "/v1/clusters", None, Deadline(allowed))
    return str(caught.value)


def silent(opened: socket.socket) -> None:
    opened.recv(65536)
    opened.recv(65536)


def dripping(opened: socket.socket) -> None:
    for _ in range(100):
        opened.sendall(b"H")
        time.sleep(0.05)


def dripping_body(opened: socket.socket) -> None:
    opened.sendall(b"HTTP/1.1 200 OK\r\ncontent-length: 1000\r\n\r\n")
    dripping(opened)


def test_an_answer_is_read() -> None:
    with scripted_sbf() as sbf:
        sbf.say("PUT /v1/clusters/k", (201, {"key": "k"}))
        answer = call_sbf(SbfAddress(sbf.url), "PUT", "/v1/clusters/k", {"spec": {}})
        assert (answer.status, answer.document, answer.ok) == (201, {"key": "k"}, True)
        assert sbf.asked == [("PUT /v1/clusters/k", {"spec": {}})]


def test_a_problem_has_a_name_and_one_line() -> None:
    with scripted_sbf() as sbf:
        sbf.say("GET /x", problem(409, "name-taken", "it is\ntaken"))
        answer = call_sbf(SbfAddress(sbf.url), "GET", "/x")
        assert (answer.ok, answer.slug, answer.detail) == (False, "name-taken", "it is taken")


def test_the_token_comes_from_the_file(tmp_path: Path) -> None:
    (tmp_path / "token").write_text("vc_abc\n")
    with scripted_sbf() as sbf:
        call_sbf(SbfAddress(sbf.url, str(tmp_path / "token")), "GET", "/x")
        assert sbf.tokens == ["Bearer vc_abc"]


def test_an_invalid_token_file_is_named_without_its_content(tmp_path: Path) -> None:
    (tmp_path / "token").write_text("vc_abc\nvc_def\n")
    error = refused("http://127.0.0.1:1", tmp_path / "token")
    assert error == f"expected one token in {tmp_path}/token, got 2 words"


def test_a_missing_token_file_is_named(tmp_path: Path) -> None:
    assert refused("http://127.0.0.1:1", tmp_path / "no") == f"{tmp_path}/no: No such file or directory"


def test_a_refused_connection_is_reported() -> None:
    with closed_port() as port:
        assert refused(f"http://127.0.0.1:{port}") == "Connection refused"


def test_a_missing_socket_is_reported(tmp_path: Path) -> None:
    assert refused(f"unix://{tmp_path}/no.sock") == "No such file or directory"


@pytest.mark.parametrize("behave", [silent, dripping, dripping_body], ids=["silent", "dripping", "dripping_body"])
def test_a_late_answer_ends_at_the_deadline(behave: Callable[[socket.socket], None]) -> None:
    """If each read had its own time limit instead of the deadline, the slow answers would take five seconds."""
    with listener(behave) as port:
        error = refused(f"http://127.0.0.1:{port}", allowed=ALLOWED)
    assert error == "no answer in time"


@pytest.mark.parametrize("behave", [silent, dripping], ids=["silent", "dripping"])
def test_a_late_handshake_ends_at_the_deadline(behave: Callable[[socket.socket], None]) -> None:
    with listener(behave) as port:
        error = refused(f"https://127.0.0.1:{port}", allowed=ALLOWED)
    assert error  # ``dripping`` sends no TLS record, so this call fails before the deadline with another error


def test_slowly_received_tls_records_end_at_the_deadline() -> None:
    class SlowTlsSocket:
        """A socket that applies its time limit to each record, as a TLS socket does."""

        def settimeout(self, seconds: float) -> None:
            self.limit = seconds

        def sendall(self, data: bytes) -> None:
            for _ in range(0, len(data), http_exchange.RECORD_BYTES):
                time.sleep(min(0.1, self.limit))

    began, opened = time.monotonic(), http_exchange._DeadlineSocket(SlowTlsSocket(), Deadline(ALLOWED))  # type: ignore[arg-type]
    with pytest.raises(DeadlineExceeded):
        opened.sendall(bytes(4 << 20))  # 256 records, which take 25 s
    assert time.monotonic() - began < 10


def test_an_unaccepted_connection_ends_at_the_deadline() -> None:
    with listener(backlog=0) as port:
        waiting = [socket.socket() for _ in range(4)]
        for client in waiting:
            client.setblocking(False)
            client.connect_ex(("127.0.0.1", port))
        error = refused(f"http://127.0.0.1:{port}", allowed=ALLOWED)
        for client in waiting:
            client.close()
    assert error == "no answer in time"


def test_a_late_name_server_ends_at_the_deadline(monkeypatch: pytest.MonkeyPatch) -> None:
    numeric = socket.getaddrinfo

    def slow(*args: Any, **options: Any) -> object:
        if options.get("flags") == socket.AI_NUMERICHOST:
            return numeric(*args, **options)
        return time.sleep(60)

    monkeypatch.setattr(socket, "getaddrinfo", slow)
    error = refused("http://sbf.example:8080", allowed=ALLOWED)
    assert error == "no result within the time limit"


def test_an_unknown_name_is_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    error = refused("http://sbf.invalid:8080", allowed=ALLOWED)
    assert error


def test_a_name_is_looked_up_once_while_its_address_answers(monkeypatch: pytest.MonkeyPatch) -> None:
    with scripted_sbf() as sbf:
        where = SbfAddress(sbf.url.replace("127.0.0.1", "localhost"))
        call_sbf(where, "GET", "/x")
        monkeypatch.setattr(http_exchange, "run_in_child", lambda *_: pytest.fail("the name was resolved again"))
        call_sbf(where, "GET", "/x")


def test_a_dead_address_leaves_time_for_the_next_address() -> None:
    with scripted_sbf() as sbf, listener(backlog=0) as dead:
        waiting = [socket.socket() for _ in range(4)]
        for client in waiting:
            client.setblocking(False)
            client.connect_ex(("127.0.0.1", dead))
        port = int(sbf.url.rpartition(":")[2])
        http_exchange.known_addresses["sbf.example", 80] = (
            (socket.AF_INET, ("127.0.0.1", dead)),
            (socket.AF_INET, ("127.0.0.1", port)),
        )
        assert call_sbf(SbfAddress("http://sbf.example"), "GET", "/x", None, Deadline(4.0)).slug == "not-found"
        for client in waiting:
            client.close()


def test_the_next_call_begins_with_the_address_that_answered(monkeypatch: pytest.MonkeyPatch) -> None:
    with closed_port() as port, scripted_sbf() as sbf:
        dead = socket.AF_INET, ("127.0.0.1", port)
        living = socket.AF_INET, ("127.0.0.1", int(sbf.url.rpartition(":")[2]))
        http_exchange.known_addresses["sbf.example", 80] = (dead, living)
        tried: list[http_exchange.SocketAddress] = []
        usual = http_exchange._open_socket
        monkeypatch.setattr(http_exchange, "_open_socket", lambda one, left: tried.append(one) or usual(one, left))
        for _ in range(2):
            call_sbf(SbfAddress("http://sbf.example"), "GET", "/x", None, Deadline(PATIENCE))
    assert tried == [dead, living, living]


def test_an_answer_without_http_is_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    with listener(lambda opened: opened.sendall(b"220 mail ready\r\n")) as port:
        assert refused(f"http://127.0.0.1:{port}") == "220 mail ready"


def test_an_endless_answer_is_rejected(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(http_exchange, "MAX_ANSWER_BYTES", 1000)

    def long(opened: socket.socket) -> None:
        opened.sendall(b"HTTP/1.1 200 OK\r\n\r\n" + b"x" * 2000)

    with listener(long) as port:
        assert refused(f"http://127.0.0.1:{port}") == "expected at most 1000 bytes, got more"


@pytest.mark.parametrize(
    ("status", "summary"),
    [
        (200, "the answer of SBF cannot be used"),
        (302, "the answer of SBF cannot be used"),
        (502, "SBF does not answer"),
    ],
)
def test_the_status_decides_whether_an_answer_counts_as_missing(status: int, summary: str) -> None:
    """A proxy can answer with its own page if SBF does not run."""
    page = b"HTTP/1.1 %d Page\r\nContent-Length: 6\r\n\r\n<html>" % status
    with listener(lambda opened: opened.sendall(page)) as port, pytest.raises(SbfUnreachable) as caught:
        call_sbf(SbfAddress(f"http://127.0.0.1:{port}"), "GET", "/v1/clusters", None, Deadline(PATIENCE))
    assert caught.value.summary == summary


def test_an_incomplete_answer_is_rejected() -> None:
    def ending(opened: socket.socket) -> None:
        opened.recv(65536)
        opened.sendall(b"HTTP/1.1 201 Created\r\ncontent-length: 9\r\n\r\n")

    with listener(ending) as port:
        assert refused(f"http://127.0.0.1:{port}") == "IncompleteRead(0 bytes read, 9 more expected)"


def test_status_503_counts_as_unreachable() -> None:
    with scripted_sbf() as sbf:
        sbf.say("GET /v1/clusters", problem(503, "database-unavailable", "the database does not answer"))
        assert refused(sbf.url) == "the database does not answer"


def test_a_redirection_is_no_success() -> None:
    """The proxy redirects each HTTP call to HTTPS. The body of the proxy's answer is empty."""

    def redirect(opened: socket.socket) -> None:
        opened.recv(65536)
        opened.sendall(b"HTTP/1.1 302 Found\r\ncontent-length: 0\r\nlocation: https://sbf.example/\r\n\r\n")

    with listener(redirect) as port:
        url = f"http://127.0.0.1:{port}"
        assert refused(url).startswith(f"{url}: expected an answer of SBF, got a redirection (HTTP status 302); ")


def test_a_late_child_process_is_killed(monkeypatch: pytest.MonkeyPatch) -> None:
    ssl.create_default_context()  # the parent process has already used TLS when it starts the child
    with pytest.raises(Exception, match="no result within the time limit"):
        run_in_child(lambda: time.sleep(60), Deadline(0.05))


def test_a_process_that_cannot_start_leaves_no_open_files(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse() -> int:
        raise BlockingIOError(errno.EAGAIN, "Resource temporarily unavailable")

    monkeypatch.setattr(os, "fork", refuse)
    former = sorted(Path("/proc/self/fd").iterdir())
    with pytest.raises(ChildError, match="cannot start a process: Resource temporarily unavailable"):
        run_in_child(lambda: 1, Deadline(60.0))
    assert sorted(Path("/proc/self/fd").iterdir()) == former


def test_a_partial_result_of_a_child_process_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(json, "dumps", lambda _: '{"resu')
    with pytest.raises(ChildError, match="the child process ended without a complete result"):
        run_in_child(lambda: 1, Deadline(60.0))
