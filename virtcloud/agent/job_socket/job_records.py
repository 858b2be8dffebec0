"""Job records: the latest run of each job on this host, and the effects of requests on a record.

=============  ============================================================================
phase          meaning
=============  ============================================================================
``asked``      the request ``up`` announced the run; the cluster is being set up, or is up
``cancelled``  the run was cancelled; the job's script must not start
``leaving``    the run is over; the agent requests the end of the cluster from SBF and
               waits until the cluster is removed from this host
``gone``       the cluster is removed from this host; the record remains for a week, so
               that the agent can answer late requests
=============  ============================================================================

A run with a higher attempt number replaces the recorded run in any phase. A batch system that does not count attempts
sends the number 0. A record with the number 0 is deleted with the cluster, so that the job can run again.

After a reinstallation, a batch system may assign an earlier job's ID to a new job of another user. The new job's ``up``
replaces the record. After that, requests about the earlier job change nothing.
"""

import math
from collections.abc import Container, Iterable
from dataclasses import dataclass, field
from enum import StrEnum

from virtcloud.agent.job_access.access import JobAccess
from virtcloud.agent.job_socket.socket_requests import JobRunId, UpRequest
from virtcloud.model.document import Document
from virtcloud.model.errors import AttemptWaits, Gone, NotFound
from virtcloud.model.values import ClusterKey

UNCOUNTED_ATTEMPT = 0
LIST_GAP_S = 120
"""If no list of jobs arrives for this number of seconds, every measurement of how long a job is missing starts again.

This number is twice the period of the MoM hook's lists. Without lists, the agent does not know whether a job continued.
"""


class RecordPhase(StrEnum):
    """Phase of a job's latest run on this host."""

    ASKED = "asked"
    CANCELLED = "cancelled"
    LEAVING = "leaving"
    GONE = "gone"


class JobRecord(Document):
    """The latest run of a job on this host.

    ``head``: the job's script runs on this host. ``was_up``: the cluster was up when a hook asked for the cluster's
    state. ``opening`` is set together with ``was_up``: the script's access to the guests, or None if the script has no
    access on this host.
    """

    cluster: ClusterKey
    attempt: int
    phase: RecordPhase = RecordPhase.ASKED
    head: bool = False
    user: str | None = None
    reason: str | None = None
    opening: JobAccess | None = None
    was_up: bool = False

    @property
    def run(self) -> JobRunId:
        """The identification of the run."""
        return JobRunId(self.cluster, self.attempt, self.user)

    def is_same_run(self, other: "JobRecord") -> bool:
        """Return whether ``other`` has the same attempt number and, if both users are known, the same user."""
        return self.attempt == other.attempt and not self.belongs_to_other(other.user)

    def belongs_to_other(self, user: str | None) -> bool:
        """Return whether this job's user is known and differs from ``user``. Return False if ``user`` is None."""
        return None not in {self.user, user} and self.user != user

    @property
    def description(self) -> str:
        """The run in messages, for example "cluster 12.pbs, attempt 2"."""
        return f"cluster {self.cluster}" + (f", attempt {self.attempt}" if self.attempt else "")


def record_announcement(known: JobRecord | None, up: UpRequest) -> JobRecord:
    """Return the record after a request ``up``, which announces a run on this host. Pure.

    Raise Gone if the run is over. If attempts are not counted, raise AttemptWaits while the job's previous run is being
    removed. If attempts are not counted and the cluster of the recorded run was up, the request announces a new run.
    The end of the recorded run was then not reported, for example because of a crash of the host.
    """
    if known and known.phase is RecordPhase.LEAVING and known.attempt == up.attempt == UNCOUNTED_ATTEMPT:
        raise AttemptWaits(f"{known.description}: the former run is still being removed; retry later")
    is_former = known is not None and known.attempt == up.attempt == UNCOUNTED_ATTEMPT and known.was_up
    job = _current_run(None if is_former or (known and known.belongs_to_other(up.user)) else known, up.run)
    if job.phase in {RecordPhase.LEAVING, RecordPhase.GONE}:
        raise Gone(f"{job.description} is over: removed from this host ({job.reason or 'its job ended'})")
    return _change(job, head=up.head or job.head, user=up.user or job.user)


