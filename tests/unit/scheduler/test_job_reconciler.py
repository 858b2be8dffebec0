"""Tests of reconciliation rounds with a fake batch system and a fake SBF in memory."""

from collections.abc import Callable, Iterable

import pytest
from support.batch_fakes.scheduler import FakeClocks, FakeClusterApi, FakeLog, FakeScheduler, cluster, job

from virtcloud.model.cluster import ClusterState
from virtcloud.model.errors import Forbidden, QuotaExceeded, ServiceUnreachable
from virtcloud.model.topology import Topology
from virtcloud.model.values import ClusterKey
from virtcloud.scheduler.decision import Alert, AlertName, GraceRules
from virtcloud.scheduler.job_reconciler import Clocks, JobReconciler
from virtcloud.scheduler.job_states import JobPhase
from virtcloud.scheduler.scheduler_nodes import NodeWatch
from virtcloud.scheduler.scheduler_settings import SchedulerSettings
from virtcloud.scheduler.status import ReconciliationReport


class Reconciliation:
    """Jobs 1 (running) and 2 (gone), each with a cluster, and clusters that belong to no job of this server."""

    def __init__(self) -> None:
        self.scheduler = FakeScheduler(job(1))
        self.sbf = FakeClusterApi(cluster("1.pbssrv"), cluster("2.pbssrv"), cluster("demo"), cluster("2.other"))
        self.clock = FakeClocks()
        self.log = FakeLog()
        self.reconciler = self.start()

    def start(self, more_alerts: Callable[[], Iterable[Alert]] = tuple) -> JobReconciler:
        clocks = Clocks(self.clock.monotonic, self.clock.now)
        return JobReconciler(self.scheduler, self.sbf, GraceRules(2, 100, 900), self.log, clocks, more_alerts)

    def run_rounds(self, count: int, pause: float = 100) -> ReconciliationReport:
        for _ in range(count):
            report = self.reconciler.run_round()
            self.clock.seconds += pause
        return report


@pytest.fixture
def reconciliation() -> Reconciliation:
    return Reconciliation()


def names(report: ReconciliationReport) -> list[AlertName]:
    return [alert.name for alert in report.alerts]


def test_only_the_cluster_of_a_missing_job_is_ended(reconciliation: Reconciliation) -> None:
    report = reconciliation.run_rounds(3)
    assert reconciliation.sbf.ended == [("2.pbssrv", 1)]
    assert [(action.what, action.cluster, action.why) for action in report.deeds] == [
        ("ended", "2.pbssrv", "job 2.pbssrv is gone")
    ]


def test_each_action_of_a_round_is_progress(reconciliation: Reconciliation) -> None:
    """If a long round looked like a hang, the agent would restart and forget mismatches between jobs and clusters."""
    reconciliation.sbf.stored |= {ClusterKey(key): cluster(key) for key in ("3.pbssrv", "4.pbssrv")}
    reconciliation.sbf.stored[ClusterKey("1.pbssrv")] = cluster("1.pbssrv", lease_s=60)
    progress: list[int] = []
    for _ in range(2):
        reconciliation.reconciler.run_round(lambda: progress.append(len(reconciliation.sbf.ended)))
        reconciliation.clock.seconds += 100
    assert progress == [0, 1, 2, 3]


def test_only_jobs_with_clusters_are_queried(reconciliation: Reconciliation) -> None:
    report = reconciliation.run_rounds(1)
    assert (reconciliation.scheduler.queried, report.clusters) == ([{"1", "2"}], 2)


@pytest.mark.parametrize(
    ("created_by", "ended"),
    [("alice", 0), ("agent@n1", 0), ("scheduler", 0), ("scheduler@pbssrv", 1), ("job-starter@n1", 1), (None, 1)],
)
def test_clusters_that_users_requested_are_ignored(
    reconciliation: Reconciliation, created_by: str | None, ended: int
) -> None:
    reconciliation.sbf.stored = {
        key: cluster(key, created_by=created_by) for key in reconciliation.sbf.stored if key == "2.pbssrv"
    }
    reconciliation.run_rounds(2)
    assert len(reconciliation.sbf.ended) == ended


