import json
import os
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import pytest

from virtcloud.agent.job_socket import listener as module
from virtcloud.agent.job_socket.job_record_store import JobRecordStore
from virtcloud.agent.job_socket.listener import MAX_CONNECTIONS, CallerPolicy, SocketListener
from virtcloud.agent.job_socket.socket_requests import SocketRequest, StateRequest
from virtcloud.model.errors import BadInput, Gone

LIST = b'{"do": "list"}\n'
NOBODY = 65534
AS_NOBODY = """
import os, socket, sys
os.setuid(65534)
with socket.socket(socket.AF_UNIX) as connection:
    connection.connect(sys.argv[1])
    connection.sendall(b'{"do": "list"}\\n')
    print(connection.makefile().readline(), end="")
"""


def reply_with_request(request: SocketRequest) -> dict[str, Any]:
    return {"ok": True, "was": request.do}


def make_policy(*uids: int) -> CallerPolicy:
    return CallerPolicy(frozenset(uids), JobRecordStore(Path(tempfile.mkdtemp())))


@contextmanager
def listening(
    path: Path, answer_request: Callable[[SocketRequest], dict[str, Any]] = reply_with_request, *uids: int
) -> Iterator[SocketListener]:
    server = SocketListener(path, make_policy(*uids), answer_request)
    server.start()
    try:
        yield server
    finally:
        server.stop(5)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "run" / "agent.sock"


def connect(path: Path) -> socket.socket:
    connection = socket.socket(socket.AF_UNIX)
    connection.settimeout(30)
    connection.connect(str(path))
    return connection


def send(path: Path, line: bytes, *, end: bool = False) -> dict[str, Any]:
    with connect(path) as connection:
        if line:
            connection.sendall(line)
        if end:
            connection.shutdown(socket.SHUT_WR)
        with connection.makefile("rb") as lines:
            answer: dict[str, Any] = json.loads(lines.readline())
            return answer


def test_a_request_is_answered_and_the_socket_removed(path: Path) -> None:
    with listening(path):
        assert send(path, LIST) == {"ok": True, "was": "list"}
    assert not path.exists()


def test_an_error_has_a_name_and_one_line(path: Path) -> None:
    def fail(request: SocketRequest) -> dict[str, Any]:
        raise Gone("attempt 1\nis over")

    with listening(path, fail):
        assert send(path, LIST) == {"ok": False, "error": "gone", "detail": "attempt 1 is over"}


def test_an_internal_error_is_reported_and_serving_continues(path: Path) -> None:
    def fail(request: SocketRequest) -> dict[str, Any]:
        raise ZeroDivisionError("division by zero")

    with listening(path, fail):
        for _ in range(2):
            answer = send(path, LIST)
            assert (answer["error"], answer["detail"]) == (
                "error",
                "internal error in the agent: ZeroDivisionError: division by zero; see the agent's log",
            )


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can become another user")
@pytest.mark.parametrize(("uids", "allowed"), [((), False), ((NOBODY,), True)])
def test_other_users_are_refused(uids: tuple[int, ...], *, allowed: bool) -> None:
    path = Path(f"/tmp/virtcloud-test-{os.getpid()}.sock")  # noqa: S108 - a path that no other process uses
    with listening(path, reply_with_request, *uids):
        result = subprocess.run(  # noqa: S603
            [sys.executable, "-I", "-S", "-c", AS_NOBODY, str(path)],
            capture_output=True,
            text=True,
            check=True,
        )
    answer = json.loads(result.stdout)
    assert answer["ok"] is allowed
    if not allowed:
        assert (answer["error"], answer["detail"]) == (
            "forbidden",
            (
                "user ID 65534 may not send this request; root and the user IDs in the agent's setting 'socket_uids' "
                "may send all requests, and a job's user may cancel only the present run of this job"
            ),
        )


def test_a_line_that_is_too_long_is_refused(path: Path) -> None:
    with listening(path):
        answer = send(path, b"x" * (module.MAX_REQUEST + 1))
    assert (answer["error"], answer["detail"]) == ("bad-input", "expected one line of at most 262144 bytes, got more")


@pytest.mark.parametrize(
    ("sent", "detail"),
    [(b"{}\n{}\n", "expected one line, got more"), (b'{"do"', "expected one line, got a line without its end")],
)
def test_anything_but_one_line_is_refused(path: Path, sent: bytes, detail: str) -> None:
    with listening(path):
        assert send(path, sent, end=True)["detail"] == detail


def test_a_slow_caller_is_refused_and_blocks_nobody(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "LINE_TIMEOUT_S", 0.2)
    with listening(path), closing(connect(path)) as slow:
        assert send(path, LIST)["ok"]
        assert json.loads(slow.makefile().readline())["detail"].startswith("expected one line within 0.2 s: ")


