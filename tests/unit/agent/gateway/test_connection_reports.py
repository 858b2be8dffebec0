import threading
from datetime import UTC, datetime

import pytest

from virtcloud.agent.gateway.connection_reports import PAUSE_S, ConnectionReporter
from virtcloud.agent.supervision import start_unsupervised
from virtcloud.model.errors import ServiceUnreachable
from virtcloud.model.ssh_connections import SshConnection, SshConnections
from virtcloud.model.values import Name, UserName
from virtcloud.model.vpn import VpnConnection, VpnConnections, VpnProtocol

CONNECTION = VpnConnection(
    profile="p1", protocol=VpnProtocol.UDP, remote="192.0.2.1:5", connected_at=datetime(2026, 1, 1, tzinfo=UTC)
)
LOGIN = SshConnection(cluster="c1", user=UserName("alice"), serial=7, guest=Name("g1"), remote="192.0.2.1 5")
LIMIT_S = 10.0


class FakeVpnApi:
    """Records the reports. The first ``failures`` reports fail."""

    def __init__(self, failures: int = 0) -> None:
        self.failures = failures
        self.reports: list[int] = []
        self.ssh_reports: list[list[int]] = []
        self.reported = threading.Event()

    def report_connections(self, gateway: str, report: VpnConnections) -> None:
        assert gateway == "gw"
        if self.failures:
            self.failures -= 1
            raise ServiceUnreachable("SBF does not answer")
        self.reports.append(len(report.connections))
        self.reported.set()

    def report_ssh_connections(self, gateway: str, report: SshConnections) -> None:
        assert gateway == "gw"
        self.ssh_reports.append([connection.serial for connection in report.connections])


def test_a_host_without_openvpn_reports_nothing() -> None:
    api = FakeVpnApi()
    assert ConnectionReporter(Name("gw"), api, lambda: None).report()
    assert api.reports == []


def test_a_new_agent_reports_once_that_no_device_is_connected() -> None:
    """Devices that SBF knows as connected may have disconnected while no agent was running."""
    api = FakeVpnApi()
    reporter = ConnectionReporter(Name("gw"), api, lambda: ())
    assert (reporter.report(), reporter.report()) == (True, True)
    assert api.reports == [0]


def test_the_last_report_of_stopped_servers_has_no_connections() -> None:
    api, connections = FakeVpnApi(), [(CONNECTION,), None, None]
    reporter = ConnectionReporter(Name("gw"), api, lambda: connections.pop(0))
    assert (reporter.report(), reporter.report(), reporter.report()) == (True, True, True)
    assert api.reports == [1, 0]


def test_the_end_of_the_last_connection_is_reported() -> None:
    api, connections = FakeVpnApi(), [(CONNECTION,), ()]
    reporter = ConnectionReporter(Name("gw"), api, lambda: connections.pop(0))
    assert (reporter.report(), reporter.report()) == (True, True)
    assert api.reports == [1, 0]


def test_a_failed_report_of_the_end_is_repeated() -> None:
    api, connections = FakeVpnApi(), [(CONNECTION,), (), ()]
    reporter = ConnectionReporter(Name("gw"), api, lambda: connections.pop(0))
    reporter.report()
    api.failures = 1
    assert (reporter.report(), reporter.report()) == (False, True)
    assert api.reports == [1, 0]


def test_the_pauses_after_failed_reports_begin_with_two_seconds(monkeypatch: pytest.MonkeyPatch) -> None:
    api, pauses = FakeVpnApi(failures=4), list[float]()
    reporter = ConnectionReporter(Name("gw"), api, lambda: (CONNECTION,), interval_s=15)

    def wait(seconds: float) -> bool:
        pauses.append(seconds)
        return not api.failures

    monkeypatch.setattr(reporter._stopping, "wait", wait)
    reporter.start(lambda _name, work, _limit: work(lambda: None))  # type: ignore[arg-type, return-value]
    assert [pause for pause in pauses if pause != PAUSE_S] == [2, 4, 8]


def test_a_change_is_reported_without_waiting_for_the_interval() -> None:
    api, connections, is_read = FakeVpnApi(), [None, (CONNECTION,)], threading.Event()

    def read() -> tuple[VpnConnection, ...] | None:
        is_read.set()
        return connections.pop(0) if connections else None

    reporter = ConnectionReporter(Name("gw"), api, read, interval_s=3600)
    reporter.start(start_unsupervised)
    assert is_read.wait(LIMIT_S)  # otherwise the first reading could already include the change
    reporter.notice_change()
    assert api.reported.wait(LIMIT_S)
    reporter.stop()
    assert api.reports == [1]


def test_ssh_connections_are_reported_even_without_openvpn() -> None:
    api, logins = FakeVpnApi(), [(LOGIN,), ()]
    reporter = ConnectionReporter(Name("gw"), api, lambda: None, lambda: logins.pop(0))
    assert (reporter.report(), reporter.report()) == (True, True)
    assert (api.reports, api.ssh_reports) == ([], [[7], []])
