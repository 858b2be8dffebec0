"""Reports to SBF about the traffic of clusters: the counters of the clusters' segments on the agent's host.

The counters come from the reconciler's readings of the host, without additional netlink requests. One call reports the
clusters of the host, up to `MAX_SEGMENTS` segments. The agent sends at most one call in `MIN_INTERVAL_S` seconds.
"""

import threading
import time
from collections.abc import Callable, Iterable, Iterator
from typing import Final, Protocol

from virtcloud.agent import log
from virtcloud.agent.network import names
from virtcloud.agent.network.interfaces import KernelInterface
from virtcloud.agent.supervision import ReportProgress, StartSupervisedThread
from virtcloud.model.errors import NoSuchCall, VirtcloudError
from virtcloud.model.traffic import MAX_SEGMENTS, SegmentCounters, TrafficReport
from virtcloud.model.values import Name

MIN_INTERVAL_S: Final = 15.0
"""Shortest time in seconds between two reports."""
EARLIER_SBF_PAUSE_S: Final = 3600.0
"""Pause in seconds after a report that SBF refused because SBF's version lacks the call.

The agent reports again after the pause, because SBF may be upgraded while the agent runs.
"""
IDLE_S: Final = 60.0
MAX_IDLE_S: Final = 300.0


class TrafficApi(Protocol):
    """The call of SBF's API by which the agent sends the reports."""

    def report_traffic(self, element: str, report: TrafficReport) -> None:
        """Report the counters of a host or gateway. Raise NoSuchCall if SBF's version lacks this call."""


def find_counters(interfaces: Iterable[KernelInterface]) -> tuple[SegmentCounters, ...]:
    """Return the counters of at most `MAX_SEGMENTS` segments. Pure.

    The counters of a segment are the counters of the port that connects the segment's bridge with the uplink.
    """
    listed = list(interfaces)
    ports: dict[int, list[KernelInterface]] = {}
    for interface in listed:
        if interface.master:
            ports.setdefault(interface.master, []).append(interface)
    found = (counters for bridge in listed for counters in _of_bridge(bridge, ports.get(bridge.index, [])))
    return tuple(found)[:MAX_SEGMENTS]


def _of_bridge(bridge: KernelInterface, ports: Iterable[KernelInterface]) -> Iterator[SegmentCounters]:
    cluster = names.cluster_of_alias(bridge.alias) if bridge.kind == "bridge" else None
    for port in ports if cluster is not None else ():
        if port.counters is not None and _is_uplink_port(port, bridge, cluster):
            counters = port.counters
            yield SegmentCounters(
                network=str(cluster),
                port=f"{port.name}#{port.index}",
                received_bytes=counters.received_bytes,
                sent_bytes=counters.sent_bytes,
                received_frames=counters.received_frames,
                sent_frames=counters.sent_frames,
            )


def _is_uplink_port(port: KernelInterface, bridge: KernelInterface, cluster: str | None) -> bool:
    if port.name == names.uplink_of_alias(bridge.alias):
        return True
    is_tagged = port.kind == "vlan" and names.cluster_of_alias(port.alias) == cluster
    return is_tagged and names.vlan_of_vpn_port(port.name) is None


class TrafficReporter:
    """Reports the counters of one host after the reconciler has read the host. Does not repeat failed reports."""

    def __init__(self, element: Name, sbf: TrafficApi, clock: Callable[[], float] = time.monotonic) -> None:
        """Create a reporter. ``clock`` returns seconds."""
        self._element = element
        self._sbf = sbf
        self._clock = clock
        self._read = threading.Event()
        self._stopping = False
        self._newest: tuple[SegmentCounters, ...] = ()
        self._reported: tuple[SegmentCounters, ...] = ()
        self._next_s = clock()

    def start(self, start: StartSupervisedThread) -> None:
        """Start the thread that reports."""
        start("traffic", self._run, MAX_IDLE_S)

    def stop(self) -> None:
        """Request the end of the thread."""
        self._stopping = True
        self._read.set()

    @property
    def is_waiting(self) -> bool:
        """Whether the pause after the last report continues."""
        return self._clock() < self._next_s

    def notice(self, interfaces: Iterable[KernelInterface]) -> None:
        """Request a report of the counters of ``interfaces``, and return at once.

        ``interfaces`` are the host's interfaces as the reconciler has just read them. During the pause after a report,
        do nothing.
        """
        if not self.is_waiting:
            self._newest = find_counters(interfaces)
            self._read.set()

    def report(self) -> None:
        """Report the newest counters. Log errors.

        Do nothing if neither this report nor the last report has counters.
        """
        newest = self._newest
        if not newest and not self._reported:
            return
        self._next_s = self._clock() + MIN_INTERVAL_S
        try:
            self._sbf.report_traffic(self._element, TrafficReport(segments=newest))
        except NoSuchCall as error:
            log.info("traffic_not_reported", element=self._element, error=error)
            self._next_s = self._clock() + EARLIER_SBF_PAUSE_S
        except VirtcloudError as error:
            log.warning("traffic_not_reported", element=self._element, error=error)
        else:
            self._reported = newest

    def _run(self, progress: ReportProgress) -> None:
        while not self._stopping:
            if self._read.wait(IDLE_S):
                self._read.clear()
                self.report()
            progress()