def test_fifty_waiting_requests_do_not_block_another(path: Path) -> None:
    released, waiting = threading.Event(), threading.Barrier(51)

    def wait_for_release(request: SocketRequest) -> dict[str, Any]:
        if isinstance(request, StateRequest):
            waiting.wait(30)
            released.wait(30)
        return {"ok": True}

    answers: list[dict[str, Any]] = []
    line = b'{"do": "state", "cluster": "a", "attempt": 1}\n'
    threads = [threading.Thread(target=lambda: answers.append(send(path, line))) for _ in range(50)]
    with listening(path, wait_for_release):
        for thread in threads:
            thread.start()
        waiting.wait(30)
        assert send(path, LIST) == {"ok": True}
        released.set()
        for thread in threads:
            thread.join()
    assert answers == [{"ok": True}] * 50


def test_a_caller_beyond_the_limit_must_retry(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MAX_CONNECTIONS", {True: 1, False: 0})
    with listening(path), closing(connect(path)) as waiting_connection:
        answer = send(path, b"")
        assert (answer["error"], answer["detail"]) == (
            "too-many-requests",
            "too many requests are waiting for this agent; retry later",
        )
        waiting_connection.sendall(LIST)
        assert json.loads(waiting_connection.makefile().readline())["ok"]


def test_the_socket_of_a_killed_agent_is_replaced(path: Path) -> None:
    path.parent.mkdir()
    with socket.socket(socket.AF_UNIX) as killed_socket:
        killed_socket.bind(str(path))
    with listening(path):
        assert send(path, LIST)["ok"]


def test_the_socket_of_a_running_agent_is_not_replaced(path: Path) -> None:
    with listening(path):
        with pytest.raises(BadInput, match=r"^another agent listens at .*agent\.sock; stop the other agent first$"):
            SocketListener(path, make_policy(), reply_with_request)
        assert send(path, LIST)["ok"]


def test_a_file_at_the_sockets_path_is_not_replaced(path: Path) -> None:
    path.parent.mkdir()
    path.write_text("precious")
    with pytest.raises(BadInput, match="the file is no socket"):
        SocketListener(path, make_policy(), reply_with_request)
    assert path.read_text() == "precious"


def test_a_stopping_agent_does_not_remove_anothers_socket(path: Path) -> None:
    with listening(path):
        path.unlink()
        with socket.socket(socket.AF_UNIX) as other_socket:
            other_socket.bind(str(path))
    assert path.exists()


@pytest.fixture
def checks_often(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "PROGRESS_S", 0.05)


def wait_for_text(caplog: pytest.LogCaptureFixture, words: str) -> None:
    deadline = time.monotonic() + 20
    while words not in caplog.text and time.monotonic() < deadline:
        time.sleep(0.01)
    assert words in caplog.text


@pytest.mark.usefixtures("checks_often")
def test_a_removed_socket_file_is_created_again(path: Path, caplog: pytest.LogCaptureFixture) -> None:
    with listening(path):
        path.unlink()
        wait_for_text(caplog, "socket_file_replaced")
        assert send(path, LIST)["ok"]
    assert not path.exists()


@pytest.mark.usefixtures("checks_often")
def test_a_file_that_cannot_be_created_again_is_logged_once(path: Path, caplog: pytest.LogCaptureFixture) -> None:
    with listening(path):
        path.unlink()
        path.parent.rmdir()
        path.parent.write_text("a file instead of the folder")
        wait_for_text(caplog, "socket_file_lost")
        time.sleep(0.2)
        path.parent.unlink()
        wait_for_text(caplog, "socket_file_replaced")
    assert caplog.text.count("socket_file_lost") == 1


def test_a_path_that_is_too_long_is_named(tmp_path: Path) -> None:
    with pytest.raises(BadInput, match="AF_UNIX path too long; set 'socket' in the agent's settings"):
        SocketListener(tmp_path / ("x" * 120), make_policy(), reply_with_request)


def test_a_failed_start_of_a_thread_refuses_one_caller(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with listening(path):
        monkeypatch.setattr(threading.Thread, "start", _raise_no_thread)
        refusals = [send(path, b"") for _ in range(MAX_CONNECTIONS[True] + 1)]
        monkeypatch.undo()
        last_answer = send(path, LIST)
    message = "the agent cannot start a thread (can't start new thread); retry later"
    assert [refusal["detail"] for refusal in refusals] == [message] * (MAX_CONNECTIONS[True] + 1), (
        "expected refused callers to occupy no slot"
    )
    assert last_answer == {"ok": True, "was": "list"}


def _raise_no_thread(_thread: threading.Thread) -> None:
    raise RuntimeError("can't start new thread")
