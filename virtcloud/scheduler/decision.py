"""Decides which clusters to end and which alerts to raise; computes extensions of leases. Pure.

A *doubt* is a mismatch between a job and its cluster that a single observation shows, and that may be temporary. A
cluster is *in doubt* if the batch system reports that the cluster's job does not run, or runs a later attempt. If
several observations in a row show this doubt, and the grace period has passed, the cluster is ended.

A job is in doubt if it runs but has no cluster, or if its script does not start although its cluster is active. After
several observations in a row and a grace period, this doubt raises an alert. If the batch system's answer lacks a job,
this causes no doubt.
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
    """Names of alerts in logs and in the status file; docs/how-to/when-something-fails.md lists the remedies."""

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
    """An alert about a job, a cluster, a host or a service, as one line of text."""

    name: AlertName
    about: str
    text: str


class DoubtSubject(StrEnum):
    """The subject of a doubt: a cluster without a running job, a job without a cluster, a script not started."""

    CLUSTER = "cluster"
    JOB = "job"
    START = "start"


@dataclass(frozen=True, slots=True)
class DoubtKey:
    """Identifies a doubt about one attempt of a cluster or job.

    If the attempt or the owner changes, the next observation begins a new doubt.
    """

    subject: DoubtSubject
    key: ClusterKey
    attempt: int
    owner: str | None = None


@dataclass(frozen=True, slots=True)
class Doubt:
    """A doubt. ``since``: the time of its first observation, in monotonic seconds.

    ``observations``: the number of successive observations that showed the doubt.
    """

    since: float
    observations: int
    why: str


DoubtMemory = Mapping[DoubtKey, Doubt]
DOUBT_ALERTS = {DoubtSubject.JOB: AlertName.JOB_WITHOUT_CLUSTER, DoubtSubject.START: AlertName.JOB_NOT_BEGUN}
SCRIPT_START_S = 900
"""Time in seconds after which a script that has not started never starts: PBS kills the MoM hook after ten minutes."""


@dataclass(frozen=True, slots=True)
class DoubtRules:
    """The number of observations and the grace period after which a doubt ends a cluster or raises an alert.

    While the batch system has no job at all, ``grace_empty_s`` replaces ``grace_s``.
    """

    observations: int = 2
    grace_s: float = 120.0
    grace_empty_s: float = 900.0


@dataclass(frozen=True, slots=True)
class Observation:
    """A complete observation: a batch system's jobs, and their clusters. ``empty``: the batch system has no job."""

    clusters: Collection[ClusterView]
    jobs: Mapping[ClusterKey, SchedulerJob]
    empty: bool = False


@dataclass(frozen=True, slots=True)
class ClusterEnd:
    """A cluster to end, and the reason."""

    key: ClusterKey
    attempt: int
    why: str
    owner: str | None = None


@dataclass(frozen=True, slots=True)
class Decision:
    """The clusters to end, the alerts, and the doubts to pass to the next decision."""

    ends: tuple[ClusterEnd, ...] = ()
    alerts: tuple[Alert, ...] = ()
    memory: DoubtMemory = field(default_factory=dict)


def decide(observation: Observation, memory: DoubtMemory, now: float, rules: DoubtRules) -> Decision:
    """Return the decision after a complete observation. ``now`` is in monotonic seconds.

    ``memory`` contains the doubts of the previous decision, and is empty after a failed observation.
    """
    doubts = dict(_find_doubts(observation))
    remembered = {about: _extend_doubt(memory.get(about), why, now) for about, why in doubts.items()}
    grace = rules.grace_empty_s if observation.empty else rules.grace_s
    graces = {DoubtSubject.CLUSTER: grace, DoubtSubject.JOB: grace, DoubtSubject.START: SCRIPT_START_S}
    confirmed = {
        about: doubt
        for about, doubt in remembered.items()
        if doubt.observations >= rules.observations and now - doubt.since >= graces[about.subject]
    }
    clusters = [(about, doubt.why) for about, doubt in confirmed.items() if about.subject is DoubtSubject.CLUSTER]
    ends = tuple(ClusterEnd(about.key, about.attempt, why, about.owner) for about, why in clusters)
    doubt_alerts = [
        Alert(DOUBT_ALERTS[about.subject], about.key, doubt.why)
        for about, doubt in confirmed.items()
        if about.subject in DOUBT_ALERTS
    ]
    return Decision(ends, (*doubt_alerts, *_alert_unreadable_jobs(observation)), remembered)


def _extend_doubt(before: Doubt | None, why: str, now: float) -> Doubt:
    return Doubt(now, 1, why) if before is None else Doubt(before.since, before.observations + 1, why)


def _find_doubts(observation: Observation) -> Iterator[tuple[DoubtKey, str]]:
    """Yield the current doubts and their reasons."""
    wanted = {cluster.key: cluster for cluster in observation.clusters if cluster.state in WANTED_STATES}
    for key, cluster in wanted.items():
        job = observation.jobs.get(key)
        why = None if job is None else _find_mismatch(cluster, job)
        if why:
            yield DoubtKey(DoubtSubject.CLUSTER, key, cluster.attempt, cluster.spec.owner), why
    for key, job in observation.jobs.items():
        if not job.wants_cluster or job.phase is not JobPhase.RUNNING:
            continue
        if key not in wanted:
            yield (
                DoubtKey(DoubtSubject.JOB, key, job.attempt or 0),
                f"job {key} {job.description} and has no cluster",
            )
        elif not job.script_started and wanted[key].state is ClusterState.ACTIVE:
            why = (
                f"job {key} {job.description}, its cluster is active, and its script does not start; "
                f"run qrerun -W force {key}"
            )
            yield DoubtKey(DoubtSubject.START, key, job.attempt or 0), why


def _find_mismatch(cluster: ClusterView, job: SchedulerJob) -> str | None:
    """Return the reason why a cluster no longer belongs to its job, or None if the cluster belongs to the job."""
    if job.phase in {JobPhase.PENDING, JobPhase.GONE}:
        return f"job {job.key} {job.description}"
    if job.phase is JobPhase.RUNNING and job.attempt is not None and cluster.attempt < job.attempt:
        runs = f"job {job.key} {job.description} as attempt {job.attempt}"
        return f"{runs}, the cluster belongs to attempt {cluster.attempt}"
    return None


def _alert_unreadable_jobs(observation: Observation) -> Iterator[Alert]:
    for key, job in observation.jobs.items():
        if job.phase is JobPhase.UNREADABLE:
            yield Alert(AlertName.JOB_UNREADABLE, key, f"job {key}: {job.description}; the cluster is left unchanged")


EXTEND_BELOW_S = 120
"""A lease is extended if it ends less than this many seconds after the end of the job's walltime. Therefore the clocks
of SBF and the agent may differ by up to this time.
"""
EXTEND_TO_S = 900
"""A lease is extended to this many seconds after the end of the job's walltime. The end of a suspended job's walltime
moves, and this long extension limits the number of extensions.
"""


def compute_extension(cluster: ClusterView, job: SchedulerJob, now: datetime) -> float | None:
    """Return the new duration of a cluster's lease in seconds from now, or None if no extension is needed."""
    running = job.phase is JobPhase.RUNNING and cluster.state in WANTED_STATES
    if not running or cluster.attempt < (job.attempt or 0):
        return None
    remaining = max(job.walltime_s - job.used_s, 0)
    lease_s = (cluster.lease_ends - now).total_seconds()
    return float(remaining + EXTEND_TO_S) if lease_s < remaining + EXTEND_BELOW_S else None
