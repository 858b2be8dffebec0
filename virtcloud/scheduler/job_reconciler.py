"""Rounds of reconciliation: observe the jobs and clusters, decide, act, report.

==============================  ====================================================================================
event                           consequence
==============================  ====================================================================================
the batch system's answer is    Clusters continue. The reconciler forgets all mismatches, because a mismatch has
missing or incomplete           consequences only after several observations in a row. Alert ``scheduler-silent``.
SBF does not answer             Clusters and jobs continue. The reconciler forgets all mismatches. Alert
                                ``sbf-silent``.
the agent restarts              The reconciler is a part of the agent, and so forgets all mismatches.
an administrator sets a clock   Mismatches are not affected (monotonic clock). The reconciler can extend a lease
                                without need, or too late. The delay is at most the error of the clock.
SBF refuses an action           Alert ``cluster-not-ended`` or ``lease-not-extended``. The next round
                                repeats the action.
==============================  ====================================================================================
"""

from collections import deque
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from time import monotonic

from virtcloud.model.access import Role
from virtcloud.model.errors import Gone, NotFound, SchedulerUnavailable, VirtcloudError
from virtcloud.model.values import ClusterKey
from virtcloud.model.views import ClusterView
from virtcloud.scheduler.decision import (
    Alert,
    AlertName,
    ClusterEnd,
    GraceRules,
    Mismatches,
    Observation,
    compute_extension,
    decide,
)
from virtcloud.scheduler.job_states import SchedulerServer, parse_job_number
from virtcloud.scheduler.protocols import ClusterApi, Log, Scheduler
from virtcloud.scheduler.status import MAX_ACTIONS, AlertView, MismatchView, ReconciliationAction, ReconciliationReport


class ReconciliationJournal:
    """Stores the current alerts and the last actions. Logs the start and the end of each alert once."""

    def __init__(self, log: Log) -> None:
        """Create a journal without alerts and actions."""
        self._log = log
        self._alerts: dict[tuple[AlertName, str], AlertView] = {}
        self._actions: deque[ReconciliationAction] = deque(maxlen=MAX_ACTIONS)

    @property
    def alerts(self) -> tuple[AlertView, ...]:
        """The current alerts."""
        return tuple(self._alerts.values())

    @property
    def actions(self) -> tuple[ReconciliationAction, ...]:
        """The last actions, oldest first."""
        return tuple(self._actions)

    def update_alerts(self, alerts: Iterable[Alert], at: datetime) -> None:
        """Replace the current alerts. Log new alerts and alerts that are over."""
        current = {(alert.name, alert.about): alert for alert in alerts}
        for key in [key for key in self._alerts if key not in current]:
            over = self._alerts.pop(key)
            self._log.info("alert_over", alert=over.name, about=over.about)
        for key, alert in current.items():
            if key not in self._alerts:
                self._log.warning("alert", alert=alert.name, about=alert.about, text=alert.text)
            since = self._alerts[key].since if key in self._alerts else at
            self._alerts[key] = AlertView(name=alert.name, about=alert.about, text=alert.text, since=since)

    def record_action(self, what: str, key: ClusterKey, attempt: int, why: str, at: datetime) -> None:
        """Log and store an action on a cluster."""
        self._log.info(f"cluster_{what}", cluster=key, attempt=attempt, why=why)
        self._actions.append(ReconciliationAction(at=at, what=what, cluster=key, attempt=attempt, why=why))


BATCH_PREFIXES = tuple(f"{role}@" for role in (Role.SCHEDULER, Role.JOB_STARTER))
"""Prefixes of ``created_by`` for clusters that a batch system requested."""


@dataclass(frozen=True, slots=True)
class ServerObservation:
    """An observation, and the server that was observed."""

    server: SchedulerServer
    observed: Observation


def observe(scheduler: Scheduler, clusters: ClusterApi) -> ServerObservation:
    """Return a complete observation. If a reading fails, raise SchedulerUnavailable or an error of SBF.

    Clusters are read before jobs. In the reverse order, a cluster created between the two readings would appear without
    its job.
    """
    server = scheduler.server()
    views = [cluster for cluster in clusters.clusters() if belongs_to_server(cluster, server)]
    numbers = {number for cluster in views if (number := parse_job_number(cluster.key, server))}
    jobs = scheduler.jobs(server, numbers)
    return ServerObservation(server, Observation(views, jobs, server.empty))


def belongs_to_server(cluster: ClusterView, server: SchedulerServer) -> bool:
    """Return whether a batch system requested the cluster for a job of this server.

    If an old SBF did not record the caller (``created_by``), only the job ID in the cluster's key is checked.
    """
    is_for_job = cluster.created_by is None or cluster.created_by.startswith(BATCH_PREFIXES)
    return is_for_job and parse_job_number(cluster.key, server) is not None


@dataclass(frozen=True, slots=True)
class Clocks:
    """``monotonic`` returns seconds and is not affected when a clock is set. ``now`` returns the time of day."""

    monotonic: Callable[[], float] = monotonic
    now: Callable[[], datetime] = lambda: datetime.now(UTC)


