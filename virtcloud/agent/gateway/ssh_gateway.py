"""SSH access through this gateway: the gateway's sshd, and users' connections to guests.

The sshd and the connections continue while the agent restarts. While no agent runs, no user can open a connection.
"""

import inspect
import os
import pwd
import shutil
import signal
import socket
import sys
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import Final

from virtcloud.agent import log
from virtcloud.agent.files import refuse_os_errors
from virtcloud.agent.gateway import ssh_relay_program, sshd_program
from virtcloud.agent.gateway.guest_connections import ConnectInNetwork
from virtcloud.agent.gateway.ssh_admission import make_connection
from virtcloud.agent.gateway.ssh_difference import ObservedSshd, RunSshd, SshStep
from virtcloud.agent.gateway.ssh_requests import SshGrants, SshRequests
from virtcloud.agent.gateway.ssh_sessions import SshSessions
from virtcloud.agent.gateway.sshd_config import (
    CONFIG,
    FOLDER,
    NSSWITCH,
    PASSWD,
    RELAY,
    REQUESTS,
    SOCKET,
    digest_sshd_files,
    render_sshd_files,
)
from virtcloud.agent.host_services.server_processes import RecordedProcess, ServerLaunch, read_record, write_record
from virtcloud.agent.network.interfaces import BOOT_ID
from virtcloud.agent.own_processes import list_isolated_processes, read_start_time, wait_for_end
from virtcloud.model.errors import Refused
from virtcloud.model.ssh_access import SshServer
from virtcloud.model.ssh_connections import SshConnection
from virtcloud.model.wanted import HostWanted, Segment

USER: Final = "sshd"
"""The user as which the sshd runs. OpenSSH's package creates this user for sshd's unprivileged processes."""
REMEDY: Final = "apt-get install openssh-server (Debian), dnf install openssh-server (RHEL)"
SEARCH_PATH: Final = "/usr/sbin:/sbin:/usr/local/sbin:/usr/bin:/bin"
IPV6: Final = Path("/proc/net/if_inet6")
REPLACED: Final = {"/etc/passwd": PASSWD, "/etc/nsswitch.conf": NSSWITCH}
RECORD, SESSIONS = "record.json", "sessions.json"
RECORDS: Final = (RECORD, SESSIONS, ".record.new", "sessions.new", f"{REQUESTS}/{SOCKET}")
START_S: Final = 5.0
"""Time limit in seconds for a started sshd to answer."""
STOP_S: Final = 1.0
RETRY_S: Final = 1.0
"""Pause in seconds after an error of a thread (`run_again`)."""


class SshdRecord(RecordedProcess):
    """The record of the sshd's process. ``config`` is the digest of the sshd's files, or "" until the sshd answers."""

    config: str = ""


