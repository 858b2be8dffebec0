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

PURE. Jobs that came to this host and are not there any more, though nobody said that they ended.

The jobs known here, on disk before anybody is told: an agent that is killed goes on where it was.

A file for each job, ``<state>/jobs/<key>.json``, written whole beside its place and moved there.
"""

import os
import threading
import time
from collections.abc import Callable, Container, Iterable
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import TypeVar

from pydantic import ValidationError

from virtcloud.agent import log
from virtcloud.agent.job_access.access import JobAccess
from virtcloud.agent.job_socket.socket_requests import JobRunId, UpRequest
from virtcloud.agent.network.names import file_name
from virtcloud.model.document import Document
from virtcloud.model.errors import AttemptWaits, Gone, NotFound, Refused
from virtcloud.model.values import ClusterKey

UNCOUNTED_ATTEMPT = 0


class RecordPhase(StrEnum):
    """Where a job's cluster is in its life, as this host knows it."""

    ASKED = "asked"
    CANCELLED = "cancelled"
    LEAVING = "leaving"
    GONE = "gone"


class JobRecord(Document):
    """The newest run of a job that came here. ``opening`` is set once its script was told that the cluster is up."""

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
        """Tell it from the other runs."""
        return JobRunId(self.cluster, self.attempt, self.user)

    def is_same_run(self, other: "JobRecord") -> bool:
        """Say whether this is the same run of the same job."""
        return self.attempt == other.attempt and not self.belongs_to_other(other.user)

    def belongs_to_other(self, user: str | None) -> bool:
        """Say whether it is another user's job, as far as that was said."""
        return None not in {self.user, user} and self.user != user

    @property
    def description(self) -> str:
        """Say which run it is."""
        return f"cluster {self.cluster}" + (f", attempt {self.attempt}" if self.attempt else "")


def record_announcement(known: JobRecord | None, up: UpRequest) -> JobRecord:
    """Note that a run came to this host; raises Gone when it is over, AttemptWaits while a former one is removed."""
    if known and known.phase is RecordPhase.LEAVING and known.attempt == up.attempt == UNCOUNTED_ATTEMPT:
        raise AttemptWaits(f"{known.description} is still being removed from its former run: ask again")
    job = _current_run(None if known and known.belongs_to_other(up.user) else known, up.run)
    if job.phase in {RecordPhase.LEAVING, RecordPhase.GONE}:
        raise Gone(f"{job.description} is over: it was removed here ({job.reason or 'its job ended'})")
    return _change(job, head=up.head or job.head, user=up.user or job.user)


def record_cancellation(known: JobRecord | None, run: JobRunId, reason: str) -> JobRecord:
    """Give a run up; nothing changes for one that leaves already. Raises Gone."""
    job = _current_run(known, run)
    return _change(job, phase=RecordPhase.CANCELLED, reason=reason or None) if job.phase is RecordPhase.ASKED else job


def record_end(known: JobRecord | None, run: JobRunId, reason: str) -> JobRecord:
    """Let a run end; nothing changes for one that is gone. Raises Gone for one that a later run followed."""
    job = _current_run(known, run)
    return (
        job if job.phase is RecordPhase.GONE else _change(job, phase=RecordPhase.LEAVING, reason=job.reason or reason)
    )


def find_run(known: JobRecord | None, run: JobRunId) -> JobRecord:
    """Give the run that is asked for; raises Gone, and NotFound for one that was never announced here."""
    if known is None or (known.attempt < run.attempt and not known.belongs_to_other(run.user)):
        raise NotFound(
            f"cluster {run.cluster}, attempt {run.attempt} was never announced to this host's agent: "
            "announce it by 'up' first"
        )
    return _current_run(known, run)


def record_removal(job: JobRecord) -> JobRecord | None:
    """Note that this host is rid of a run; None: it is to be forgotten."""
    return None if job.attempt == UNCOUNTED_ATTEMPT else _change(job, phase=RecordPhase.GONE, opening=None)


def forget_run(known: JobRecord | None, run: JobRunId) -> JobRecord | None:
    """Forget a run that was announced, unless it leaves already or another has its place; its end may come yet."""
    return None if known and known.run == run and known.phase in {RecordPhase.ASKED, RecordPhase.CANCELLED} else known


def record_access(job: JobRecord, opening: JobAccess | None) -> JobRecord:
    """Note that a run was told that its cluster is up."""
    return _change(job, was_up=True, opening=opening)


def _current_run(known: JobRecord | None, run: JobRunId) -> JobRecord:
    cluster, attempt, user = run
    if known is not None and known.belongs_to_other(user):
        raise Gone(f"cluster {cluster}: the job of {user} is over, another user's came here since")
    if known is None or attempt > known.attempt:
        return JobRecord(cluster=cluster, attempt=attempt, user=user)
    if attempt < known.attempt:
        raise Gone(f"cluster {cluster}: attempt {attempt} is over, attempt {known.attempt} came here since")
    return known