class JobReconciler:
    """Reconciles SBF's clusters with the jobs of one batch system."""

    def __init__(  # noqa: PLR0913, PLR0917 - its collaborators
        self,
        scheduler: Scheduler,
        clusters: ClusterApi,
        rules: GraceRules,
        log: Log,
        clocks: Clocks,
        more_alerts: Callable[[], Iterable[Alert]] = tuple,
    ) -> None:
        """Create a reconciler without mismatches.

        The reconciler calls ``more_alerts`` after each complete observation, and adds the returned alerts to its own
        alerts.
        """
        self._scheduler = scheduler
        self._clusters = clusters
        self._rules = rules
        self._log = log
        self._clocks = clocks
        self._more_alerts = more_alerts
        self._journal = ReconciliationJournal(log)
        self._mismatches: Mismatches = {}
        self._alerts: tuple[Alert, ...] = ()
        self._last_good: datetime | None = None

    def run_round(self, report_progress: Callable[[], None] = lambda: None) -> ReconciliationReport:
        """Run one round and return its report. Raise no exception.

        ``report_progress`` is called after each action, because a slow SBF can delay many actions.
        """
        at = self._clocks.now()
        observed: ServerObservation | None = None
        try:
            observed = observe(self._scheduler, self._clusters)
            self._alerts = (*self._act(observed.observed, report_progress), *self._more_alerts())
            self._journal.update_alerts(self._alerts, at)
            self._last_good = at
        except SchedulerUnavailable as error:
            self._record_failure(Alert(AlertName.SCHEDULER_SILENT, "scheduler", str(error)), at)
        except VirtcloudError as error:
            self._record_failure(Alert(AlertName.SBF_SILENT, "sbf", str(error)), at)
        except Exception as error:  # noqa: BLE001 - an unexpected error becomes an alert, and the next round tries again
            self._log.exception("fault")
            self._record_failure(
                Alert(AlertName.FAULT, "reconciliation", f"{type(error).__name__}: {error}; see the log"), at
            )
        return self._report(observed, at)

    def _act(self, observed: Observation, report_progress: Callable[[], None]) -> Iterator[Alert]:
        decision = decide(observed, self._mismatches, self._clocks.monotonic(), self._rules)
        self._mismatches = decision.mismatches
        yield from decision.alerts
        for end in decision.ends:
            yield from self._end(end)
            report_progress()
        for cluster in observed.clusters:
            job = observed.jobs.get(cluster.key)
            seconds = compute_extension(cluster, job, self._clocks.now(), self._rules.interval_s) if job else None
            if seconds is not None:
                yield from self._extend(cluster, seconds)
                report_progress()

    def _record_failure(self, alert: Alert, at: datetime) -> None:
        """Forget all mismatches and add an alert. Earlier alerts remain, because no observation shows their end."""
        self._mismatches = {}
        self._journal.update_alerts((*self._alerts, alert), at)

    def _end(self, end: ClusterEnd) -> Iterator[Alert]:
        try:
            self._clusters.delete_cluster(end.key, attempt=end.attempt, owner=end.owner)
        except (Gone, NotFound) as error:
            self._log.info("cluster_gone_before", cluster=end.key, attempt=end.attempt, error=error)
        except VirtcloudError as error:
            text = f"cluster {end.key} must end because {end.why}, but could not be deleted: {error}"
            yield Alert(AlertName.CLUSTER_NOT_ENDED, end.key, text)
        else:
            self._journal.record_action("ended", end.key, end.attempt, end.why, self._clocks.now())

    def _extend(self, cluster: ClusterView, seconds: float) -> Iterator[Alert]:
        key, attempt = cluster.key, cluster.attempt
        try:
            self._clusters.extend_lease(key, seconds, attempt, cluster.spec.owner)
        except (Gone, NotFound) as error:
            self._log.info("cluster_gone_before", cluster=key, attempt=attempt, error=error)
        except VirtcloudError as error:
            text = f"cluster {key}: the lease may end before the job, and could not be extended: {error}"
            yield Alert(AlertName.LEASE_NOT_EXTENDED, key, text)
        else:
            why = f"to {seconds:g} s from now, for its job's walltime"
            self._journal.record_action("extended", key, attempt, why, self._clocks.now())

    def _report(self, observed: ServerObservation | None, at: datetime) -> ReconciliationReport:
        now = self._clocks.monotonic()
        mismatches = tuple(
            MismatchView(
                subject=about.kind,
                key=about.key,
                attempt=about.attempt,
                looks=mismatch.observations,
                seconds=now - mismatch.since,
                why=mismatch.why,
            )
            for about, mismatch in self._mismatches.items()
        )
        return ReconciliationReport(
            at=at,
            good=self._last_good == at,
            last_good=self._last_good,
            server=observed.server.name if observed else None,
            jobs=len(observed.observed.jobs) if observed else 0,
            clusters=len(observed.observed.clusters) if observed else 0,
            doubts=mismatches,
            alerts=self._journal.alerts,
            deeds=self._journal.actions,
        )
