from dataclasses import dataclass, field

from virtcloud.agent.network.interfaces import InterfaceCounters, KernelInterface
from virtcloud.agent.traffic.traffic_reports import (
    EARLIER_SBF_PAUSE_S,
    MIN_INTERVAL_S,
    TrafficReporter,
    find_counters,
)
from virtcloud.model.errors import NoSuchCall, ServiceUnreachable, VirtcloudError
from virtcloud.model.traffic import TrafficReport
from virtcloud.model.values import Name


def counters(received: int) -> InterfaceCounters:
    return InterfaceCounters(received, 2, 3, 4)


def tagged_segment(received: int = 1) -> list[KernelInterface]:
    alias = "virtcloud:a"
    return [
        KernelInterface(1, "eth0", up=True, counters=counters(99)),
        KernelInterface(2, "br100", "bridge", alias),
        KernelInterface(3, "eth0.100", "vlan", alias, parent=1, master=2, vlan=100, counters=counters(received)),
        KernelInterface(4, "vc100-9f3a2b1c", "veth", master=2, counters=counters(50)),
        KernelInterface(5, "vpn-udp.100", "vlan", alias, master=2, vlan=100, counters=counters(60)),
    ]


def test_only_the_tagged_interface_of_a_segment_is_counted() -> None:
    (found,) = find_counters(tagged_segment())
    assert (found.network, found.port) == ("a", "eth0.100#3")
    assert (found.received_bytes, found.sent_bytes, found.received_frames, found.sent_frames) == (1, 2, 3, 4)


def test_the_uplink_of_an_untagged_segment_is_counted() -> None:
    bridge = KernelInterface(2, "br100", "bridge", "virtcloud:a@eth1")
    uplink = KernelInterface(7, "eth1", master=2, counters=counters(5))
    (found,) = find_counters([bridge, uplink])
    assert (found.network, found.port, found.received_bytes) == ("a", "eth1#7", 5)


def test_bridges_of_others_are_not_counted() -> None:
    bridge = KernelInterface(2, "br100", "bridge", "somebody")
    assert find_counters([bridge, KernelInterface(3, "eth0.100", "vlan", master=2, counters=counters(5))]) == ()


@dataclass
class ReportedTraffic:
    """An SBF that records the reports, and a clock that a test advances."""

    now: float = 100.0
    error: VirtcloudError | None = None
    calls: int = 0
    received: list[list[int]] = field(default_factory=list)

    def report_traffic(self, element: str, report: TrafficReport) -> None:
        assert element == "brno-h1"
        self.calls += 1
        if self.error is not None:
            raise self.error
        self.received.append([segment.received_bytes for segment in report.segments])

    def reporter(self) -> TrafficReporter:
        return TrafficReporter(Name("brno-h1"), self, lambda: self.now)


def read(reporter: TrafficReporter, interfaces: list[KernelInterface]) -> None:
    reporter.notice(interfaces)
    reporter.report()


def test_a_host_without_clusters_reports_nothing() -> None:
    sbf = ReportedTraffic()
    read(sbf.reporter(), [KernelInterface(1, "eth0", up=True)])
    assert sbf.received == []


def test_the_end_of_the_last_cluster_is_reported_once() -> None:
    sbf = ReportedTraffic()
    reporter = sbf.reporter()
    read(reporter, tagged_segment())
    for _ in range(2):
        sbf.now += MIN_INTERVAL_S
        read(reporter, [])
    assert sbf.received == [[1], []]


def test_readings_in_quick_succession_cause_one_report() -> None:
    """The reconciler reads the host before and after each change."""
    sbf = ReportedTraffic()
    reporter = sbf.reporter()
    reporter.notice(tagged_segment(1))
    reporter.report()
    sbf.now += MIN_INTERVAL_S - 1
    reporter.notice(tagged_segment(2))
    assert reporter.is_waiting
    sbf.now += 1
    read(reporter, tagged_segment(3))
    assert sbf.received == [[1], [3]]


def test_a_failed_report_is_not_repeated() -> None:
    """SBF computes the average rate since the last report that it received, so the rates omit no traffic."""
    sbf = ReportedTraffic(error=ServiceUnreachable("SBF does not answer"))
    reporter = sbf.reporter()
    read(reporter, tagged_segment(1))
    sbf.error = None
    sbf.now += MIN_INTERVAL_S
    read(reporter, tagged_segment(2))
    assert sbf.received == [[2]]


def test_an_earlier_sbf_is_asked_once_an_hour() -> None:
    sbf = ReportedTraffic(error=NoSuchCall("this call is unknown"))
    reporter = sbf.reporter()
    for _ in range(3):
        reporter.notice(tagged_segment())
        if not reporter.is_waiting:
            reporter.report()
        sbf.now += MIN_INTERVAL_S
    assert sbf.calls == 1
    sbf.now += EARLIER_SBF_PAUSE_S
    sbf.error = None
    read(reporter, tagged_segment(4))
    assert sbf.received == [[4]]
