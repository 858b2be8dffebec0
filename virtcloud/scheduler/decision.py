"""PURE. Which clusters are to be ended, and what administrators are to be told, from two lists and a memory.

A cluster is *doubted* when the scheduler says, by name, that its job does not run, or runs another attempt. It is
ended when it was doubted at each of several looks in a row, and for a while. A job is doubted likewise when it runs
without a cluster, or its script does not begin though the cluster is up; then administrators are told. Of a job that
the scheduler said nothing of, nothing is concluded.

PURE. What administrators are told, by name; docs/how-to/when-something-fails.md says of each what to do.

PURE. How long a running job's cluster must still last: its walltime may have been extended, the job suspended.
"""

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from enum import StrEnum

from virtcloud.model.cluster import WANTED_STATES, ClusterState
from virtcloud.model.values import ClusterKey
from virtcloud.model.views import ClusterView
from virtcloud.scheduler.job_states import JobPhase, SchedulerJob


class AlertName(StrEnum):
    """The names that logs, the status file and the documentation have for what is wrong."""

    SCHEDULER_SILENT = "scheduler-silent"
    SBF_SILENT = "sbf-silent"
    JOB_WITHOUT_CLUSTER = "job-without-cluster"
    JOB_NOT_BEGUN = "job-not-begun"
    JOB_UNREADABLE = "job-unreadable"
    CLUSTER_NOT_ENDED = "cluster-not-ended"
    LEASE_NOT_EXTENDED = "lease-not-extended"
    HOST_UNKNOWN = "host-unknown"
    NODES_UNREAD = "nodes-unread"
    FAULT = "fault"


@dataclass(frozen=True, slots=True)
class Alert:
    """Something is wrong with ``about`` (a job, a cluster, a host, a service), in one line."""

    name: AlertName
    about: str
    text: str


class DoubtSubject(StrEnum):
    """What a doubt is about."""

    CLUSTER = "cluster"
    JOB = "job"
    START = "start"


@dataclass(frozen=True, slots=True)
class DoubtKey:
    """One attempt of a cluster or of a job; another attempt, or another owner's cluster, is another doubt."""

    subject: DoubtSubject
    key: ClusterKey
    attempt: int
    owner: str | None = None


@dataclass(frozen=True, slots=True)
class Doubt:
    """Since when (monotonic seconds) and how many times in a row something was doubted, and why the last time."""

    since: float
    times: int
    why: str


DoubtMemory = Mapping[DoubtKey, Doubt]
DOUBT_ALERTS = {DoubtSubject.JOB: AlertName.JOB_WITHOUT_CLUSTER, DoubtSubject.START: AlertName.JOB_NOT_BEGUN}
SCRIPT_START_S = 900
"""A script begins within the alarm of the hosts' hook, ten minutes, or never."""


@dataclass(frozen=True, slots=True)
class DoubtRules:
    """When a doubt is acted upon: after so many looks and seconds; longer where the scheduler has no job at all."""

    looks: int = 2
    grace_s: float = 120.0
    grace_empty_s: float = 900.0


@dataclass(frozen=True, slots=True)
class Observation:
    """One good look: the clusters that are this scheduler's, and what it says of jobs, of theirs and of others."""

    clusters: Collection[ClusterView]
    jobs: Mapping[ClusterKey, SchedulerJob]
    empty: bool = False


@dataclass(frozen=True, slots=True)
class ClusterEnd:
    """An attempt's cluster is to be ended."""

    key: ClusterKey
    attempt: int
    why: str
    owner: str | None = None


@dataclass(frozen=True, slots=True)
class Decision:
    """What is to be done and told, and what is to be remembered until the next look."""

    ends: tuple[ClusterEnd, ...] = ()
    alerts: tuple[Alert, ...] = ()
    memory: DoubtMemory = field(default_factory=dict)


