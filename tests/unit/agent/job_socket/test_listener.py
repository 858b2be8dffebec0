"""Tests of the listener: permitted callers, time limits, and ownership of the socket's path."""

import json
import os
import socket
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import pytest

from virtcloud.agent.job_socket import listener as module
from virtcloud.agent.job_socket.job_records import JobRecordStore
from virtcloud.agent.job_socket.listener import MAX_CONNECTIONS, CallerPolicy, SocketListener
from virtcloud.agent.job_socket.socket_requests import SocketRequest, StateRequest
from virtcloud.model.errors import BadInput, Gone

LIST = b'{"do": "list"}\n'
NOBODY = 65534
AS_NOBODY = """
import os, socket, sys
os.setuid(65534)
with socket.socket(socket.AF_UNIX) as talk:
    talk.connect(sys.argv[1])
    talk.sendall(b'{"do": "list"}\\n')
    print(talk.makefile().readline(), end="")
"""


def answer(request: SocketRequest) -> dict[str, Any]:
    return {"ok": True, "was": request.do}


def callers(*uids: int) -> CallerPolicy:
    return CallerPolicy(frozenset(uids), JobRecordStore(Path(tempfile.mkdtemp())))


@contextmanager
def listening(
    path: Path, how: Callable[[SocketRequest], dict[str, Any]] = answer, *uids: int
) -> Iterator[SocketListener]:
    server = SocketListener(path, callers(*uids), how)
    server.start()
    try:
        yield server
    finally:
        server.stop(5)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "run" / "agent.sock"


def opened(path: Path) -> socket.socket:
    talk = socket.socket(socket.AF_UNIX)
    talk.settimeout(30)
    talk.connect(str(path))
    return talk


def say(path: Path, line: bytes, *, end: bool = False) -> dict[str, Any]:
    with opened(path) as talk:
        if line:
            talk.sendall(line)
        if end:
            talk.shutdown(socket.SHUT_WR)
        with talk.makefile("rb") as lines:
            reply: dict[str, Any] = json.loads(lines.readline())
            return reply


def test_a_request_is_answered_and_the_socket_removed(path: Path) -> None:
    with listening(path):
        assert say(path, LIST) == {"ok": True, "was": "list"}
    assert not path.exists()


def test_an_error_is_its_stable_name_and_one_line(path: Path) -> None:
    def fail(request: SocketRequest) -> dict[str, Any]:
        raise Gone("attempt 1\nis over")

    with listening(path, fail):
        assert say(path, LIST) == {"ok": False, "error": "gone", "detail": "attempt 1 is over"}


def test_an_internal_error_is_reported_and_serving_continues(path: Path) -> None:
    def fail(request: SocketRequest) -> dict[str, Any]:
        raise ZeroDivisionError("division by zero")

    with listening(path, fail):
        for _ in range(2):
            reply = say(path, LIST)
            assert (reply["error"], reply["detail"]) == (
                "error",
                "internal error in the agent: ZeroDivisionError: division by zero; see the agent's log",
            )


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can become another user")
@pytest.mark.parametrize(("uids", "allowed"), [((), False), ((NOBODY,), True)])
def test_only_root_and_those_in_the_settings_are_answered(uids: tuple[int, ...], *, allowed: bool) -> None:
    """The kernel reports the caller's user ID, whatever the request contains."""
    path = Path(f"/tmp/virtcloud-test-{os.getpid()}.sock")  # noqa: S108 - a path that no other process uses
    with listening(path, answer, *uids):
        done = subprocess.run(  # noqa: S603
            [sys.executable, "-I", "-S", "-c", AS_NOBODY, str(path)],
            capture_output=True,
            text=True,
            check=True,
        )
    reply = json.loads(done.stdout)
    assert reply["ok"] is allowed
    if not allowed:
        assert (reply["error"], reply["detail"]) == (
            "forbidden",
            (
                "user ID 65534 may not send this request; root and the user IDs in the agent's setting 'socket_uids' "
                "may send all requests, and a job's user may cancel the job's run"
            ),
        )