class SshGateway:
    """SSH access through this gateway. All operations are idempotent."""

    def __init__(
        self,
        folder: Path,
        connect: ConnectInNetwork,
        clock: Callable[[], datetime] = lambda: datetime.now(UTC),
    ) -> None:
        """Create an object with records in ``folder``. ``connect`` connects to guests."""
        self._folder = folder
        self._connect = connect
        self._boot = BOOT_ID.read_text().strip()
        self._grants = SshGrants(clock)
        self._sessions = SshSessions(folder / SESSIONS, clock)
        self._requests: SshRequests | None = None
        self._threads: list[threading.Thread] = []
        self._wanted: SshServer | None = None

    @property
    def sessions(self) -> SshSessions:
        """The connections of users."""
        return self._sessions

    @property
    def connections(self) -> tuple[SshConnection, ...] | None:
        """The users' connections for reports to SBF. Thread-safe.

        The value is None if no sshd is wanted and no connection is open.
        """
        if self._wanted is None and not self._sessions.sessions:
            return None
        return tuple(make_connection(session) for session in self._sessions.sessions)

    def receive(self, wanted: HostWanted, segments: Sequence[Segment]) -> None:
        """Apply the grants of a wanted document at once. ``segments`` are the segments that this agent supports."""
        self._wanted = wanted.ssh
        self._grants.segments = tuple(segment for segment in segments if segment.ssh is not None)
        self._grants.authority = None if wanted.ssh is None else wanted.ssh.authority
        self._sessions.receive(self._grants.segments)

    def read(self) -> ObservedSshd:
        """Return the observed sshd. Take over a running sshd that an earlier agent process started.

        If the host has no user `USER`, or if the sshd cannot be taken over, return the reason as a fault, so that the
        rest of the host is reconciled.
        """
        record = read_record(self._folder / RECORD, SshdRecord)
        running = record if record is not None and record.is_running(self._boot) else None
        try:
            wanted = None if self._wanted is None else digest_sshd_files(self._render(self._wanted))
            if running is not None:
                self._ensure_requests()
        except Refused as error:
            return ObservedSshd(None if running is None else running.config, (str(error),))
        if record is None and (self._folder / RECORD).exists():
            return ObservedSshd("", ("the sshd's record is unreadable",), wanted)
        if running is None:
            return ObservedSshd(wanted=wanted, has_remains=any((self._folder / name).exists() for name in RECORDS))
        return ObservedSshd(running.config, () if running.config else ("the sshd does not answer",), wanted)

    def apply(self, step: SshStep) -> None:
        """Apply one step. Raise Refused if the step fails."""
        if isinstance(step, RunSshd):
            self.ensure_sshd(step.server)
        else:
            self.ensure_no_sshd()

    def ensure_sshd(self, server: SshServer) -> None:
        """Replace a running sshd by the sshd for ``server``. Raise Refused on failure."""
        self._stop_sshd()
        with refuse_os_errors(f"create the folder of the sshd in {self._folder}"):
            (self._folder / REQUESTS).mkdir(parents=True, exist_ok=True, mode=0o755)
            (self._folder / REQUESTS).chmod(0o755)
            # No recorded relay runs any more: relays end when the sshd ends (`_stop_sshd`) or the host crashes.
            (self._folder / SESSIONS).unlink(missing_ok=True)
        self._ensure_requests()
        files, user = self._render(server), find_ssh_user()
        launch = ServerLaunch("sshd", sshd_program.__name__, str(self._folder))
        try:
            pid = launch.wait_for_namespace()
            record = SshdRecord(pid=pid, started=read_start_time(pid) or 0, boot=self._boot)
            write_record(self._folder / RECORD, record)
            launch.configure(self._specify(server, files, user))
            _wait_for_answer(server.port, record, self._boot)
            write_record(self._folder / RECORD, record.model_copy(update={"config": digest_sshd_files(files)}))
        except BaseException:
            launch.close()
            self._stop_sshd()
            raise
        launch.close()
        log.info("sshd_started", port=server.port, pid=pid)

    def ensure_no_sshd(self) -> None:
        """Stop the sshd if it runs, and remove its records.

        Raise Refused if the sshd does not end, or a record cannot be removed.
        """
        self._stop_sshd()
        self.close()
        with refuse_os_errors(f"remove the records of {self._folder}"):
            for name in RECORDS:
                (self._folder / name).unlink(missing_ok=True)

    def close(self) -> None:
        """Stop answering the requests of relays. The sshd and the connections continue."""
        if self._requests is None:
            return
        self._requests.close()
        self._sessions.stop()
        for thread in self._threads:
            thread.join(STOP_S)
        self._requests = None

    def _ensure_requests(self) -> None:
        """Start two threads, unless they run: one answers relays, the other controls connections.

        Take over the recorded connections of an earlier agent process. After an error, the next call tries again.
        """
        if self._requests is not None:
            return
        # A former thread may still run. Wait for its end: otherwise a later call of `SshSessions.stop` could end the
        # former thread instead of the new thread.
        for thread in self._threads:
            thread.join()
        self._threads, path = [], self._folder / REQUESTS / SOCKET
        requests = SshRequests(path, find_ssh_user().pw_uid, self._grants, self._sessions, self._connect)
        try:
            self._sessions.take_over()
            # "SSH requests" starts last: if an earlier operation raises an error, no request has been answered
            for name, run in (("SSH sessions", self._sessions.run), ("SSH requests", requests.run)):
                thread = threading.Thread(target=run_again, args=(run,), name=name, daemon=True)
                thread.start()
                self._threads.append(thread)
        except BaseException:
            requests.close()
            for thread in self._threads:
                self._sessions.stop()
                thread.join()
            self._sessions.release()
            raise
        self._requests = requests

    def _render(self, server: SshServer) -> dict[str, str]:
        user = find_ssh_user()
        relay = f"#!{Path(sys.executable).resolve()} -IS\n{inspect.getsource(ssh_relay_program)}"
        return render_sshd_files(server, relay, user.pw_uid, user.pw_gid, ipv6=IPV6.exists())

    def _specify(self, server: SshServer, files: dict[str, str], user: pwd.struct_passwd) -> dict[str, object]:
        return {
            "folder": FOLDER,
            "files": files,
            "executable": RELAY,
            "replaced": REPLACED,
            "requests": REQUESTS,
            "socket_folder": str(self._folder / REQUESTS),
            "port": server.port,
            "ipv6": IPV6.exists(),
            "uid": user.pw_uid,
            "gid": user.pw_gid,
            "argv": [find_sshd(), "-D", "-f", f"{FOLDER}/{CONFIG}"],
        }

    def _stop_sshd(self) -> None:
        """Kill the sshd: the kernel then kills all processes of the sshd's PID namespace.

        Raise Refused if the sshd does not end.
        """
        record = read_record(self._folder / RECORD, SshdRecord)
        for running in self._find_running() if record is None else [record]:
            with suppress(ProcessLookupError):
                descriptor = os.pidfd_open(running.pid)
                try:
                    if running.is_running(self._boot):  # another process may have got the process ID
                        signal.pidfd_send_signal(descriptor, signal.SIGKILL)
                        wait_for_end(descriptor, f"sshd, process {running.pid},")
                finally:
                    os.close(descriptor)

    def _find_running(self) -> list[SshdRecord]:
        """Return records of this gateway's sshd processes, which have the gateway's folder of requests mounted."""
        pids = list[int]()
        with suppress(FileNotFoundError, Refused):  # without the folder or the user, no sshd runs
            pids = list_isolated_processes(find_ssh_user().pw_uid, self._folder / REQUESTS, Path(FOLDER) / REQUESTS)
        return [SshdRecord(pid=pid, started=read_start_time(pid) or 0, boot=self._boot) for pid in pids]


