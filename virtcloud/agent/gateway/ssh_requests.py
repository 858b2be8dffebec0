"""The agent's socket for the relays of a gateway's sshd.

A relay (`ssh_relay_program`) requests the connection of one user's session. A request without a grant waits up to
`GRANT_S` seconds for a wanted document with the grant.
"""

import array
import os
import socket
import struct
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import Final, TypeVar

from pydantic import ValidationError

from virtcloud.agent import log
from virtcloud.agent.files import refuse_os_errors
from virtcloud.agent.gateway.guest_connections import ConnectInNetwork
from virtcloud.agent.gateway.ssh_admission import (
    ProvenUser,
    SshRequest,
    SshSession,
    SshTarget,
    find_target,
    name_guest,
)
from virtcloud.agent.gateway.ssh_sessions import SshSessions
from virtcloud.agent.own_processes import read_start_time
from virtcloud.model.errors import Forbidden, NotFound, Refused, TooManyRequests, VirtcloudError
from virtcloud.model.guest_seed import PublicKey
from virtcloud.model.values import UserName
from virtcloud.model.wanted import Segment

T = TypeVar("T")
SSH_PORT: Final = 22
MAX_REQUESTS: Final = 128
"""Limit of requests that are answered at the same time. A further relay is refused if none of these requests ends
within `REQUEST_S` seconds.

A guest that does not answer occupies a thread for ten seconds. A user may occupy half of the threads that other users
leave free, so that a few users cannot lock all others out.
"""
MAX_WAITING: Final = 16
"""Limit of one user's requests that wait for a grant, so that other users find free threads."""
MAX_OF_USER: Final = 32
"""Limit of one user's simultaneous requests: the default number of simultaneous logins of ``virtcloud cluster run``."""
BACKLOG: Final = 128
REQUEST_S: Final = 5.0
"""Time limit in seconds for the receipt of a request, and for each wait for a free thread."""
MAX_REQUEST: Final = 32768
GRANT_S: Final = 5.0
"""Seconds for which a request waits for a missing grant."""
POLL_S: Final = 0.1
CREDENTIALS: Final = struct.Struct("3i")
BUSY: Final = b"this gateway answers too many requests: try again in some seconds"


class SshGrants:
    """The segments of the latest wanted document, and the public key of the authority for certificates.

    ``segments`` is None until the agent has received a wanted document. ``authority`` is None if no sshd is wanted.
    """

    def __init__(self, clock: Callable[[], datetime] = lambda: datetime.now(UTC)) -> None:
        """Create an object without grants."""
        self.clock = clock
        self.segments: tuple[Segment, ...] | None = None
        self.authority: PublicKey | None = None


