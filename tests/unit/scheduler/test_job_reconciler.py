"""Tests of reconciliation rounds with a fake batch system and a fake SBF in memory."""

from collections.abc import Callable, Iterable

import pytest
from batch_fakes.scheduler import FakeClocks, FakeClusterApi, FakeLog, FakeScheduler, cluster, job

from virtcloud.model.cluster import ClusterState
from virtcloud.model.errors import Forbidden, QuotaExceeded, ServiceUnreachable
from virtcloud.model.topology import Topology
from virtcloud.scheduler.decision import Alert, AlertName, DoubtRules
from virtcloud.scheduler.job_reconciler import Clocks, JobReconciler
from virtcloud.scheduler.job_states import JobPhase
from virtcloud.scheduler.scheduler_nodes import NodeWatch
from virtcloud.scheduler.scheduler_settings import SchedulerSettings
from virtcloud.scheduler.status import ReconciliationReport


class Place:
    """Jobs 1 (running) and 2 (gone), each with a cluster, and clusters without a job of this server."""

    def __init__(self) -> None:
        """Start the reconciler."""
        self.scheduler = FakeScheduler(job(1))
        self.sbf = FakeClusterApi(cluster("1.pbssrv"), cluster("2.pbssrv"), cluster("demo"), cluster("2.other"))
        self.clock = FakeClocks()
        self.log = FakeLog()
        self.service = self.start()

    def start(self, others: Callable[[], Iterable[Alert]] = tuple) -> JobReconciler:
        clocks = Clocks(self.clock.monotonic, self.clock.now)
        return JobReconciler(self.scheduler, self.sbf, DoubtRules(2, 100, 900), self.log, clocks, others)

    def looks(self, count: int, pause: float = 100) -> ReconciliationReport:
        for _ in range(count):
            report = self.service.run_round()
            self.clock.seconds += pause
        return report


@pytest.fixture
def place() -> Place:
    return Place()


def names(report: ReconciliationReport) -> list[AlertName]:
    return [one.name for one in report.alerts]


def test_only_the_cluster_of_a_missing_job_is_ended(place: Place) -> None:
    report = place.looks(3)
    assert place.sbf.ended == [("2.pbssrv", 1)]
    assert [(one.what, one.cluster, one.why) for one in report.deeds] == [("ended", "2.pbssrv", "job 2.pbssrv is gone")]


def test_only_jobs_with_clusters_are_queried(place: Place) -> None:
    report = place.looks(1)
    assert (place.scheduler.asked, report.clusters) == ([{"1", "2"}], 2)


@pytest.mark.parametrize(
    ("created_by", "ended"),
    [("alice", 0), ("agent@n1", 0), ("scheduler", 0), ("scheduler@pbssrv", 1), ("job-starter@n1", 1), (None, 1)],
)
def test_clusters_of_persons_are_ignored(place: Place, created_by: str | None, ended: int) -> None:
    place.sbf.kept = {key: cluster(key, created_by=created_by) for key in place.sbf.kept if key == "2.pbssrv"}
    place.looks(2)
    assert len(place.sbf.ended) == ended


def test_a_failed_round_deletes_all_doubts(place: Place) -> None:
    place.looks(1)
    place.scheduler.failing = "it did not end within 30 s"
    blind = place.looks(1)
    place.scheduler.failing = None
    place.looks(1)
    assert (place.sbf.ended, blind.good, names(blind)) == ([], False, [AlertName.SCHEDULER_SILENT])
    place.looks(1)
    assert place.sbf.ended == [("2.pbssrv", 1)]


def test_reconciliation_continues_after_an_outage_of_sbf(place: Place) -> None:
    place.sbf.failing = ServiceUnreachable("SBF does not answer")
    assert names(place.looks(3)) == [AlertName.SBF_SILENT]
    place.sbf.failing = None
    assert names(place.looks(2)) == []
    assert place.sbf.ended == [("2.pbssrv", 1)]


def test_a_restart_deletes_all_doubts(place: Place) -> None:
    place.looks(1)
    place.service = place.start()
    place.looks(1)
    assert place.sbf.ended == []


@pytest.mark.parametrize("set_by", [-86400.0, 86400.0])
def test_setting_the_clock_does_not_change_grace_periods(place: Place, set_by: float) -> None:
    place.looks(1, pause=50)
    place.clock.set_by = set_by
    place.looks(1, pause=50)
    assert place.sbf.ended == []
    place.looks(1)
    assert place.sbf.ended == [("2.pbssrv", 1)]


def test_a_later_attempt_is_not_ended(place: Place) -> None:
    place.looks(1)
    old = place.sbf.clusters()
    place.sbf.kept[old[1].key] = cluster("2.pbssrv", attempt=2)
    place.sbf.clusters = lambda *_, **__: old  # type: ignore[method-assign]
    report = place.looks(1)
    assert (place.sbf.ended, names(report), place.log.events[-1]) == ([], [], "cluster_gone_before")