def run_again(work: Callable[[], object]) -> None:
    """Call ``work`` until a call ends without an error. Log each error and wait `RETRY_S` seconds."""
    while True:
        try:
            work()
        except Exception as error:  # noqa: BLE001 - without the thread, no user connects, or no connection ends in time
            log.internal_error(error, thread=threading.current_thread().name)
            time.sleep(RETRY_S)
        else:
            return


def _wait_for_answer(port: int, record: SshdRecord, boot: str) -> None:
    deadline = time.monotonic() + START_S
    while time.monotonic() < deadline:
        if not record.is_running(boot):
            raise Refused("cannot start sshd: sshd ended; the host's log has the reason (journalctl -t sshd)")
        with suppress(OSError), socket.create_connection(("127.0.0.1", port), 1) as connection:
            if connection.recv(4) == b"SSH-":
                return
        time.sleep(0.02)
    raise Refused(f"cannot start sshd: sshd does not answer at port {port} within {START_S:.0f} s")


def find_ssh_user() -> pwd.struct_passwd:
    """Return the sshd's user. Raise Refused with a remedy if the host lacks this user."""
    try:
        return pwd.getpwnam(USER)
    except KeyError as error:
        raise Refused(f"this gateway has no user {USER}, as which sshd runs: {REMEDY}") from error


def find_sshd() -> str:
    """Return the absolute path with which sshd must be started. Raise Refused if sshd is not installed."""
    path = shutil.which("sshd", path=SEARCH_PATH)
    if path is None:
        raise Refused(f"SSH access needs the program sshd, which is not installed: {REMEDY}")
    return path


def describe_sshd() -> str:
    """Return a text with the path of sshd and its user. Raise Refused with a remedy if sshd or its user is missing."""
    return f"{find_sshd()}, user {find_ssh_user().pw_name}"