class SshRequests:
    """A socket at which the agent answers relays. Call `run` in a thread."""

    def __init__(
        self, path: Path, uid: int, grants: SshGrants, sessions: SshSessions, connect: ConnectInNetwork
    ) -> None:
        """Listen at ``path`` for processes of the user ``uid``. Raise Refused if the socket cannot be created."""
        self._uid = uid
        self._grants = grants
        self._sessions = sessions
        self._connect = connect
        self._free = threading.BoundedSemaphore(MAX_REQUESTS)
        self._counts: Counter[tuple[str, UserName]] = Counter()
        """The number of waiting requests, by what they wait for ("a guest" or "a grant") and by user."""
        self._lock = threading.Lock()
        self._is_closed = False
        self._listener = socket.socket(socket.AF_UNIX)
        with refuse_os_errors(f"listen at {path}"):
            path.unlink(missing_ok=True)
            self._listener.bind(str(path))
            os.chown(path, uid, -1)
            path.chmod(0o600)
            self._listener.listen(BACKLOG)

    def run(self) -> None:
        """Answer requests until another thread calls `close`."""
        while True:
            try:
                relay, _ = self._listener.accept()
            except OSError as error:
                if self._is_closed:
                    return
                log.warning("ssh_request_not_accepted", error=error)
                time.sleep(POLL_S)
                continue
            self._begin(relay)

    def close(self) -> None:
        """Close the socket, so that `run` returns."""
        self._is_closed = True
        with suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()

    def _begin(self, relay: socket.socket) -> None:
        if not self._free.acquire(timeout=REQUEST_S):
            with relay, suppress(OSError):
                relay.sendall(BUSY)
            return
        try:
            threading.Thread(target=self._answer, args=(relay,), name="SSH request", daemon=True).start()
        except RuntimeError:  # no memory for a thread
            self._free.release()
            relay.close()

    def _answer(self, relay: socket.socket) -> None:
        try:
            with relay, suppress(OSError):
                try:
                    self._serve(relay)
                except VirtcloudError as error:
                    log.warning("ssh_refused", why=error)
                    relay.sendall(str(error).encode())
                except Exception as error:  # noqa: BLE001 - the thread serves one request
                    relay.sendall(str(log.internal_error(error)).encode())
        finally:
            self._free.release()

    def _serve(self, relay: socket.socket) -> None:
        pid, uid, _ = CREDENTIALS.unpack(relay.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, CREDENTIALS.size))
        if uid != self._uid:
            raise Forbidden("only the relays of this gateway's sshd may request connections")
        started = read_start_time(pid)
        request = _read_request(relay)
        target, serial, connection = self._wait_for_guest(request)
        with connection:
            session = SshSession(
                pid=pid,
                started=started or 0,
                network=target.network,
                cluster=target.grant.cluster,
                user=target.grant.user,
                guest=name_guest(target.guest),
                serial=serial,
                remote=request.remote,
                expires_at=target.grant.expires_at,
                connected_at=self._grants.clock(),
            )
            self._sessions.add(session)
            _send_connection(relay, connection)
        log.info(
            "ssh_session_opened",
            **session.model_dump(include={"cluster", "user", "guest", "serial", "remote"}),
        )

    def _wait_for_guest(self, request: SshRequest) -> tuple[SshTarget, int, socket.socket]:
        """Return the guest, the certificate's serial number, and a socket that is connected to the guest.

        Wait at most `GRANT_S` for a missing grant or network namespace, then raise Forbidden or NotFound. Raise Refused
        if the guest does not accept the connection. Raise TooManyRequests if too many of the user's requests wait.
        """
        deadline = time.monotonic() + GRANT_S
        proven = _retry(lambda: self._verify(request), deadline)
        with self._count_waiting("a guest", proven.user, MAX_OF_USER):
            try:
                target, connection = self._connect_guest(proven, request.guest)
            except (Forbidden, NotFound):
                with self._count_waiting("a grant", proven.user, MAX_WAITING):
                    target, connection = _retry(lambda: self._connect_guest(proven, request.guest), deadline)
        return target, proven.serial, connection

    def _verify(self, request: SshRequest) -> ProvenUser:
        from virtcloud.agent.gateway.ssh_certificates import verify_certificate  # noqa: PLC0415 - needs 9 MB of memory

        authority = self._grants.authority
        if authority is None or self._grants.segments is None:
            raise Forbidden("this gateway's agent has just started and has not reached SBF yet: try again later")
        return verify_certificate(request.proof, authority, self._grants.clock())

    @contextmanager
    def _count_waiting(self, awaited: str, user: UserName, limit: int) -> Iterator[None]:
        """Count a waiting request within the block.

        Raise TooManyRequests if ``limit`` of the user's requests already wait for ``awaited``, or if the user's
        requests would occupy more than half of the threads that other users' requests leave free. One request may
        always wait.
        """
        with self._lock:
            others = sum(count for key, count in self._counts.items() if key[0] == awaited and key[1] != user)
            limit = max(1, min(limit, (MAX_REQUESTS - others) // 2))
            if self._counts[awaited, user] >= limit:
                raise TooManyRequests(
                    f"too many requests of {user} wait for {awaited}: expected at most {limit}; "
                    "try again in some seconds, or check grants and guests: virtcloud access list, virtcloud guest list"
                )
            self._counts[awaited, user] += 1
        try:
            yield
        finally:
            with self._lock:
                self._counts -= Counter({(awaited, user): 1})

    def _connect_guest(self, proven: ProvenUser, guest: str) -> tuple[SshTarget, socket.socket]:
        target = find_target(proven, guest, self._grants.segments or (), self._grants.clock())
        try:
            return target, self._connect(target.network, target.guest.addresses, SSH_PORT)
        except Refused as error:
            raise Refused(
                f"guest {target.guest.name} cannot be reached: {error}; it may still be starting (virtcloud guest log)"
            ) from error


def _retry(work: Callable[[], T], deadline: float) -> T:
    while True:
        try:
            return work()
        except (Forbidden, NotFound):
            if time.monotonic() >= deadline:
                raise
        time.sleep(POLL_S)


def _read_request(relay: socket.socket) -> SshRequest:
    deadline, data = time.monotonic() + REQUEST_S, b""
    try:
        while not data.endswith(b"\n") and len(data) <= MAX_REQUEST:
            relay.settimeout(max(deadline - time.monotonic(), 0))
            received = relay.recv(MAX_REQUEST)
            if not received:
                break
            data += received
        relay.settimeout(REQUEST_S)
        return SshRequest.model_validate_json(data)
    except (TimeoutError, BlockingIOError) as error:
        raise Forbidden(f"expected a request for a guest within {REQUEST_S:g} s, got {len(data)} bytes") from error
    except ValidationError as error:
        raise Forbidden(f"expected a request for a guest: {error.error_count()} errors") from error


def _send_connection(relay: socket.socket, connection: socket.socket) -> None:
    rights = array.array("i", [connection.fileno()])
    try:
        relay.sendmsg([b"\0"], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, rights)])
    except OSError as error:
        raise Refused(f"the relay has ended: {error}") from error
