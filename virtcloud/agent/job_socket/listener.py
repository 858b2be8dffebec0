"""The socket: a thread accepts, and one for each connection reads one request and writes one answer.

Who may ask what: root and those whom the settings name everything, a job's user to give up its own run.
"""

import json
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
from virtcloud.agent.job_socket.job_records import JobRecordStore
from virtcloud.agent.job_socket.socket_requests import CancelRequest, SocketRequest, parse_socket_request
from virtcloud.agent.supervision import ReportProgress, StartSupervisedThread, start_unsupervised
from virtcloud.model.errors import BadInput, Forbidden, TooManyRequests, VirtcloudError

ROOT = 0


def find_uid(name: str) -> int | None:
    """Give a user's number on this machine; None for one whom it does not know."""
    try:
        return pwd.getpwnam(name).pw_uid
    except KeyError:
        return None


@dataclass(frozen=True, slots=True)
class CallerPolicy:
    """The rule; users are the numbers that the kernel gives of who connected."""

    uids: frozenset[int]
    records: JobRecordStore
    find_uid: Callable[[str], int | None] = find_uid

    def is_trusted(self, uid: int) -> bool:
        """Say whether a user may ask everything."""
        return uid == ROOT or uid in self.uids

    def check(self, request: SocketRequest, uid: int) -> None:
        """Raise Forbidden unless this user may ask this.

        Who may delete a job may give its run up: a batch system says so as that user (Torque's epilogue.precancel).
        """
        if not self.is_trusted(uid) and not (isinstance(request, CancelRequest) and self._is_job_of(request, uid)):
            raise Forbidden(
                f"user number {uid} may not ask this agent: that takes root, or a number in its setting 'socket_uids' "
                "(and a job's user may cancel its own run)"
            )

    def _is_job_of(self, request: CancelRequest, uid: int) -> bool:
        job = self.records.get(request.cluster)
        return job is not None and (job.attempt, uid) == (request.attempt, self.find_uid(job.user or ""))


MAX_CONNECTIONS = {True: 128, False: 8}
"""At once, of callers who may ask everything and of others: nobody can keep a batch system out."""
MAX_REQUEST = 1 << 18
RECEIVE_SIZE = 1 << 16
PROGRESS_S, ACCEPT_RETRY_S, MAX_ACCEPT_S = 5.0, 1.0, 120.0
"""Seconds between two signs of life while nobody calls, after a failure to accept, and for one caller at most."""
LINE_TIMEOUT_S = 5.0
"""So long a caller may take for its line, and to take the answer."""
CREDENTIALS = struct.Struct("3i")


class SocketListener:
    """Listens at ``path`` and answers by ``answer`` those whom ``callers`` let ask."""

    def __init__(self, path: Path, callers: CallerPolicy, answer: Callable[[SocketRequest], dict[str, Any]]) -> None:
        """Take the path, from an agent that was killed too; raises BadInput when it is another's."""
        self._path = path
        self._callers = callers
        self._answer = answer
        self._slots = {trusted: threading.BoundedSemaphore(most) for trusted, most in MAX_CONNECTIONS.items()}
        self._socket = _bind(path)
        self._inode = path.stat().st_ino
        self._closing = threading.Event()
        self._wake_writer, self._wake_reader = socket.socketpair()
        self._thread: threading.Thread | None = None

    def start(self, start: StartSupervisedThread = start_unsupervised) -> None:
        """Accept from now on, in a thread that ``start`` starts."""
        self._thread = start("socket", self._accept, MAX_ACCEPT_S)

    def stop(self, seconds: float) -> None:
        """Accept no more, remove the path, and let who is being answered have it, within ``seconds``."""
        self._closing.set()
        self._wake_writer.send(b"\0")
        if self._thread is not None:
            self._thread.join(seconds)
        for one in (self._socket, self._wake_writer, self._wake_reader):
            one.close()
        if self._path.exists() and self._path.stat().st_ino == self._inode:
            self._path.unlink()
        ends = time.monotonic() + seconds
        for trusted, most in MAX_CONNECTIONS.items():
            for _ in range(most):
                self._slots[trusted].acquire(timeout=max(0, ends - time.monotonic()))

    def _accept(self, beat: ReportProgress) -> None:
        """Accept until told to end; whatever one caller meets, the next one is accepted."""
        self._socket.setblocking(False)
        poll = select.poll()
        for one in (self._socket, self._wake_reader):
            poll.register(one, select.POLLIN)
        while not self._closing.is_set():
            beat()
            poll.poll(PROGRESS_S * 1000)
            try:
                talk, _ = self._socket.accept()
                self._admit(talk)
            except BlockingIOError:
                continue
            except OSError as error:
                log.warning("not_accepted", error=error)  # no descriptor left, say: those that answer free some
                time.sleep(ACCEPT_RETRY_S)

    def _admit(self, talk: socket.socket) -> None:
        """Answer a caller in a thread of its own; raise OSError for one that left."""
        talk.settimeout(LINE_TIMEOUT_S)
        uid = _peer_uid(talk)
        places = self._slots[self._callers.is_trusted(uid)]
        if not places.acquire(blocking=False):
            _send_answer(talk, _format_error(TooManyRequests("too many requests wait here already: ask again")))
            return
        try:
            threading.Thread(target=self._serve, args=(talk, uid, places), name="request", daemon=True).start()
        except RuntimeError as error:  # this machine has no thread left, or no memory for one
            places.release()
            log.warning("not_answered", error=error)
            _send_answer(talk, _format_error(TooManyRequests(f"the agent cannot start a thread ({error}): ask again")))

    def _serve(self, talk: socket.socket, uid: int, places: threading.BoundedSemaphore) -> None:
        try:
            _send_answer(talk, self._answer_request(talk, uid))
        finally:
            places.release()

    def _answer_request(self, talk: socket.socket, uid: int) -> dict[str, Any]:
        try:
            request = parse_socket_request(_read_line(talk))
            self._callers.check(request, uid)
            return self._answer(request)
        except VirtcloudError as error:
            return _format_error(error)
        except Exception as error:  # noqa: BLE001 - reported to the caller like any error
            return _format_error(log.internal_error(error))


