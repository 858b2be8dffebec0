"""The open connections through a gateway's sshd.

Each connection has its own relay process, so connections continue while the agent restarts. The agent ends a connection
by killing its relay.
"""

import os
import select
import signal
import threading
from collections.abc import Callable, Iterable
from contextlib import ExitStack, suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import Final

from pydantic import ValidationError

from virtcloud.agent import log
from virtcloud.agent.files import describe_os_error, refuse_os_errors
from virtcloud.agent.gateway.ssh_admission import SshSession, find_ended_ssh_sessions, update_ends
from virtcloud.agent.own_processes import read_start_time
from virtcloud.model.document import Document
from virtcloud.model.errors import Refused, TooManyRequests
from virtcloud.model.values import UserName
from virtcloud.model.wanted import Segment

MAX_OF_USER: Final = 128
MAX_SESSIONS: Final = 1024
"""Limits of open connections: of one user, and of all users together. Each connection needs about 15 MB of memory."""
CHECK_S: Final = 5.0
"""Longest time in seconds between two searches for grants that have ended.

Without this limit, a clock that is set forward while `SshSessions.run` waits would delay the end of connections.
"""


class RecordedSshSessions(Document):
    """The content of the file in which `SshSessions` records the open connections."""

    sessions: tuple[SshSession, ...] = ()