def test_a_failed_round_deletes_all_mismatches(reconciliation: Reconciliation) -> None:
    reconciliation.run_rounds(1)
    reconciliation.scheduler.failing = "it did not end within 30 s"
    blind = reconciliation.run_rounds(1)
    reconciliation.scheduler.failing = None
    reconciliation.run_rounds(1)
    assert (reconciliation.sbf.ended, blind.good, names(blind)) == ([], False, [AlertName.SCHEDULER_SILENT])
    reconciliation.run_rounds(1)
    assert reconciliation.sbf.ended == [("2.pbssrv", 1)]


def test_reconciliation_continues_after_an_outage_of_sbf(reconciliation: Reconciliation) -> None:
    reconciliation.sbf.failing = ServiceUnreachable("SBF does not answer")
    assert names(reconciliation.run_rounds(3)) == [AlertName.SBF_SILENT]
    reconciliation.sbf.failing = None
    assert names(reconciliation.run_rounds(2)) == []
    assert reconciliation.sbf.ended == [("2.pbssrv", 1)]


def test_a_restart_deletes_all_mismatches(reconciliation: Reconciliation) -> None:
    reconciliation.run_rounds(1)
    reconciliation.reconciler = reconciliation.start()
    reconciliation.run_rounds(1)
    assert reconciliation.sbf.ended == []


@pytest.mark.parametrize("set_by", [-86400.0, 86400.0])
def test_setting_the_clock_does_not_change_grace_periods(reconciliation: Reconciliation, set_by: float) -> None:
    reconciliation.run_rounds(1, pause=50)
    reconciliation.clock.set_by = set_by
    reconciliation.run_rounds(1, pause=50)
    assert reconciliation.sbf.ended == []
    reconciliation.run_rounds(1)
    assert reconciliation.sbf.ended == [("2.pbssrv", 1)]


def test_a_later_attempt_is_not_ended(reconciliation: Reconciliation) -> None:
    reconciliation.run_rounds(1)
    old = reconciliation.sbf.clusters()
    reconciliation.sbf.stored[old[1].key] = cluster("2.pbssrv", attempt=2)
    reconciliation.sbf.clusters = lambda *_, **__: old
    report = reconciliation.run_rounds(1)
    assert (reconciliation.sbf.ended, names(report), reconciliation.log.events[-1]) == ([], [], "cluster_gone_before")


def test_a_refused_end_raises_an_alert_and_is_retried(reconciliation: Reconciliation) -> None:
    reconciliation.sbf.refusing = ServiceUnreachable("SBF does not answer")
    report = reconciliation.run_rounds(2)
    assert [(alert.name, alert.about, alert.text) for alert in report.alerts] == [
        (
            AlertName.CLUSTER_NOT_ENDED,
            "2.pbssrv",
            "cluster 2.pbssrv must end because job 2.pbssrv is gone, but could not be deleted: SBF does not answer",
        )
    ]
    reconciliation.sbf.refusing = None
    assert names(reconciliation.run_rounds(1)) == []
    assert reconciliation.sbf.ended == [("2.pbssrv", 1)]


def test_a_longer_walltime_extends_the_lease_once(reconciliation: Reconciliation) -> None:
    reconciliation.scheduler.known = {"1.pbssrv": job(1, walltime_s=10000)}  # type: ignore[dict-item]
    reconciliation.run_rounds(3, pause=10)
    assert reconciliation.sbf.extended == [("1.pbssrv", 10900)]


def test_a_refused_extension_raises_an_alert(reconciliation: Reconciliation) -> None:
    reconciliation.scheduler.known = {"1.pbssrv": job(1, walltime_s=10000)}  # type: ignore[dict-item]
    reconciliation.sbf.refusing = QuotaExceeded("alice's clusters may last 4h")
    (alert,) = reconciliation.run_rounds(1).alerts
    end = "the lease may end before the job, and could not be extended"
    text = f"cluster 1.pbssrv: {end}: alice's clusters may last 4h"
    assert (alert.name, alert.text) == (AlertName.LEASE_NOT_EXTENDED, text)