def test_a_line_that_is_too_long_is_refused(path: Path) -> None:
    with listening(path):
        reply = say(path, b"x" * (module.MAX_REQUEST + 1))
    assert (reply["error"], reply["detail"]) == ("bad-input", "expected one line of at most 262144 bytes, got more")


@pytest.mark.parametrize(
    ("sent", "words"),
    [(b"{}\n{}\n", "expected one line, got more"), (b'{"do"', "expected one line, got a line without its end")],
)
def test_what_is_not_one_line_is_refused(path: Path, sent: bytes, words: str) -> None:
    with listening(path):
        assert say(path, sent, end=True)["detail"] == words


def test_a_slow_caller_is_refused_and_blocks_nobody(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "LINE_TIMEOUT_S", 0.2)
    with listening(path), closing(opened(path)) as slow:
        assert say(path, LIST)["ok"]
        assert json.loads(slow.makefile().readline())["detail"].startswith("expected one line within 0.2 s: ")


def test_many_wait_at_once_and_one_more_is_answered(path: Path) -> None:
    released, waiting = threading.Event(), threading.Barrier(51)

    def hold(request: SocketRequest) -> dict[str, Any]:
        if isinstance(request, StateRequest):
            waiting.wait(30)
            released.wait(30)
        return {"ok": True}

    replies: list[dict[str, Any]] = []
    line = b'{"do": "state", "cluster": "a", "attempt": 1}\n'
    threads = [threading.Thread(target=lambda: replies.append(say(path, line))) for _ in range(50)]
    with listening(path, hold):
        for one in threads:
            one.start()
        waiting.wait(30)
        assert say(path, LIST) == {"ok": True}
        released.set()
        for one in threads:
            one.join()
    assert replies == [{"ok": True}] * 50


def test_a_caller_beyond_the_limit_must_retry(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MAX_CONNECTIONS", {True: 1, False: 0})
    with listening(path), closing(opened(path)) as holder:
        reply = say(path, b"")
        assert (reply["error"], reply["detail"]) == (
            "too-many-requests",
            "too many requests are waiting for this agent; retry later",
        )
        holder.sendall(LIST)
        assert json.loads(holder.makefile().readline())["ok"]


def test_the_socket_of_an_agent_that_was_killed_is_replaced(path: Path) -> None:
    path.parent.mkdir()
    with socket.socket(socket.AF_UNIX) as killed:
        killed.bind(str(path))
    with listening(path):
        assert say(path, LIST)["ok"]


def test_the_socket_of_a_running_agent_is_not_replaced(path: Path) -> None:
    with listening(path):
        with pytest.raises(BadInput, match=r"^another agent listens at .*agent\.sock; stop the other agent first$"):
            SocketListener(path, callers(), answer)
        assert say(path, LIST)["ok"]


def test_a_file_in_the_sockets_place_is_left_alone(path: Path) -> None:
    path.parent.mkdir()
    path.write_text("precious")
    with pytest.raises(BadInput, match="the file is no socket"):
        SocketListener(path, callers(), answer)
    assert path.read_text() == "precious"


def test_an_agent_that_ends_leaves_anothers_socket_in_its_place(path: Path) -> None:
    """The path was removed and another agent started; the other agent's socket remains."""
    with listening(path):
        path.unlink()
        with socket.socket(socket.AF_UNIX) as other:
            other.bind(str(path))
    assert path.exists()


def test_a_path_that_is_too_long_is_named(tmp_path: Path) -> None:
    with pytest.raises(BadInput, match="AF_UNIX path too long; set 'socket' in the agent's settings"):
        SocketListener(tmp_path / ("x" * 120), callers(), answer)


def test_a_missing_thread_refuses_one_caller_only(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with listening(path):
        monkeypatch.setattr(threading.Thread, "start", _no_thread)
        refused = [say(path, b"") for _ in range(MAX_CONNECTIONS[True] + 1)]
        monkeypatch.undo()
        answered = say(path, LIST)
    message = "the agent cannot start a thread (can't start new thread); retry later"
    assert [one["detail"] for one in refused] == [message] * (MAX_CONNECTIONS[True] + 1), "no place is lost"
    assert answered == {"ok": True, "was": "list"}


def _no_thread(_thread: threading.Thread) -> None:
    raise RuntimeError("can't start new thread")
