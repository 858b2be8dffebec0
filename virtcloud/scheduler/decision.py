"""Decides which clusters to end and which alerts to raise; computes extensions of leases. Pure.

A *mismatch* is a contradiction between a job and its cluster in one observation. A mismatch can be temporary. A
mismatch has consequences only if several observations in a row show the mismatch, and if the grace period has passed:

=================================================================  ====================
mismatch                                                           consequence
=================================================================  ====================
the cluster's job does not run, or runs a later attempt            the cluster is ended
the job runs, but has no cluster                                   an alert
the job's cluster is active, but the job's script does not start   an alert
=================================================================  ====================

If the batch system's answer does not contain a cluster's job, the missing job counts as no mismatch, and the cluster
continues.
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


class MismatchKind(StrEnum):
    """The kinds of mismatches.

    ``CLUSTER``: the job does not run, or runs a later attempt. ``JOB``: the cluster is missing. ``START``: the job's
    script does not start.
    """

    CLUSTER = "cluster"
    JOB = "job"
    START = "start"


@dataclass(frozen=True, slots=True)
class MismatchKey:
    """Identifies a mismatch of one attempt of a cluster or job.

    After a change of the attempt or the owner, the next observation begins a new mismatch.
    """

    kind: MismatchKind
    key: ClusterKey
    attempt: int
    owner: str | None = None


@dataclass(frozen=True, slots=True)
class Mismatch:
    """A mismatch. ``since``: the time of its first observation, in monotonic seconds.

    ``observations``: the number of successive observations with the mismatch. ``why``: the reason, for messages.
    """

    since: float
    observations: int
    why: str


Mismatches = Mapping[MismatchKey, Mismatch]
MISMATCH_ALERTS = {MismatchKind.JOB: AlertName.JOB_WITHOUT_CLUSTER, MismatchKind.START: AlertName.JOB_NOT_BEGUN}
SCRIPT_START_S = 900
"""Grace period in seconds if a script does not start.

The MoM hook delays the start, and PBS kills this hook after 600 s.
"""


@dataclass(frozen=True, slots=True)
class GraceRules:
    """The number of observations and the grace period after which a mismatch ends a cluster or raises an alert.

    While the batch system has no job at all, ``grace_empty_s`` replaces ``grace_s``. For a script that does not start,
    the grace period is always `SCRIPT_START_S`. ``interval_s``: the seconds from one observation to the next.
    """

    observations: int = 2
    grace_s: float = 120.0
    grace_empty_s: float = 900.0
    interval_s: float = 0.0


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
    """The clusters to end, the alerts, and the mismatches to pass to the next call of ``decide``."""

    ends: tuple[ClusterEnd, ...] = ()
    alerts: tuple[Alert, ...] = ()
    mismatches: Mismatches = field(default_factory=dict)


def decide(observation: Observation, former: Mismatches, now: float, rules: GraceRules) -> Decision:
    """Return the decision after a complete observation. ``now`` is in monotonic seconds.

    ``former`` contains the mismatches of the previous decision. After a failed observation, ``former`` is empty.
    """
    current = dict(_find_mismatches(observation))
    remembered = {about: _extend_mismatch(former.get(about), why, now) for about, why in current.items()}
    grace = rules.grace_empty_s if observation.empty else rules.grace_s
    graces = {MismatchKind.CLUSTER: grace, MismatchKind.JOB: grace, MismatchKind.START: SCRIPT_START_S}
    confirmed = {
        about: mismatch
        for about, mismatch in remembered.items()
        if mismatch.observations >= rules.observations and now - mismatch.since >= graces[about.kind]
    }
    clusters = [(about, mismatch.why) for about, mismatch in confirmed.items() if about.kind is MismatchKind.CLUSTER]
    ends = tuple(ClusterEnd(about.key, about.attempt, why, about.owner) for about, why in clusters)
    mismatch_alerts = [
        Alert(MISMATCH_ALERTS[about.kind], about.key, mismatch.why)
        for about, mismatch in confirmed.items()
        if about.kind in MISMATCH_ALERTS
    ]
    return Decision(ends, (*mismatch_alerts, *_alert_unreadable_jobs(observation)), remembered)


def _extend_mismatch(before: Mismatch | None, why: str, now: float) -> Mismatch:
    return Mismatch(now, 1, why) if before is None else Mismatch(before.since, before.observations + 1, why)


def _find_mismatches(observation: Observation) -> Iterator[tuple[MismatchKey, str]]:
    wanted = {cluster.key: cluster for cluster in observation.clusters if cluster.state in WANTED_STATES}
    for key, cluster in wanted.items():
        job = observation.jobs.get(key)
        why = None if job is None else _describe_mismatch(cluster, job)
        if why:
            yield MismatchKey(MismatchKind.CLUSTER, key, cluster.attempt, cluster.spec.owner), why
    for key, job in observation.jobs.items():
        if not job.wants_cluster or job.phase is not JobPhase.RUNNING:
            continue
        if key not in wanted:
            yield (
                MismatchKey(MismatchKind.JOB, key, job.attempt or 0),
                f"job {key} {job.description} and has no cluster",
            )
        elif not job.script_started and wanted[key].state is ClusterState.ACTIVE:
            why = (
                f"job {key} {job.description}, its cluster is active, and its script does not start; "
                f"run qrerun -W force {key}"
            )
            yield MismatchKey(MismatchKind.START, key, job.attempt or 0), why


def _describe_mismatch(cluster: ClusterView, job: SchedulerJob) -> str | None:
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
"""A lease is extended if its end is less than this many seconds after the end of the job's walltime.

Because of this margin, the clock of SBF and the clock of the agent on the batch server may differ by up to
``EXTEND_BELOW_S`` seconds. The time until the next observation is added to the margin: if the job is suspended during
this time, the end of its walltime moves to a later time.
"""
EXTEND_TO_S = 900
"""A lease is extended to this many seconds after the end of the job's walltime.

While a job is suspended, the end of its walltime moves to later times, and the lease must be extended repeatedly. A
long extension limits the number of extensions.
"""


def compute_extension(cluster: ClusterView, job: SchedulerJob, now: datetime, interval_s: float = 0.0) -> float | None:
    """Return the new duration of a cluster's lease in seconds from now, or None if no extension is needed.

    ``interval_s``: the seconds until the next observation of the job.
    """
    running = job.phase is JobPhase.RUNNING and cluster.state in WANTED_STATES
    if not running or cluster.attempt < (job.attempt or 0):
        return None
    remaining = max(job.walltime_s - job.used_s, 0)
    lease_s = (cluster.lease_ends - now).total_seconds()
    return float(remaining + EXTEND_TO_S) if lease_s < remaining + interval_s + EXTEND_BELOW_S else None
