"""One look after the other at jobs and clusters: decide, act, tell.

==============================  =========================================================================
what happens                    what follows
==============================  =========================================================================
the scheduler does not answer,  nothing is ended, and what was in doubt is forgotten: only looks in a row
or not in full                  count; told as ``scheduler-silent``
SBF does not answer             likewise, ``sbf-silent``; clusters and jobs go on
this service is started again   what was in doubt is forgotten
a clock is set                  doubts are timed by a clock that is never set; leases may be extended for
                                nothing, or late by as much as the clock is wrong
SBF refuses a deed              told (``cluster-not-ended``, ``lease-not-extended``), tried at the next look
==============================  =========================================================================

One look at both sides: SBF's clusters first, then the jobs that they belong to.

What is kept from look to look so that it can be told: alerts with their beginning, the last deeds.
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
    DoubtMemory,
    DoubtRules,
    Observation,
    compute_extension,
    decide,
)
from virtcloud.scheduler.job_states import SchedulerServer, parse_job_number
from virtcloud.scheduler.protocols import ClusterApi, Log, Scheduler
from virtcloud.scheduler.status import MAX_ACTIONS, AlertView, DoubtView, ReconciliationAction, ReconciliationReport


class ReconciliationJournal:
    """Tells each alert once when it begins and once when it is over."""

    def __init__(self, log: Log) -> None:
        """Begin with nothing to tell."""
        self._log = log
        self._since: dict[tuple[AlertName, str], AlertView] = {}
        self._deeds: deque[ReconciliationAction] = deque(maxlen=MAX_ACTIONS)

    @property
    def alerts(self) -> tuple[AlertView, ...]:
        """What is wrong now."""
        return tuple(self._since.values())

    @property
    def deeds(self) -> tuple[ReconciliationAction, ...]:
        """What was done last, oldest first."""
        return tuple(self._deeds)

    def tell(self, alerts: Iterable[Alert], at: datetime) -> None:
        """Say what is wrong now; what was wrong before and is not any more is over."""
        now = {(one.name, one.about): one for one in alerts}
        for key in [one for one in self._since if one not in now]:
            over = self._since.pop(key)
            self._log.info("alert_over", alert=over.name, about=over.about)
        for key, one in now.items():
            if key not in self._since:
                self._log.warning("alert", alert=one.name, about=one.about, text=one.text)
            since = self._since[key].since if key in self._since else at
            self._since[key] = AlertView(name=one.name, about=one.about, text=one.text, since=since)

    def done(self, what: str, key: ClusterKey, attempt: int, why: str, at: datetime) -> None:
        """Keep what was done to a cluster."""
        self._log.info(f"cluster_{what}", cluster=key, attempt=attempt, why=why)
        self._deeds.append(ReconciliationAction(at=at, what=what, cluster=key, attempt=attempt, why=why))


MACHINE_PREFIXES = tuple(f"{role}@" for role in (Role.SCHEDULER, Role.JOB_STARTER))
"""So those who ask for jobs' clusters are called, as SBF keeps who asked for one."""


@dataclass(frozen=True, slots=True)
class ServerObservation:
    """What was seen, and of which server."""

    server: SchedulerServer
    seen: Observation


def observe(scheduler: Scheduler, clusters: ClusterApi) -> ServerObservation:
    """Look once. Raises SchedulerSilent, and what SBF raises: then nothing was seen at all.

    A cluster that is made meanwhile is not among those that were asked for, so that no job can be missing for it.
    """
    server = scheduler.server()
    ours = [one for one in clusters.clusters() if belongs_to_server(one, server)]
    asked = {number for one in ours if (number := parse_job_number(one.key, server))}
    jobs = scheduler.jobs(server, asked)
    return ServerObservation(server, Observation(ours, jobs, server.empty))


def belongs_to_server(cluster: ClusterView, server: SchedulerServer) -> bool:
    """Say whether a cluster is a job's of this server: its key says so, and no person asked for it.

    Of one from before SBF kept who asked, the key decides.
    """
    by_machine = cluster.created_by is None or cluster.created_by.startswith(MACHINE_PREFIXES)
    return by_machine and parse_job_number(cluster.key, server) is not None


@dataclass(frozen=True, slots=True)
class Clocks:
    """``monotonic`` counts seconds and is never set; ``now`` is the time of day."""

    monotonic: Callable[[], float] = monotonic
    now: Callable[[], datetime] = lambda: datetime.now(UTC)