def _peer_uid(talk: socket.socket) -> int:
    """Ask the kernel who connected (SO_PEERCRED, unix(7))."""
    said = talk.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, CREDENTIALS.size)
    _pid, uid, _gid = CREDENTIALS.unpack(said)
    return int(uid)


def _bind(path: Path) -> socket.socket:
    made = socket.socket(socket.AF_UNIX)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        _remove_stale_socket(path)
        made.bind(str(path))
        path.chmod(0o666)  # who may ask is decided by who asks, so that everybody reads why not
        made.listen(sum(MAX_CONNECTIONS.values()))
    except OSError as error:
        made.close()
        raise BadInput(f"cannot listen at {path}: {error.strerror or error}; set 'socket' in the settings") from error
    except BadInput:
        made.close()
        raise
    return made


def _remove_stale_socket(path: Path) -> None:
    """Remove a socket on which nobody listens any more."""
    try:
        kind = path.lstat().st_mode
    except FileNotFoundError:
        return
    if not stat.S_ISSOCK(kind):
        raise BadInput(f"cannot listen at {path}: it is no socket, and was left alone; set 'socket' in the settings")
    with socket.socket(socket.AF_UNIX) as probe:
        try:
            probe.connect(str(path))
        except ConnectionRefusedError:
            path.unlink()
            return
    raise BadInput(f"another agent listens at {path}; stop it first")


def _read_line(talk: socket.socket) -> bytes:
    """Read to the end of the line, and no longer than a caller may take."""
    ends, read = time.monotonic() + LINE_TIMEOUT_S, bytearray()
    try:
        while b"\n" not in read and len(read) <= MAX_REQUEST:
            talk.settimeout(max(0.001, ends - time.monotonic()))
            piece = talk.recv(RECEIVE_SIZE)
            if not piece:
                break
            read += piece
    except OSError as error:
        raise BadInput(f"expected one line within {LINE_TIMEOUT_S:g} s: {error}") from error
    line, end, rest = bytes(read).partition(b"\n")
    if len(line) > MAX_REQUEST:
        raise BadInput(f"expected one line of at most {MAX_REQUEST} bytes, got more")
    if not end or rest:
        raise BadInput(f"expected one line, got {'more' if rest else 'no end of it'}")
    return line


def _format_error(error: VirtcloudError) -> dict[str, Any]:
    return {"ok": False, "error": error.slug, "detail": " ".join(str(error).split())}


def _send_answer(talk: socket.socket, said: dict[str, Any]) -> None:
    with talk:
        try:
            talk.settimeout(LINE_TIMEOUT_S)
            talk.sendall(json.dumps(said).encode() + b"\n")
        except OSError as error:
            log.info("asker_left", error=error)
