"""The listener of the job socket. One thread accepts connections, and separate threads answer the requests.

root and the users in the setting `socket_uids` may send all requests. A job's user may cancel the job's run.
"""

import json
import os
import pwd
import select
import socket
import stat
import struct
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from virtcloud.agent import log
from virtcloud.agent.job_socket.job_record_store import JobRecordStore
from virtcloud.agent.job_socket.socket_requests import CancelRequest, SocketRequest, parse_socket_request
from virtcloud.agent.supervision import ReportProgress, StartSupervisedThread, start_unsupervised
from virtcloud.model.errors import BadInput, Forbidden, TooManyRequests, VirtcloudError

ROOT = 0


def find_uid(name: str) -> int | None:
    """Return a user's ID on this host, or None for an unknown user."""
    try:
        return pwd.getpwnam(name).pw_uid
    except KeyError:
        return None


@dataclass(frozen=True, slots=True)
class CallerPolicy:
    """Decides which requests a user may send. The kernel reports a connection's user ID."""

    uids: frozenset[int]
    records: JobRecordStore
    find_uid: Callable[[str], int | None] = find_uid

    def is_trusted(self, uid: int) -> bool:
        """Return whether a user may send all requests."""
        return uid == ROOT or uid in self.uids

    def check(self, request: SocketRequest, uid: int) -> None:
        """Raise Forbidden unless the user ``uid`` may send this request.

        A job's user may cancel the job's run, because Torque runs `epilogue.precancel` as this user.
        """
        if not self.is_trusted(uid) and not (isinstance(request, CancelRequest) and self._is_job_of(request, uid)):
            raise Forbidden(
                f"user ID {uid} may not send this request; root and the user IDs in the agent's setting 'socket_uids' "
                "may send all requests, and a job's user may cancel only the present run of this job"
            )

    def _is_job_of(self, request: CancelRequest, uid: int) -> bool:
        job = self.records.get(request.cluster)
        return job is not None and (job.attempt, uid) == (request.attempt, self.find_uid(job.user or ""))


MAX_CONNECTIONS = {True: 128, False: 8}
"""Limits of open connections: of all trusted callers together (True), and of all others together (False).

With separate limits, other callers cannot block a batch system, which is trusted.
"""
MAX_REQUEST = 1 << 18
RECEIVE_SIZE = 1 << 16
PROGRESS_S, ACCEPT_RETRY_S, MAX_ACCEPT_S = 5.0, 1.0, 120.0
"""In seconds: interval of progress reports, pause after a failed accept, and longest time without a progress report.

If the accepting thread sends no progress report for longer than ``MAX_ACCEPT_S``, the agent ends.
"""
LINE_TIMEOUT_S = 5.0
"""Time limit in seconds for a caller to send the request, and to receive the answer."""
CREDENTIALS = struct.Struct("3i")


