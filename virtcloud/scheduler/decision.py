"""Decides which clusters to end and which alerts to raise; computes extensions of leases. Pure.

A cluster is *in doubt* if the batch system reports that the cluster's job does not run, or runs a later attempt. The
cluster is ended after several doubtful observations in a row and a grace period.

A job is in doubt if it runs but has no cluster, or if the job's script does not start although the job's cluster is
active. A doubt about a job raises an alert. A job that is missing in the batch system's answer causes no doubt.
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
    """The subject of a doubt."""

    CLUSTER = "cluster"
    JOB = "job"
    START = "start"


@dataclass(frozen=True, slots=True)
class DoubtKey:
    """Identifies a doubt about one attempt of a cluster or job.

    A change of the attempt or of the owner begins a new doubt.
    """

    subject: DoubtSubject
    key: ClusterKey
    attempt: int
    owner: str | None = None


@dataclass(frozen=True, slots=True)
class Doubt:
    """A doubt. ``since``: monotonic seconds. ``observations``: the number of doubtful observations in a row."""

    since: float
    observations: int
    why: str


DoubtMemory = Mapping[DoubtKey, Doubt]
DOUBT_ALERTS = {DoubtSubject.JOB: AlertName.JOB_WITHOUT_CLUSTER, DoubtSubject.START: AlertName.JOB_NOT_BEGUN}
SCRIPT_START_S = 900
"""After this time (in seconds), a script will not start any more, because the MoM hook is killed after ten minutes."""


@dataclass(frozen=True, slots=True)
class DoubtRules:
    """The number of observations and the grace period after which a doubt has consequences.

    ``grace_empty_s`` applies while the batch system has no job at all.
    """

    observations: int = 2
    grace_s: float = 120.0
    grace_empty_s: float = 900.0


@dataclass(frozen=True, slots=True)
class Observation:
    """A complete observation of one batch system: clusters and jobs. ``empty``: the batch system has no job."""

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
    """Return the reason why a cluster does not belong to its job any more, or None."""
    if job.phase in {JobPhase.PENDING, JobPhase.GONE}:
        return f"job {job.key} {job.description}"
    if job.phase is JobPhase.RUNNING and job.attempt is not None and cluster.attempt < job.attempt:
        return f"job {job.key} {job.description} as attempt {job.attempt}, the cluster is of attempt {cluster.attempt}"
    return None


def _alert_unreadable_jobs(observation: Observation) -> Iterator[Alert]:
    for key, job in observation.jobs.items():
        if job.phase is JobPhase.UNREADABLE:
            yield Alert(AlertName.JOB_UNREADABLE, key, f"job {key}: {job.description}; the cluster is left unchanged")


EXTEND_BELOW_S = 120
"""A lease is extended if it ends less than this many seconds after the end of the job's walltime. The clocks of SBF and
the agent may differ by up to this time.
"""
EXTEND_TO_S = 900
"""A lease is extended to this many seconds after the end of the job's walltime. Therefore a suspended job needs few
extensions.
"""


def compute_extension(cluster: ClusterView, job: SchedulerJob, now: datetime) -> float | None:
    """Return the new duration of a cluster's lease in seconds from now, or None if no extension is needed."""
    running = job.phase is JobPhase.RUNNING and cluster.state in WANTED_STATES
    if not running or cluster.attempt < (job.attempt or 0):
        return None
    remaining = max(job.walltime_s - job.used_s, 0)
    lease_s = (cluster.lease_ends - now).total_seconds()
    return float(remaining + EXTEND_TO_S) if lease_s < remaining + EXTEND_BELOW_S else None