def test_an_unexpected_error_is_logged_and_ends_nothing(reconciliation: Reconciliation) -> None:
    reconciliation.run_rounds(1)
    reconciliation.scheduler.jobs = lambda *_: 1 / 0  # type: ignore[assignment]
    report = reconciliation.run_rounds(1)
    assert (names(report), "fault" in reconciliation.log.events, reconciliation.sbf.ended) == (
        [AlertName.FAULT],
        True,
        [],
    )


def test_an_alert_is_logged_at_its_start_and_end(reconciliation: Reconciliation) -> None:
    reconciliation.sbf.stored.clear()
    reconciliation.run_rounds(3)
    reconciliation.scheduler.failing = "away"
    since = [(alert.name, alert.about, alert.since) for alert in reconciliation.run_rounds(1).alerts]
    assert since[0] == (
        AlertName.JOB_WITHOUT_CLUSTER,
        "1.pbssrv",
        Clocks(now=reconciliation.clock.now).now().replace(minute=1, second=40),
    )
    reconciliation.scheduler.failing = None
    reconciliation.scheduler.known = {"1.pbssrv": job(1, JobPhase.EXITING)}  # type: ignore[dict-item]
    reconciliation.run_rounds(1)
    assert reconciliation.log.events == [
        "alert job-without-cluster 1.pbssrv",
        "alert scheduler-silent scheduler",
        "alert_over",
        "alert_over",
    ]


def test_a_report_lists_mismatches_with_their_duration(reconciliation: Reconciliation) -> None:
    reconciliation.run_rounds(1, pause=30)
    (mismatch,) = reconciliation.run_rounds(1).doubts
    assert (mismatch.key, mismatch.looks, mismatch.seconds, mismatch.why) == ("2.pbssrv", 2, 30, "job 2.pbssrv is gone")


def test_an_ended_cluster_is_not_ended_again(reconciliation: Reconciliation) -> None:
    reconciliation.run_rounds(5)
    assert (reconciliation.sbf.stored["2.pbssrv"].state, len(reconciliation.sbf.ended)) == (ClusterState.DRAINING, 1)


def test_a_missing_topology_does_not_stop_reconciliation(reconciliation: Reconciliation) -> None:

    def refuse() -> Topology:
        raise Forbidden("scheduler@pbssrv may not see the topology")

    reconciliation.sbf.topology = refuse
    watch = NodeWatch(reconciliation.scheduler, reconciliation.sbf, SchedulerSettings(), reconciliation.clock.monotonic)
    reconciliation.reconciler = reconciliation.start(watch.alerts)
    report = reconciliation.run_rounds(2)
    (alert,) = report.alerts
    assert (alert.name, alert.text) == (AlertName.NODES_UNREAD, "scheduler@pbssrv may not see the topology")
    assert reconciliation.sbf.ended == [("2.pbssrv", 1)]


def test_nodes_are_checked_at_their_interval(reconciliation: Reconciliation) -> None:
    switch = {"name": "sw", "ports": ["p1"], "platform": "linux_bridge"}
    reconciliation.sbf.stored_topology = Topology.model_validate(
        {"name": "t", "sites": [{"name": "brno", "switches": [switch]}]}
    )
    watch = NodeWatch(reconciliation.scheduler, reconciliation.sbf, SchedulerSettings(), reconciliation.clock.monotonic)
    reconciliation.scheduler.hosts = ["n7"]
    assert [alert.about for alert in watch.alerts()] == ["n7"]
    reconciliation.scheduler.hosts = []
    assert [alert.about for alert in watch.alerts()] == ["n7"]
    reconciliation.clock.seconds += 600
    assert watch.alerts() == ()
    reconciliation.scheduler.failing = "away"
    reconciliation.clock.seconds += 600
    assert [alert.name for alert in watch.alerts()] == [AlertName.NODES_UNREAD]