class SocketListener:
    """Listens at ``path``, checks callers with ``policy``, and sends the answers that ``answer`` returns.

    If another program removes the socket's file, the listener creates the file again within ``PROGRESS_S``.
    """

    def __init__(self, path: Path, policy: CallerPolicy, answer: Callable[[SocketRequest], dict[str, Any]]) -> None:
        """Listen at ``path``. Replace a socket that a killed agent left.

        Raise BadInput if another process listens at ``path``, or the socket cannot be created.
        """
        self._path = path
        self._policy = policy
        self._answer = answer
        self._slots = {trusted: threading.BoundedSemaphore(limit) for trusted, limit in MAX_CONNECTIONS.items()}
        self._socket = _bind(path)
        self._inode = path.stat().st_ino
        self._is_lost = False
        self._closing = threading.Event()
        self._wake_writer, self._wake_reader = socket.socketpair()
        self._thread: threading.Thread | None = None

    def start(self, start: StartSupervisedThread = start_unsupervised) -> None:
        """Use the function ``start`` to start the thread that accepts connections."""
        self._thread = start("socket", self._accept, MAX_ACCEPT_S)

    def stop(self, seconds: float) -> None:
        """Stop accepting connections, and remove the socket.

        Wait at most ``seconds`` for the end of the thread, and then at most ``seconds`` until all answers are sent.
        """
        self._closing.set()
        self._wake_writer.send(b"\0")
        if self._thread is not None:
            self._thread.join(seconds)
        for opened_socket in (self._socket, self._wake_writer, self._wake_reader):
            opened_socket.close()
        if self._path.exists() and self._path.stat().st_ino == self._inode:
            self._path.unlink()
        deadline = time.monotonic() + seconds
        for trusted, limit in MAX_CONNECTIONS.items():
            for _ in range(limit):
                self._slots[trusted].acquire(timeout=max(0, deadline - time.monotonic()))

    def _accept(self, report_progress: ReportProgress) -> None:
        self._socket.setblocking(False)
        poll = select.poll()
        for source in (self._socket, self._wake_reader):
            poll.register(source, select.POLLIN)
        while not self._closing.is_set():
            report_progress()
            if not poll.poll(PROGRESS_S * 1000):
                self._replace_removed_file(poll)
                continue
            try:
                connection, _ = self._socket.accept()
                self._admit(connection)
            except BlockingIOError:
                continue
            except OSError as error:
                # For example, all descriptors are in use until another request has been answered.
                log.warning("accept_failed", error=error)
                time.sleep(ACCEPT_RETRY_S)

    def _replace_removed_file(self, poll: select.poll) -> None:
        """If another program has removed the socket's file, listen at the path with a new socket.

        If the new socket cannot be created, log the error once, and try again later.
        """
        if os.path.lexists(self._path):
            return
        try:
            replacement = _bind(self._path)
        except BadInput as error:
            if not self._is_lost:
                log.warning("socket_file_lost", path=self._path, error=error)
            self._is_lost = True
            return
        poll.unregister(self._socket)
        self._socket.close()
        self._socket, self._inode, self._is_lost = replacement, self._path.stat().st_ino, False
        self._socket.setblocking(False)
        poll.register(self._socket, select.POLLIN)
        log.warning("socket_file_replaced", path=self._path)

    def _admit(self, connection: socket.socket) -> None:
        connection.settimeout(LINE_TIMEOUT_S)
        uid = _peer_uid(connection)
        slots = self._slots[self._policy.is_trusted(uid)]
        if not slots.acquire(blocking=False):
            _send_answer(
                connection, _format_error(TooManyRequests("too many requests are waiting for this agent; retry later"))
            )
            return
        try:
            threading.Thread(target=self._serve, args=(connection, uid, slots), name="request", daemon=True).start()
        except RuntimeError as error:  # the host has no thread or no memory left
            slots.release()
            log.warning("request_refused", error=error)
            _send_answer(
                connection, _format_error(TooManyRequests(f"the agent cannot start a thread ({error}); retry later"))
            )

    def _serve(self, connection: socket.socket, uid: int, slots: threading.BoundedSemaphore) -> None:
        try:
            _send_answer(connection, self._answer_request(connection, uid))
        finally:
            slots.release()

    def _answer_request(self, connection: socket.socket, uid: int) -> dict[str, Any]:
        try:
            request = parse_socket_request(_read_line(connection))
            self._policy.check(request, uid)
            return self._answer(request)
        except VirtcloudError as error:
            return _format_error(error)
        except Exception as error:  # noqa: BLE001 - reported to the caller like any other error
            return _format_error(log.internal_error(error))


def _peer_uid(connection: socket.socket) -> int:
    answer = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, CREDENTIALS.size)
    _pid, uid, _gid = CREDENTIALS.unpack(answer)
    return int(uid)


def _bind(path: Path) -> socket.socket:
    listening_socket = socket.socket(socket.AF_UNIX)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        _remove_stale_socket(path)
        listening_socket.bind(str(path))
        # All users may connect, so that a user without permission receives an error. `CallerPolicy` checks requests.
        path.chmod(0o666)
        listening_socket.listen(sum(MAX_CONNECTIONS.values()))
    except OSError as error:
        listening_socket.close()
        raise BadInput(
            f"cannot listen at {path}: {error.strerror or error}; set 'socket' in the agent's settings"
        ) from error
    except BadInput:
        listening_socket.close()
        raise
    return listening_socket


def _remove_stale_socket(path: Path) -> None:
    try:
        mode = path.lstat().st_mode
    except FileNotFoundError:
        return
    if not stat.S_ISSOCK(mode):
        raise BadInput(
            f"cannot listen at {path}: the file is no socket (left unchanged); set 'socket' in the agent's settings"
        )
    with socket.socket(socket.AF_UNIX) as probe:
        try:
            probe.connect(str(path))
        except ConnectionRefusedError:
            path.unlink()
            return
    raise BadInput(f"another agent listens at {path}; stop the other agent first")


def _read_line(connection: socket.socket) -> bytes:
    deadline, read = time.monotonic() + LINE_TIMEOUT_S, bytearray()
    try:
        while b"\n" not in read and len(read) <= MAX_REQUEST:
            connection.settimeout(max(0.001, deadline - time.monotonic()))
            chunk = connection.recv(RECEIVE_SIZE)
            if not chunk:
                break
            read += chunk
    except OSError as error:
        raise BadInput(f"expected one line within {LINE_TIMEOUT_S:g} s: {error}") from error
    line, end, rest = bytes(read).partition(b"\n")
    if len(line) > MAX_REQUEST:
        raise BadInput(f"expected one line of at most {MAX_REQUEST} bytes, got more")
    if not end or rest:
        raise BadInput(f"expected one line, got {'more' if rest else 'a line without its end'}")
    return line


def _format_error(error: VirtcloudError) -> dict[str, Any]:
    return {"ok": False, "error": error.slug, "detail": " ".join(str(error).split())}


def _send_answer(connection: socket.socket, answer: dict[str, Any]) -> None:
    with connection:
        try:
            connection.settimeout(LINE_TIMEOUT_S)
            connection.sendall(json.dumps(answer).encode() + b"\n")
        except OSError as error:
            log.info("caller_left", error=error)
