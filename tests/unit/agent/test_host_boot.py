import errno
from collections.abc import Callable
from pathlib import Path

import pytest
from support.fake_machine import FakeElementApi, FakeManagedHost

from virtcloud.agent import host_boot
from virtcloud.agent.host_boot import HostBoot
from virtcloud.agent.observed_host import ObservedHost
from virtcloud.agent.reconciler import HostReconciler, ReconcileTiming
from virtcloud.agent.supervision import StopSignal
from virtcloud.model.errors import Refused
from virtcloud.model.wanted import Segment

Boot = Callable[[str], HostBoot]


@pytest.fixture
def boot(tmp_path: Path) -> Boot:

    def start(boot_id: str) -> HostBoot:
        (tmp_path / "boot_id").write_text(f"{boot_id}\n")
        return HostBoot(tmp_path / "state/boot", tmp_path / "boot_id")

    return start


def test_a_boot_after_the_reported_boot_is_an_unreported_reboot(boot: Boot) -> None:
    first = boot("1")
    assert not first.is_unreported, "expected no unreported reboot without a record, as after an upgrade"
    first.record_report()
    assert [boot(boot_id).is_unreported for boot_id in ("1", "2")] == [False, True]


def test_a_record_that_cannot_be_written_is_an_error(boot: Boot, tmp_path: Path) -> None:
    (tmp_path / "state").write_text("")
    with pytest.raises(Refused, match="cannot record the host's boot in "):
        boot("1").record_report()


def test_a_rebooted_host_reports_drift_despite_a_new_revision(boot: Boot, make_segment: Callable[..., Segment]) -> None:
    """A new revision, here the end of a cluster during the reboot, must not hide that the host lost other clusters."""
    service, host = FakeElementApi(), FakeManagedHost()
    service.want(make_segment("a", 100), make_segment("b", 101))
    for boot_id, reports in (("1", ["confirmed"]), ("2", ["drifted", "confirmed"]), ("2", ["confirmed"])):
        service.reports.clear()
        HostReconciler("h1", service, host, StopSignal(), ReconcileTiming(), boot=boot(boot_id)).reconcile_once()
        assert [report for report, _ in service.reports] == reports
        service.want(make_segment("a", 100))
        host.observed = ObservedHost()


def test_a_full_disk_after_a_reboot_delays_no_network(
    boot: Boot, make_segment: Callable[..., Segment], monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    boot("1").record_report()
    rebooted = boot("2")
    service, host = FakeElementApi(), FakeManagedHost()
    service.want(make_segment("a", 100))
    reconciler = HostReconciler("h1", service, host, StopSignal(), ReconcileTiming(), boot=rebooted)

    def refuse(*_arguments: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as full:
        full.setattr(host_boot, "write_durably", refuse)
        reconciler.reconcile_once()
        service.want(make_segment("a", 100), make_segment("b", 101))
        reconciler.reconcile_once()
    reports = [report for report, _ in service.reports]
    assert reports == ["drifted", "confirmed", "confirmed"], "expected no drift because of the new cluster b"
    assert "boot_not_recorded" in caplog.text
    assert boot("2").is_unreported, "expected a restarted agent to report the reboot again"
    reconciler.reconcile_once()
    assert not boot("2").is_unreported