class SshSessions:
    """The open connections through a gateway's sshd. Thread-safe."""

    def __init__(self, path: Path, clock: Callable[[], datetime] = lambda: datetime.now(UTC)) -> None:
        """Create an object that stores the connections in the file ``path``."""
        self._path = path
        self._clock = clock
        self._lock = threading.Lock()
        self._open: dict[int, SshSession] = {}
        """The open connections by descriptor of the relay's process (pidfd_open(2))."""
        self._segments: tuple[Segment, ...] | None = None
        self._wake = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        self._stopping = False
        self.changed: Callable[[], object] = lambda: None
        """A function that is called after each change of the open connections."""

    @property
    def sessions(self) -> tuple[SshSession, ...]:
        """All open connections."""
        with self._lock:
            return tuple(self._open.values())

    def receive(self, segments: Iterable[Segment]) -> None:
        """Apply the grants of a wanted document: end connections that must end (`find_ended_ssh_sessions`).

        Record the present ends of the grants, which a later agent process without a wanted document applies.
        """
        with self._lock:
            self._segments = tuple(segments)
            former = self._open
            self._open = update_ends(former, self._segments)
            is_changed = self._open != former
        self.end_expired()
        if is_changed:
            self._write()
        os.eventfd_write(self._wake, 1)  # `run` computes its pause again: a grant may end earlier

    def take_over(self) -> None:
        """Read the connections that an earlier agent process recorded. Manage the connections whose relays still run.

        This method can be called again after an error. Raise Refused if a relay cannot be examined, for example because
        the agent has reached its limit of open files.
        """
        managed = {(session.pid, session.started) for session in self.sessions}
        for session in self._read():
            # Compare the start times first: the kernel may have given the ID of an ended relay to a thread, for which
            # pidfd_open(2) would fail.
            if (session.pid, session.started) in managed or read_start_time(session.pid) != session.started:
                continue
            with refuse_os_errors(f"take over the SSH connection of {session.user}"), suppress(ProcessLookupError):
                self._add(session)
        self.end_expired()

    def release(self) -> None:
        """Stop managing all connections. The connections continue, and stay recorded for the next `take_over`.

        Call this method only while neither `run` nor `add` runs.
        """
        with self._lock:
            for descriptor in self._open:
                os.close(descriptor)
            self._open.clear()

    def add(self, session: SshSession) -> None:
        """Record a connection. Call this method before the socket is passed to the relay.

        Raise TooManyRequests if a limit would be exceeded. Raise Refused if the relay has ended or cannot be examined.
        """
        try:
            self._add(session, is_limited=True)
        except ProcessLookupError as error:
            raise Refused(f"the relay has ended: {error.strerror}") from error
        except OSError as error:
            raise Refused(f"cannot examine the relay of {session.user}: {describe_os_error(error)}") from error
        self._write()
        self.changed()
        self.end_expired()
        os.eventfd_write(self._wake, 1)

    def end_expired(self) -> None:
        """Kill the relay of each connection whose grant is missing or has ended, or whose certificate was revoked."""
        with self._lock:
            ended = list(find_ended_ssh_sessions(self._open.values(), self._segments, self._clock()))
            descriptors = {(session.pid, session.started): descriptor for descriptor, session in self._open.items()}
            for session, reason in ended:
                log.info("ssh_session_ended", user=session.user, guest=session.guest, serial=session.serial, why=reason)
                with suppress(ProcessLookupError):
                    signal.pidfd_send_signal(descriptors[session.pid, session.started], signal.SIGKILL)

    def run(self) -> None:
        """Remove connections whose relays have ended, and end connections at the end of their grants.

        Return after a call of `stop` and a last check of all relays. `run` can then be called again.
        """
        is_last = False
        while not is_last:
            is_last = self._stopping
            waiting = select.poll()
            with self._lock:
                descriptors = list(self._open)
            for descriptor in (self._wake, *descriptors):
                waiting.register(descriptor, select.POLLIN)
            ready = {descriptor for descriptor, _ in waiting.poll(0 if is_last else self._find_pause() * 1000)}
            with suppress(BlockingIOError):
                os.eventfd_read(self._wake)
            self._forget(ready - {self._wake})
            self.end_expired()
        self._stopping = False

    def stop(self) -> None:
        """Request the end of `run`. The connections continue."""
        self._stopping = True
        os.eventfd_write(self._wake, 1)

    def _check_limits(self, user: UserName) -> None:
        of_user = sum(session.user == user for session in self._open.values())
        if of_user >= MAX_OF_USER or len(self._open) >= MAX_SESSIONS:
            raise TooManyRequests(
                f"too many connections through this gateway: expected at most {MAX_OF_USER} of one user and "
                f"{MAX_SESSIONS} in all; end some of them, or use '--through sbf'"
            )

    def _add(self, session: SshSession, *, is_limited: bool = False) -> None:
        descriptor = os.pidfd_open(session.pid)
        with ExitStack() as refused:
            refused.callback(os.close, descriptor)
            if read_start_time(session.pid) != session.started:
                raise ProcessLookupError(3, "no such process")
            with self._lock:
                if is_limited:
                    self._check_limits(session.user)
                self._open[descriptor] = session
            refused.pop_all()

    def _find_pause(self) -> float:
        now = self._clock()
        ends = [session.expires_at for session in self.sessions]
        ends += [grant.expires_at for segment in self._segments or () if segment.ssh for grant in segment.ssh.grants]
        left = min(((end - now).total_seconds() for end in ends if end > now), default=CHECK_S)
        return min(left, CHECK_S)

    def _forget(self, descriptors: Iterable[int]) -> None:
        for descriptor in descriptors:
            with self._lock:
                session = self._open.pop(descriptor)
            os.close(descriptor)
            log.info("ssh_session_closed", user=session.user, guest=session.guest, serial=session.serial)
            self._write()
            self.changed()

    def _read(self) -> tuple[SshSession, ...]:
        try:
            return RecordedSshSessions.model_validate_json(self._path.read_bytes()).sessions
        except FileNotFoundError:
            return ()
        except (OSError, ValidationError) as error:
            log.warning("ssh_sessions_unreadable", file=self._path, error=error)
            return ()

    def _write(self) -> None:
        """Write the open connections to the file, or log the error.

        After a restart, the agent cannot end the connections that are missing from the file.
        """
        with self._lock:
            text = RecordedSshSessions(sessions=tuple(self._open.values())).model_dump_json()
            try:
                with refuse_os_errors(f"record the SSH connections in {self._path}"):
                    new = self._path.with_suffix(".new")  # no fsync(2): a crash of the host ends all connections
                    new.touch(mode=0o600)
                    new.write_text(text)
                    new.rename(self._path)
            except Refused as error:
                log.warning("ssh_sessions_not_recorded", error=error)