def _change(job: JobRecord, **changes: object) -> JobRecord:
    return job.model_copy(update=changes)


@dataclass(frozen=True, slots=True)
class MissingJobs:
    """Since when (seconds of one clock) which runs are missed, and which of them for long enough."""

    since: dict[JobRunId, float]
    overdue: tuple[JobRecord, ...]


def find_missing_jobs(
    jobs: Iterable[JobRecord], present: Container[str], since: dict[JobRunId, float], now: float, grace: float
) -> MissingJobs:
    """Compare what is known with what the batch system has; the first miss only starts the clock."""
    missed = [
        job for job in jobs if job.phase in {RecordPhase.ASKED, RecordPhase.CANCELLED} and job.cluster not in present
    ]
    overdue = tuple(job for job in missed if job.run in since and now - since[job.run] >= grace)
    return MissingJobs({job.run: since.get(job.run, now) for job in missed}, overdue)


RecordT = TypeVar("RecordT", bound=JobRecord | None)
RETENTION_S = 7 * 86400.0
"""So long it is remembered that a run is gone: no batch system calls for a run later than that."""


class JobRecordStore:
    """All jobs known here. Thread-safe; its lock is held while a file is written and never while anybody is asked."""

    def __init__(self, folder: Path, clock: Callable[[], float] = time.time) -> None:
        """Read what is there; ``clock`` is the time of files. Raises Refused when the folder cannot be."""
        self._folder = folder
        self._clock = clock
        self._changed = threading.Condition()
        try:
            folder.mkdir(parents=True, exist_ok=True)
            self._jobs = {job.cluster: job for path in folder.glob("*.json") if (job := _read_record(path))}
            self._forget()
        except OSError as error:
            raise Refused(f"cannot keep jobs in {folder}: {error.strerror}; set 'state' in the settings") from error

    def get(self, cluster: str) -> JobRecord | None:
        """Give what is known under a key."""
        with self._changed:
            return self._jobs.get(ClusterKey(cluster))

    def all(self) -> list[JobRecord]:
        """Give all, in the order of their keys."""
        with self._changed:
            return [job for _, job in sorted(self._jobs.items())]

    def change(self, cluster: ClusterKey, how: Callable[[JobRecord | None], RecordT]) -> RecordT:
        """Put what ``how`` makes of a job in its place, on disk first, and give it; raises Refused, and its errors."""
        with self._changed:
            before = self._jobs.get(cluster)
            after = how(before)
            if after == before:
                return after
            self._write(cluster, after)
            if after is None:
                del self._jobs[cluster]
            else:
                self._jobs[cluster] = after
            if after is not None and after.phase is RecordPhase.GONE:
                self._forget()
            self._changed.notify_all()
            return after

    def wait(self, reached: Callable[[JobRecord | None], bool], cluster: str, seconds: float) -> bool:
        """Wait until a job is so, ``seconds`` at most; say whether it is."""
        with self._changed:
            return self._changed.wait_for(lambda: reached(self._jobs.get(ClusterKey(cluster))), seconds)

    def pause(self, seconds: float | None, *, unless: Callable[[], bool]) -> None:
        """Wait for any change, ``seconds`` at most; not at all when ``unless`` holds already."""
        with self._changed:
            if not unless():
                self._changed.wait(seconds)

    def wake(self) -> None:
        """End all waits: somebody has something new to look at."""
        with self._changed:
            self._changed.notify_all()

    def _forget(self) -> None:
        """Forget what has been gone for long."""
        oldest = self._clock() - RETENTION_S
        for job in [one for one in self._jobs.values() if one.phase is RecordPhase.GONE]:
            place = self._place(job.cluster)
            if not place.exists() or place.stat().st_mtime < oldest:
                place.unlink(missing_ok=True)
                del self._jobs[job.cluster]

    def _place(self, cluster: str) -> Path:
        return self._folder / f"{file_name(cluster)}.json"

    def _write(self, cluster: ClusterKey, job: JobRecord | None) -> None:
        place, new = self._place(cluster), self._folder / f".{file_name(cluster)}.new"
        try:
            if job is None:
                place.unlink(missing_ok=True)
            else:
                _write(new, job.model_dump_json(exclude_defaults=True).encode())
                new.rename(place)
            _write_through(self._folder)
        except OSError as error:
            raise Refused(f"cannot keep cluster {cluster} in {self._folder}: {error.strerror}") from error


def _read_record(path: Path) -> JobRecord | None:
    """Read a job; one that cannot be read is told and left."""
    try:
        return JobRecord.model_validate_json(path.read_bytes(), extra="ignore")  # a later agent may have written it
    except ValidationError as error:
        log.warning("job_unreadable", file=path, error=error.errors()[0]["msg"])
        return None


def _write(path: Path, content: bytes) -> None:
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    with os.fdopen(descriptor, "wb") as file:
        file.write(content)
        file.flush()
        os.fsync(descriptor)


def _write_through(folder: Path) -> None:
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
