"""PURE. Which clusters are to be ended, and what administrators are to be told, from two lists and a memory.

A cluster is *doubted* when the scheduler says, by name, that its job does not run, or runs another attempt. It is
ended when it was doubted at each of several looks in a row, and for a while. A job is doubted likewise when it runs
without a cluster, or its script does not begin though the cluster is up; then administrators are told. Of a job that
the scheduler said nothing of, nothing is concluded.
"""

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field
from enum import StrEnum

from virtcloud.model.cluster import WANTED, State
from virtcloud.model.values import ClusterKey
from virtcloud.model.views import ClusterView
from virtcloud.scheduler.alerts import Alert, AlertName
from virtcloud.scheduler.jobs import Job, Standing


class Subject(StrEnum):
    """What a doubt is about."""

    CLUSTER = "cluster"
    JOB = "job"
    START = "start"


@dataclass(frozen=True, slots=True)
class About:
    """One attempt of a cluster or of a job; another attempt, or another owner's cluster, is another doubt."""

    subject: Subject
    key: ClusterKey
    attempt: int
    owner: str | None = None


@dataclass(frozen=True, slots=True)
class Doubt:
    """Since when (monotonic seconds) and how many times in a row something was doubted, and why the last time."""

    since: float
    times: int
    why: str


Memory = Mapping[About, Doubt]
TOLD = {Subject.JOB: AlertName.JOB_WITHOUT_CLUSTER, Subject.START: AlertName.JOB_NOT_BEGUN}
START_S = 900
"""A script begins within the alarm of the hosts' hook, ten minutes, or never."""


@dataclass(frozen=True, slots=True)
class Rules:
    """When a doubt is acted upon: after so many looks and seconds; longer where the scheduler has no job at all."""

    looks: int = 2
    grace_s: float = 120.0
    grace_empty_s: float = 900.0


@dataclass(frozen=True, slots=True)
class Seen:
    """One good look: the clusters that are this scheduler's, and what it says of jobs, of theirs and of others."""

    clusters: Collection[ClusterView]
    jobs: Mapping[ClusterKey, Job]
    empty: bool = False


@dataclass(frozen=True, slots=True)
class End:
    """An attempt's cluster is to be ended."""

    key: ClusterKey
    attempt: int
    why: str
    owner: str | None = None


@dataclass(frozen=True, slots=True)
class Verdict:
    """What is to be done and told, and what is to be remembered until the next look."""

    ends: tuple[End, ...] = ()
    alerts: tuple[Alert, ...] = ()
    memory: Memory = field(default_factory=dict)


def decide(seen: Seen, memory: Memory, now: float, rules: Rules) -> Verdict:
    """Decide after a good look; ``now`` is monotonic. After a look that failed, begin with an empty memory."""
    doubts = dict(_doubts(seen))
    remembered = {about: _older(memory.get(about), why, now) for about, why in doubts.items()}
    grace = rules.grace_empty_s if seen.empty else rules.grace_s
    graces = {Subject.CLUSTER: grace, Subject.JOB: grace, Subject.START: START_S}
    sure = {
        about: doubt
        for about, doubt in remembered.items()
        if doubt.times >= rules.looks and now - doubt.since >= graces[about.subject]
    }
    clusters = [(one, doubt.why) for one, doubt in sure.items() if one.subject is Subject.CLUSTER]
    ends = tuple(End(one.key, one.attempt, why, one.owner) for one, why in clusters)
    told = [Alert(TOLD[one.subject], one.key, doubt.why) for one, doubt in sure.items() if one.subject in TOLD]
    return Verdict(ends, (*told, *_unreadable(seen)), remembered)


def _older(before: Doubt | None, why: str, now: float) -> Doubt:
    return Doubt(now, 1, why) if before is None else Doubt(before.since, before.times + 1, why)


def _doubts(seen: Seen) -> Iterator[tuple[About, str]]:
    """Give what is doubted now, and why."""
    wanted = {one.key: one for one in seen.clusters if one.state in WANTED}
    for key, cluster in wanted.items():
        job = seen.jobs.get(key)
        why = None if job is None else _against(cluster, job)
        if why:
            yield About(Subject.CLUSTER, key, cluster.attempt, cluster.spec.owner), why
    for key, job in seen.jobs.items():
        if not job.wants_cluster or job.standing is not Standing.RUNNING:
            continue
        if key not in wanted:
            yield About(Subject.JOB, key, job.attempt or 0), f"job {key} {job.words}, and there is no cluster of it"
        elif not job.begun and wanted[key].state is State.ACTIVE:
            why = f"job {key} {job.words}, its cluster is up, and its script does not begin: qrerun -W force {key}"
            yield About(Subject.START, key, job.attempt or 0), why


def _against(cluster: ClusterView, job: Job) -> str | None:
    """Say why a cluster is not its job's any more, if so."""
    if job.standing in {Standing.PENDING, Standing.GONE}:
        return f"job {job.key} {job.words}"
    if job.standing is Standing.RUNNING and job.attempt is not None and cluster.attempt < job.attempt:
        return f"job {job.key} {job.words} as its attempt {job.attempt}, the cluster is of attempt {cluster.attempt}"
    return None


def _unreadable(seen: Seen) -> Iterator[Alert]:
    for key, job in seen.jobs.items():
        if job.standing is Standing.UNREADABLE:
            yield Alert(AlertName.JOB_UNREADABLE, key, f"job {key}: {job.words}; its cluster is left alone")