class JobReconciler:
    """Reconciles one scheduler's jobs with SBF's clusters."""

    def __init__(  # noqa: PLR0913, PLR0917 - its parts
        self,
        scheduler: Scheduler,
        clusters: ClusterApi,
        rules: DoubtRules,
        log: Log,
        clocks: Clocks,
        others: Callable[[], Iterable[Alert]] = tuple,
    ) -> None:
        """Begin with nothing in doubt; ``others`` gives what else is wrong, after each good look."""
        self._scheduler = scheduler
        self._clusters = clusters
        self._rules = rules
        self._log = log
        self._clocks = clocks
        self._others = others
        self._journal = ReconciliationJournal(log)
        self._memory: DoubtMemory = {}
        self._alerts: tuple[Alert, ...] = ()
        self._last_good: datetime | None = None

    def round(self) -> ReconciliationReport:
        """Look once, do what follows, and say what was seen and done. Raises nothing."""
        at = self._clocks.now()
        seen: ServerObservation | None = None
        try:
            seen = observe(self._scheduler, self._clusters)
            self._alerts = (*self._settle(seen.seen), *self._others())
            self._journal.tell(self._alerts, at)
            self._last_good = at
        except SchedulerUnavailable as error:
            self._blind(Alert(AlertName.SCHEDULER_SILENT, "scheduler", str(error)), at)
        except VirtcloudError as error:
            self._blind(Alert(AlertName.SBF_SILENT, "sbf", str(error)), at)
        except Exception as error:  # noqa: BLE001 - a fault of ours is told like any other, and tried again
            self._log.exception("fault")
            self._blind(Alert(AlertName.FAULT, "reconciliation", f"{type(error).__name__}: {error}; see the log"), at)
        return self._report(seen, at)

    def _settle(self, seen: Observation) -> Iterator[Alert]:
        """Act after a good look, and give what is wrong."""
        verdict = decide(seen, self._memory, self._clocks.monotonic(), self._rules)
        self._memory = verdict.memory
        yield from verdict.alerts
        for end in verdict.ends:
            yield from self._end(end)
        for cluster in seen.clusters:
            job = seen.jobs.get(cluster.key)
            wanted = compute_extension(cluster, job, self._clocks.now()) if job else None
            if wanted is not None:
                yield from self._extend(cluster, wanted)

    def _blind(self, alert: Alert, at: datetime) -> None:
        """Forget doubts after a look that failed; what was wrong before is still told, since nobody saw it end."""
        self._memory = {}
        self._journal.tell((*self._alerts, alert), at)

    def _end(self, end: ClusterEnd) -> Iterator[Alert]:
        try:
            self._clusters.delete_cluster(end.key, attempt=end.attempt, owner=end.owner)
        except (Gone, NotFound) as error:
            self._log.info("cluster_gone_before", cluster=end.key, attempt=end.attempt, error=error)
        except VirtcloudError as error:
            text = f"cluster {end.key} is to be ended, since {end.why}, and could not be: {error}"
            yield Alert(AlertName.CLUSTER_NOT_ENDED, end.key, text)
        else:
            self._journal.done("ended", end.key, end.attempt, end.why, self._clocks.now())

    def _extend(self, cluster: ClusterView, seconds: float) -> Iterator[Alert]:
        key, attempt = cluster.key, cluster.attempt
        try:
            self._clusters.extend_lease(key, seconds, attempt, cluster.spec.owner)
        except (Gone, NotFound) as error:
            self._log.info("cluster_gone_before", cluster=key, attempt=attempt, error=error)
        except VirtcloudError as error:
            text = f"cluster {key}: its lease ends before its job's walltime, and could not be extended: {error}"
            yield Alert(AlertName.LEASE_NOT_EXTENDED, key, text)
        else:
            why = f"to {seconds:g} s from now, for its job's walltime"
            self._journal.done("extended", key, attempt, why, self._clocks.now())

    def _report(self, seen: ServerObservation | None, at: datetime) -> ReconciliationReport:
        now = self._clocks.monotonic()
        doubts = tuple(
            DoubtView(
                subject=about.subject,
                key=about.key,
                attempt=about.attempt,
                looks=doubt.times,
                seconds=now - doubt.since,
                why=doubt.why,
            )
            for about, doubt in self._memory.items()
        )
        return ReconciliationReport(
            at=at,
            good=self._last_good == at,
            last_good=self._last_good,
            server=seen.server.name if seen else None,
            jobs=len(seen.seen.jobs) if seen else 0,
            clusters=len(seen.seen.clusters) if seen else 0,
            doubts=doubts,
            alerts=self._journal.alerts,
            deeds=self._journal.deeds,
        )
