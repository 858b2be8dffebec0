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
"""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from time import monotonic

from virtcloud.model.errors import Gone, NotFound, SchedulerSilent, VirtcloudError
from virtcloud.model.views import ClusterView
from virtcloud.scheduler.alerts import Alert, AlertName
from virtcloud.scheduler.decide import End, Memory, Rules, Seen, decide
from virtcloud.scheduler.journal import Journal
from virtcloud.scheduler.leases import extension
from virtcloud.scheduler.look import Look, look
from virtcloud.scheduler.ports import Clusters, Log, Scheduler
from virtcloud.scheduler.status import DoubtView, Report


@dataclass(frozen=True, slots=True)
class Clocks:
    """``monotonic`` counts seconds and is never set; ``now`` is the time of day."""

    monotonic: Callable[[], float] = monotonic
    now: Callable[[], datetime] = lambda: datetime.now(UTC)


class Reconciler:
    """Reconciles one scheduler's jobs with SBF's clusters."""

    def __init__(  # noqa: PLR0913, PLR0917 - its parts
        self,
        scheduler: Scheduler,
        clusters: Clusters,
        rules: Rules,
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
        self._journal = Journal(log)
        self._memory: Memory = {}
        self._alerts: tuple[Alert, ...] = ()
        self._last_good: datetime | None = None

    def round(self) -> Report:
        """Look once, do what follows, and say what was seen and done. Raises nothing."""
        at = self._clocks.now()
        seen: Look | None = None
        try:
            seen = look(self._scheduler, self._clusters)
            self._alerts = (*self._settle(seen.seen), *self._others())
            self._journal.tell(self._alerts, at)
            self._last_good = at
        except SchedulerSilent as error:
            self._blind(Alert(AlertName.SCHEDULER_SILENT, "scheduler", str(error)), at)
        except VirtcloudError as error:
            self._blind(Alert(AlertName.SBF_SILENT, "sbf", str(error)), at)
        except Exception as error:  # noqa: BLE001 - a fault of ours is told like any other, and tried again
            self._log.exception("fault")
            self._blind(Alert(AlertName.FAULT, "reconciliation", f"{type(error).__name__}: {error}; see the log"), at)
        return self._report(seen, at)

    def _settle(self, seen: Seen) -> Iterator[Alert]:
        """Act after a good look, and give what is wrong."""
        verdict = decide(seen, self._memory, self._clocks.monotonic(), self._rules)
        self._memory = verdict.memory
        yield from verdict.alerts
        for end in verdict.ends:
            yield from self._end(end)
        for cluster in seen.clusters:
            job = seen.jobs.get(cluster.key)
            wanted = extension(cluster, job, self._clocks.now()) if job else None
            if wanted is not None:
                yield from self._extend(cluster, wanted)

    def _blind(self, alert: Alert, at: datetime) -> None:
        """Forget doubts after a look that failed; what was wrong before is still told, since nobody saw it end."""
        self._memory = {}
        self._journal.tell((*self._alerts, alert), at)

    def _end(self, end: End) -> Iterator[Alert]:
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

    def _report(self, seen: Look | None, at: datetime) -> Report:
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
        return Report(
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