def test_a_refused_end_raises_an_alert_and_is_retried(place: Place) -> None:
    place.sbf.refusing = ServiceUnreachable("SBF does not answer")
    report = place.looks(2)
    assert [(one.name, one.about, one.text) for one in report.alerts] == [
        (
            AlertName.CLUSTER_NOT_ENDED,
            "2.pbssrv",
            "cluster 2.pbssrv must be ended, since job 2.pbssrv is gone, and could not be: SBF does not answer",
        )
    ]
    place.sbf.refusing = None
    assert names(place.looks(1)) == []
    assert place.sbf.ended == [("2.pbssrv", 1)]


def test_a_longer_walltime_extends_the_lease_once(place: Place) -> None:
    place.scheduler.known = {"1.pbssrv": job(1, walltime_s=10000)}  # type: ignore[dict-item]
    place.looks(3, pause=10)
    assert place.sbf.extended == [("1.pbssrv", 10900)]


def test_a_refused_extension_raises_an_alert(place: Place) -> None:
    place.scheduler.known = {"1.pbssrv": job(1, walltime_s=10000)}  # type: ignore[dict-item]
    place.sbf.refusing = QuotaExceeded("alice's may last 4h")
    (found,) = place.looks(1).alerts
    text = "cluster 1.pbssrv: its lease ends before its job's walltime, and could not be extended: alice's may last 4h"
    assert (found.name, found.text) == (AlertName.LEASE_NOT_EXTENDED, text)


def test_an_unexpected_error_is_logged_and_ends_nothing(place: Place) -> None:
    place.looks(1)
    place.scheduler.jobs = lambda *_: 1 / 0  # type: ignore[method-assign, assignment, return-value]
    report = place.looks(1)
    assert (names(report), "fault" in place.log.events, place.sbf.ended) == ([AlertName.FAULT], True, [])


def test_an_alert_is_logged_at_its_start_and_end(place: Place) -> None:
    place.sbf.kept.clear()
    place.looks(3)
    place.scheduler.failing = "away"
    since = [(one.name, one.about, one.since) for one in place.looks(1).alerts]
    assert since[0] == (
        AlertName.JOB_WITHOUT_CLUSTER,
        "1.pbssrv",
        Clocks(now=place.clock.now).now().replace(minute=1, second=40),
    )
    place.scheduler.failing = None
    place.scheduler.known = {"1.pbssrv": job(1, JobPhase.EXITING)}  # type: ignore[dict-item]
    place.looks(1)
    assert place.log.events == [
        "alert job-without-cluster 1.pbssrv",
        "alert scheduler-silent scheduler",
        "alert_over",
        "alert_over",
    ]


def test_a_report_lists_doubts_with_their_duration(place: Place) -> None:
    place.looks(1, pause=30)
    (doubt,) = place.looks(1).doubts
    assert (doubt.key, doubt.looks, doubt.seconds, doubt.why) == ("2.pbssrv", 2, 30, "job 2.pbssrv is gone")


def test_an_ended_cluster_is_not_ended_again(place: Place) -> None:
    place.looks(5)
    assert (place.sbf.kept["2.pbssrv"].state, len(place.sbf.ended)) == (ClusterState.DRAINING, 1)  # type: ignore[index]


def test_a_missing_topology_does_not_stop_reconciliation(place: Place) -> None:

    def refuse() -> Topology:
        raise Forbidden("scheduler@pbssrv may not see the topology")

    place.sbf.topology = refuse  # type: ignore[method-assign]
    watch = NodeWatch(place.scheduler, place.sbf, SchedulerSettings(), place.clock.monotonic)
    place.service = place.start(watch.alerts)
    report = place.looks(2)
    (found,) = report.alerts
    assert (found.name, found.text) == (AlertName.NODES_UNREAD, "scheduler@pbssrv may not see the topology")
    assert place.sbf.ended == [("2.pbssrv", 1)]


def test_nodes_are_checked_at_their_interval(place: Place) -> None:
    switch = {"name": "sw", "ports": ["p1"], "platform": "linux_bridge"}
    place.sbf.known = Topology.model_validate({"name": "t", "sites": [{"name": "brno", "switches": [switch]}]})
    watch = NodeWatch(place.scheduler, place.sbf, SchedulerSettings(), place.clock.monotonic)
    place.scheduler.hosts = ["n7"]
    assert [one.about for one in watch.alerts()] == ["n7"]
    place.scheduler.hosts = []
    assert [one.about for one in watch.alerts()] == ["n7"]
    place.clock.seconds += 600
    assert watch.alerts() == ()
    place.scheduler.failing = "away"
    place.clock.seconds += 600
    assert [one.name for one in watch.alerts()] == [AlertName.NODES_UNREAD]
