"""Monitor of a table of nftables: the kernel notifies the agent of each change.

The reconciler reads the host only every `timing.check` seconds. While SBF does not answer, the reconciler corrects only
the filters of guests. A table that protects a gateway must be restored sooner than the reconciler would restore it.
"""

import select
import socket
import threading
from collections.abc import Callable
from typing import Final

from virtcloud.agent import log
from virtcloud.agent.network.libnftables import NETLINK_NETFILTER
from virtcloud.agent.supervision import ReportProgress, StartSupervisedThread
from virtcloud.model.errors import VirtcloudError

SOL_NETLINK: Final = 270
NETLINK_ADD_MEMBERSHIP: Final = 1
NFNLGRP_NFTABLES: Final = 7  # linux/netfilter/nfnetlink.h
CHECK_S: Final = 5.0
"""Seconds between two checks whether the thread must end."""
MAX_IDLE_S: Final = 60.0
MAX_MESSAGE: Final = 1 << 16


class TableMonitor:
    """Calls a function after each change of a table in the network namespace of the thread that calls `start`."""

    def __init__(self, table: str, restore: Callable[[], object]) -> None:
        """Create a monitor that calls ``restore`` after each change of ``table``, even after a change by this agent."""
        self._table = table.encode() + b"\0"
        self._restore = restore
        self._stopping = threading.Event()

    def start(self, start: StartSupervisedThread) -> None:
        """Start the thread. On a kernel without nftables, log a warning and start no thread."""
        try:
            notices = _open_notices()
        except OSError as error:
            log.warning("packet_filter_not_monitored", error=error)
            return
        start("packet filter monitor", lambda progress: self._run(notices, progress), MAX_IDLE_S)

    def stop(self) -> None:
        """Request the end of the thread."""
        self._stopping.set()

    def _run(self, notices: socket.socket, progress: ReportProgress) -> None:
        with notices:
            while not self._stopping.is_set():
                if self._has_changed(notices):
                    try:
                        self._restore()
                    except VirtcloudError as error:
                        log.warning("packet_filter_not_restored", error=error)
                progress()

    def _has_changed(self, notices: socket.socket) -> bool:
        poll = select.poll()  # select(2) accepts no descriptor above 1023
        poll.register(notices, select.POLLIN)
        is_readable, has_changed = bool(poll.poll(CHECK_S * 1000)), False
        while is_readable:
            try:
                has_changed |= self._table in notices.recv(MAX_MESSAGE)
            except BlockingIOError:
                break
            except OSError as error:  # ENOBUFS: the socket's buffer was full, and notices were lost
                log.info("packet_filter_notices_lost", error=error)
                return True
        return has_changed


def _open_notices() -> socket.socket:
    notices = socket.socket(socket.AF_NETLINK, socket.SOCK_RAW | socket.SOCK_CLOEXEC, NETLINK_NETFILTER)
    try:
        notices.bind((0, 0))
        notices.setsockopt(SOL_NETLINK, NETLINK_ADD_MEMBERSHIP, NFNLGRP_NFTABLES)
        notices.setblocking(False)
    except OSError:
        notices.close()
        raise
    return notices
