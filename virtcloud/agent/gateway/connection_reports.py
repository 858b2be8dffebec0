"""Reports to SBF about a gateway's open connections: after each change, and once a minute to update byte counters."""

import threading
from collections.abc import Callable
from typing import Final, Generic, Protocol, TypeVar

from virtcloud.agent import log
from virtcloud.agent.supervision import ReportProgress, StartSupervisedThread
from virtcloud.model.errors import NoSuchCall, VirtcloudError
from virtcloud.model.ssh_connections import SshConnection, SshConnections
from virtcloud.model.values import Name
from virtcloud.model.vpn import VpnConnection, VpnConnections

INTERVAL_S: Final = 60.0
"""Seconds between two reports of unchanged connections."""
PAUSE_S: Final = 1.0
"""Shortest time in seconds between two reports, so that one report contains many devices that connect at once."""
FIRST_RETRY_S: Final = 2.0
MAX_IDLE_S: Final = 300.0
C = TypeVar("C")


class ConnectionsApi(Protocol):
    """The calls to SBF that send the reports."""

    def report_connections(self, gateway: str, report: VpnConnections) -> None:
        """Report all connected devices of a gateway. The report replaces the former report."""

    def report_ssh_connections(self, gateway: str, report: SshConnections) -> None:
        """Report all SSH connections of a gateway. The report replaces the former report."""


class ConnectionReport(Generic[C]):
    """Reports one kind of connections."""

    def __init__(
        self, kind: str, read: Callable[[], tuple[C, ...] | None], send: Callable[[tuple[C, ...]], object]
    ) -> None:
        """Create a reporter of one kind of connections.

        ``read`` returns the open connections, or None on a host without a server. ``send`` sends connections to SBF.
        """
        self._kind = kind
        self._read = read
        self._send = send
        self._reported: tuple[C, ...] | None = None

    def report(self) -> bool:
        """Report the connections, and log errors. Return False if the report must be repeated soon.

        Also send an empty report after a report with connections, and as a server's first report: connections may have
        ended while no agent was running.
        """
        read = self._read()
        connections = read or ()
        if not connections and self._reported in {(), None if read is None else ()}:
            return True
        try:
            self._send(connections)
        except NoSuchCall as error:  # an earlier version of SBF: repeat after the usual interval
            log.warning(f"{self._kind}_connections_not_reported", error=error)
            return True
        except VirtcloudError as error:
            log.warning(f"{self._kind}_connections_not_reported", error=error)
            return False
        self._reported = connections
        return True


class ConnectionReporter:
    """Reports the connected devices and the SSH connections of a gateway."""

    def __init__(
        self,
        gateway: Name,
        sbf: ConnectionsApi,
        read: Callable[[], tuple[VpnConnection, ...] | None],
        read_ssh: Callable[[], tuple[SshConnection, ...] | None] = lambda: None,
        interval_s: float = INTERVAL_S,
    ) -> None:
        """``read`` returns the VPN connections, or None on a host without a VPN server.

        ``read_ssh`` returns the SSH connections, or None on a host without an sshd for users.
        """
        self._vpn = ConnectionReport(
            "vpn", read, lambda found: sbf.report_connections(gateway, VpnConnections(connections=found))
        )
        self._ssh = ConnectionReport(
            "ssh", read_ssh, lambda found: sbf.report_ssh_connections(gateway, SshConnections(connections=found))
        )
        self._interval_s = interval_s
        self._changed = threading.Event()
        self._stopping = threading.Event()

    def start(self, start: StartSupervisedThread) -> None:
        """Start the thread that reports."""
        start("connections", self._run, MAX_IDLE_S)

    def notice_change(self) -> None:
        """Wake the reporting thread. Thread-safe."""
        self._changed.set()

    def stop(self) -> None:
        """Request the end of the thread."""
        self._stopping.set()
        self._changed.set()

    def report(self) -> bool:
        """Report all connections. Return False if a report must be repeated soon."""
        return all([self._vpn.report(), self._ssh.report()])

    def _run(self, progress: ReportProgress) -> None:
        retry = FIRST_RETRY_S
        while not self._stopping.is_set():
            self._changed.clear()
            done = self.report()
            progress()
            if self._stopping.wait(PAUSE_S):
                return
            if done:
                retry = FIRST_RETRY_S
                self._changed.wait(self._interval_s)
            else:
                self._stopping.wait(retry)
                retry = min(2 * retry, self._interval_s)