def record_cancellation(known: JobRecord | None, run: JobRunId, reason: str) -> JobRecord:
    """Return the record after a cancellation. A run that is over stays unchanged. Pure.

    Raise Gone if the key belongs to a later run or to another user's job.
    """
    job = _current_run(known, run)
    return _change(job, phase=RecordPhase.CANCELLED, reason=reason or None) if job.phase is RecordPhase.ASKED else job


def record_end(known: JobRecord | None, run: JobRunId, reason: str) -> JobRecord:
    """Return the record after the end of a run. A removed run stays unchanged. Pure.

    Raise Gone if the key belongs to a later run or to another user's job.
    """
    job = _current_run(known, run)
    return (
        job if job.phase is RecordPhase.GONE else _change(job, phase=RecordPhase.LEAVING, reason=job.reason or reason)
    )


def find_run(known: JobRecord | None, run: JobRunId) -> JobRecord:
    """Return the record of a run. Pure.

    Raise Gone if the key belongs to a later run or to another user's job. Raise NotFound if the run was never announced
    on this host.
    """
    if known is None or (known.attempt < run.attempt and not known.belongs_to_other(run.user)):
        raise NotFound(
            f"cluster {run.cluster}, attempt {run.attempt} was never announced to this host's agent; "
            "send the request 'up' first"
        )
    return _current_run(known, run)


def record_removal(job: JobRecord) -> JobRecord | None:
    """Return the record after the cluster's removal from this host, or None to delete the record. Pure."""
    return None if job.attempt == UNCOUNTED_ATTEMPT else _change(job, phase=RecordPhase.GONE, opening=None)


def forget_run(known: JobRecord | None, run: JobRunId) -> JobRecord | None:
    """Return None, which deletes the record, if ``known`` is the record of ``run`` and the run is not over. Pure.

    In all other cases, return ``known``.
    """
    return None if known and known.run == run and known.phase in {RecordPhase.ASKED, RecordPhase.CANCELLED} else known


def record_access(job: JobRecord, opening: JobAccess | None) -> JobRecord:
    """Return the record after a hook asked for the state and the cluster was up. Pure.

    ``opening`` is the script's access.
    """
    return _change(job, was_up=True, opening=opening)


def _current_run(known: JobRecord | None, run: JobRunId) -> JobRecord:
    cluster, attempt, user = run
    if known is not None and known.belongs_to_other(user):
        raise Gone(f"cluster {cluster}: the job of {user} is over; the key now belongs to a job of another user")
    if known is None or attempt > known.attempt:
        return JobRecord(cluster=cluster, attempt=attempt, user=user)
    if attempt < known.attempt:
        raise Gone(f"cluster {cluster}: attempt {attempt} is over; attempt {known.attempt} was announced to this host")
    return known


def _change(job: JobRecord, **changes: object) -> JobRecord:
    return job.model_copy(update=changes)


@dataclass(frozen=True, slots=True)
class MissingJobs:
    """Runs whose jobs are missing from the batch system's list of jobs.

    ``listed_at`` is when the list arrived. ``since`` maps each run to when its job was first missing. Both are in
    seconds of the caller's clock. ``overdue`` contains the runs whose jobs have been missing for the grace period.
    """

    listed_at: float = -math.inf
    since: dict[JobRunId, float] = field(default_factory=dict)
    overdue: tuple[JobRecord, ...] = ()


def find_missing_jobs(
    jobs: Iterable[JobRecord], present: Container[str], former: MissingJobs, now: float, grace: float
) -> MissingJobs:
    """Return the runs whose jobs are missing from the batch system's list of jobs. Pure.

    ``present`` are the keys in the list. ``former`` is the result of the previous call. ``now`` and ``grace`` are in
    seconds. A run is overdue if its job has been missing for ``grace`` seconds, without a gap of `LIST_GAP_S` seconds
    between two lists. Runs without an attempt number are never missing: they are jobs of Torque, which sends no lists.
    On a host that also runs OpenPBS, OpenPBS's lists do not contain jobs of Torque.
    """
    since = former.since if now - former.listed_at < LIST_GAP_S else {}
    missing = [
        job
        for job in jobs
        if job.attempt != UNCOUNTED_ATTEMPT
        and job.phase in {RecordPhase.ASKED, RecordPhase.CANCELLED}
        and job.cluster not in present
    ]
    overdue = tuple(job for job in missing if job.run in since and now - since[job.run] >= grace)
    return MissingJobs(now, {job.run: since.get(job.run, now) for job in missing}, overdue)
