"""Reports of a gateway's connected devices to SBF: after each change, and once a minute because of the counters."""

import threading
from collections.abc import Callable
from typing import Final, Protocol

from virtcloud.agent import log
from virtcloud.agent.supervision import ReportProgress, StartSupervisedThread
from virtcloud.model.errors import VirtcloudError
from virtcloud.model.values import Name
from virtcloud.model.vpn import VpnConnection, VpnConnections

INTERVAL_S: Final = 60.0
"""Seconds between two reports of unchanged connections."""
PAUSE_S: Final = 1.0
"""Seconds from a report to the next one. So a report contains all changes of many devices that connect at once."""
FIRST_RETRY_S: Final = 2.0
MAX_IDLE_S: Final = 300.0


class ConnectionsApi(Protocol):
    """The call of SBF that reports need."""

    def report_connections(self, gateway: str, report: VpnConnections) -> None:
        """Report all connections of a gateway. The report replaces the former report."""


class ConnectionReporter:
    """Reports the connections of one gateway. A host without OpenVPN servers sends no reports."""

    def __init__(
        self,
        gateway: Name,
        sbf: ConnectionsApi,
        read: Callable[[], tuple[VpnConnection, ...] | None],
        interval_s: float = INTERVAL_S,
    ) -> None:
        """Report the connections that ``read`` returns, or None on a host without OpenVPN servers."""
        self._gateway = gateway
        self._sbf = sbf
        self._read = read
        self._interval_s = interval_s
        self._changed = threading.Event()
        self._stopping = threading.Event()
        self._reported: tuple[VpnConnection, ...] | None = None

    def start(self, start: StartSupervisedThread) -> None:
        """Start the thread that reports."""
        start("VPN connections", self._run, MAX_IDLE_S)

    def notice_change(self) -> None:
        """Report soon. Any thread may call this method."""
        self._changed.set()

    def stop(self) -> None:
        """Request the end of the thread."""
        self._stopping.set()
        self._changed.set()

    def report(self) -> bool:
        """Report the connections, unless there are none as before. Return whether SBF knows them. Log errors.

        The first report is sent even without connections, because they may have ended while no agent ran.
        """
        read = self._read()
        connections = read or ()
        if not connections and self._reported in {(), None if read is None else ()}:
            return True
        try:
            self._sbf.report_connections(self._gateway, VpnConnections(connections=connections))
        except VirtcloudError as error:
            log.warning("vpn_connections_not_reported", gateway=self._gateway, error=error)
            return False
        self._reported = connections
        return True

    def _run(self, progress: ReportProgress) -> None:
        retry = FIRST_RETRY_S
        while not self._stopping.is_set():
            self._changed.clear()
            done = self.report()
            progress()
            retry = FIRST_RETRY_S if done else min(2 * retry, self._interval_s)
            if self._stopping.wait(PAUSE_S):
                return
            if done:
                self._changed.wait(self._interval_s)
            else:
                self._stopping.wait(retry)