def decide(seen: Observation, memory: DoubtMemory, now: float, rules: DoubtRules) -> Decision:
    """Decide after a good look; ``now`` is monotonic. After a look that failed, begin with an empty memory."""
    doubts = dict(_find_doubts(seen))
    remembered = {about: _extend_doubt(memory.get(about), why, now) for about, why in doubts.items()}
    grace = rules.grace_empty_s if seen.empty else rules.grace_s
    graces = {DoubtSubject.CLUSTER: grace, DoubtSubject.JOB: grace, DoubtSubject.START: SCRIPT_START_S}
    sure = {
        about: doubt
        for about, doubt in remembered.items()
        if doubt.times >= rules.looks and now - doubt.since >= graces[about.subject]
    }
    clusters = [(one, doubt.why) for one, doubt in sure.items() if one.subject is DoubtSubject.CLUSTER]
    ends = tuple(ClusterEnd(one.key, one.attempt, why, one.owner) for one, why in clusters)
    told = [
        Alert(DOUBT_ALERTS[one.subject], one.key, doubt.why)
        for one, doubt in sure.items()
        if one.subject in DOUBT_ALERTS
    ]
    return Decision(ends, (*told, *_alert_unreadable_jobs(seen)), remembered)


def _extend_doubt(before: Doubt | None, why: str, now: float) -> Doubt:
    return Doubt(now, 1, why) if before is None else Doubt(before.since, before.times + 1, why)


def _find_doubts(seen: Observation) -> Iterator[tuple[DoubtKey, str]]:
    """Give what is doubted now, and why."""
    wanted = {one.key: one for one in seen.clusters if one.state in WANTED_STATES}
    for key, cluster in wanted.items():
        job = seen.jobs.get(key)
        why = None if job is None else _find_objection(cluster, job)
        if why:
            yield DoubtKey(DoubtSubject.CLUSTER, key, cluster.attempt, cluster.spec.owner), why
    for key, job in seen.jobs.items():
        if not job.wants_cluster or job.standing is not JobPhase.RUNNING:
            continue
        if key not in wanted:
            yield (
                DoubtKey(DoubtSubject.JOB, key, job.attempt or 0),
                f"job {key} {job.words}, and there is no cluster of it",
            )
        elif not job.begun and wanted[key].state is ClusterState.ACTIVE:
            why = f"job {key} {job.words}, its cluster is up, and its script does not begin: qrerun -W force {key}"
            yield DoubtKey(DoubtSubject.START, key, job.attempt or 0), why


def _find_objection(cluster: ClusterView, job: SchedulerJob) -> str | None:
    """Say why a cluster is not its job's any more, if so."""
    if job.standing in {JobPhase.PENDING, JobPhase.GONE}:
        return f"job {job.key} {job.words}"
    if job.standing is JobPhase.RUNNING and job.attempt is not None and cluster.attempt < job.attempt:
        return f"job {job.key} {job.words} as its attempt {job.attempt}, the cluster is of attempt {cluster.attempt}"
    return None


def _alert_unreadable_jobs(seen: Observation) -> Iterator[Alert]:
    for key, job in seen.jobs.items():
        if job.standing is JobPhase.UNREADABLE:
            yield Alert(AlertName.JOB_UNREADABLE, key, f"job {key}: {job.words}; its cluster is left alone")


EXTEND_BELOW_S = 120
"""A lease that ends less than this after the job's walltime is extended; so much the two clocks may differ."""
EXTEND_TO_S = 900
"""… to this much after it, so that a job that does not go on is not extended at each look."""


def compute_extension(cluster: ClusterView, job: SchedulerJob, now: datetime) -> float | None:
    """Give the seconds from now that a cluster's lease must have, where it has too few."""
    running = job.standing is JobPhase.RUNNING and cluster.state in WANTED_STATES
    if not running or cluster.attempt < (job.attempt or 0):
        return None
    remaining = max(job.walltime_s - job.used_s, 0)
    left = (cluster.lease_ends - now).total_seconds()
    return float(remaining + EXTEND_TO_S) if left < remaining + EXTEND_BELOW_S else None
