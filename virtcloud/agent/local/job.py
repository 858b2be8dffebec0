"""PURE. What is known here of a job's cluster, and what each request makes of it.

=============  ========================================================================
phase          what it is
=============  ========================================================================
``asked``      a run has come here; its cluster is waited for, or is there
``cancelled``  the run was given up before its script ran
``leaving``    the run is over: SBF is asked to end that attempt until it has
``gone``       this host carries nothing of it; kept for a while, for late calls
=============  ========================================================================

A higher attempt takes the place of a lower one in any phase. Batch systems that do not count say 0: such a job is
forgotten when it is gone, so that its next run begins anew. A batch system that was set up anew gives a former job's
number to another user's: that one's ``up`` takes its place, and calls about the former job change nothing.
"""

from enum import StrEnum

from virtcloud.agent.jobport import Opening
from virtcloud.agent.local.requests import Run, Up
from virtcloud.model.document import Document
from virtcloud.model.errors import AttemptWaits, Gone, NotFound
from virtcloud.model.values import ClusterKey

UNCOUNTED = 0


class Phase(StrEnum):
    """Where a job's cluster is in its life, as this host knows it."""

    ASKED = "asked"
    CANCELLED = "cancelled"
    LEAVING = "leaving"
    GONE = "gone"


class Job(Document):
    """The newest run of a job that came here. ``opening`` is set once its script was told that the cluster is up."""

    cluster: ClusterKey
    attempt: int
    phase: Phase = Phase.ASKED
    head: bool = False
    user: str | None = None
    reason: str | None = None
    opening: Opening | None = None
    was_up: bool = False

    @property
    def run(self) -> Run:
        """Tell it from the other runs."""
        return Run(self.cluster, self.attempt, self.user)

    def is_run(self, other: "Job") -> bool:
        """Say whether this is the same run of the same job."""
        return self.attempt == other.attempt and not self.is_not_of(other.user)

    def is_not_of(self, user: str | None) -> bool:
        """Say whether it is another user's job, as far as that was said."""
        return None not in {self.user, user} and self.user != user

    @property
    def words(self) -> str:
        """Say which run it is."""
        return f"cluster {self.cluster}" + (f", attempt {self.attempt}" if self.attempt else "")


def announced(known: Job | None, up: Up) -> Job:
    """Note that a run came to this host; raises Gone when it is over, AttemptWaits while a former one is removed."""
    if known and known.phase is Phase.LEAVING and known.attempt == up.attempt == UNCOUNTED:
        raise AttemptWaits(f"{known.words} is still being removed from its former run: ask again")
    job = _current(None if known and known.is_not_of(up.user) else known, up.run)
    if job.phase in {Phase.LEAVING, Phase.GONE}:
        raise Gone(f"{job.words} is over: it was removed here ({job.reason or 'its job ended'})")
    return _with(job, head=up.head or job.head, user=up.user or job.user)


def cancelled(known: Job | None, run: Run, reason: str) -> Job:
    """Give a run up; nothing changes for one that leaves already. Raises Gone."""
    job = _current(known, run)
    return _with(job, phase=Phase.CANCELLED, reason=reason or None) if job.phase is Phase.ASKED else job


def leaving(known: Job | None, run: Run, reason: str) -> Job:
    """Let a run end; nothing changes for one that is gone. Raises Gone for one that a later run followed."""
    job = _current(known, run)
    return job if job.phase is Phase.GONE else _with(job, phase=Phase.LEAVING, reason=job.reason or reason)


def asked_for(known: Job | None, run: Run) -> Job:
    """Give the run that is asked for; raises Gone, and NotFound for one that was never announced here."""
    if known is None or (known.attempt < run.attempt and not known.is_not_of(run.user)):
        raise NotFound(
            f"cluster {run.cluster}, attempt {run.attempt} was never announced to this host's agent: "
            "announce it by 'up' first"
        )
    return _current(known, run)


def gone(job: Job) -> Job | None:
    """Note that this host is rid of a run; None: it is to be forgotten."""
    return None if job.attempt == UNCOUNTED else _with(job, phase=Phase.GONE, opening=None)


def forgotten(known: Job | None, run: Run) -> Job | None:
    """Forget a run that was announced, unless it leaves already or another has its place; its end may come yet."""
    return None if known and known.run == run and known.phase in {Phase.ASKED, Phase.CANCELLED} else known


def reached(job: Job, opening: Opening | None) -> Job:
    """Note that a run was told that its cluster is up."""
    return _with(job, was_up=True, opening=opening)


def _current(known: Job | None, run: Run) -> Job:
    cluster, attempt, user = run
    if known is not None and known.is_not_of(user):
        raise Gone(f"cluster {cluster}: the job of {user} is over, another user's came here since")
    if known is None or attempt > known.attempt:
        return Job(cluster=cluster, attempt=attempt, user=user)
    if attempt < known.attempt:
        raise Gone(f"cluster {cluster}: attempt {attempt} is over, attempt {known.attempt} came here since")
    return known


def _with(job: Job, **changes: object) -> Job:
    return job.model_copy(update=changes)
