"""PURE. Jobs that came to this host and are not there any more, though nobody said that they ended."""

from collections.abc import Container, Iterable
from dataclasses import dataclass

from virtcloud.agent.local.job import Job, Phase
from virtcloud.agent.local.requests import Run


@dataclass(frozen=True, slots=True)
class Absent:
    """Since when (seconds of one clock) which runs are missed, and which of them for long enough."""

    since: dict[Run, float]
    overdue: tuple[Job, ...]


def absent(jobs: Iterable[Job], present: Container[str], since: dict[Run, float], now: float, grace: float) -> Absent:
    """Compare what is known with what the batch system has; the first miss only starts the clock."""
    missed = [job for job in jobs if job.phase in {Phase.ASKED, Phase.CANCELLED} and job.cluster not in present]
    overdue = tuple(job for job in missed if job.run in since and now - since[job.run] >= grace)
    return Absent({job.run: since.get(job.run, now) for job in missed}, overdue)
