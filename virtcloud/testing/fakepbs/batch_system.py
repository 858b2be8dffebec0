"""Interfaces to a batch system with hooks.

`FakeBatch` and a real OpenPBS implement these interfaces, so the same scenarios run on both systems.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Protocol


class BatchJobState(StrEnum):
    """A job's state, as the letter that ``qstat`` prints."""

    QUEUED = "Q"
    HELD = "H"
    WAITING = "W"
    RUNNING = "R"
    EXITING = "E"
    FINISHED = "F"


class BatchRefused(Exception):
    """The server or a hook rejected the request. The message is the text for the user."""


class NoSuchJob(Exception):
    """The server does not know the job. The message names the job."""


class ServerStopped(Exception):
    """The server is stopped and does not answer requests."""


@dataclass(frozen=True, slots=True)
class Pace:
    """The delays of the batch system in seconds, and the number of failed starts after which a job is held.

    In PBS, the defaults of ``kill_delay``, ``node_fail_requeue`` and ``cycle`` are 10, 310 and 600 seconds. The
    scheduler runs after every event, and at the latest ``cycle`` seconds after its last run.
    """

    kill_delay: float = 1.0
    node_fail_requeue: float = 0.5
    cycle: float = 0.1
    failed_starts: int = 20


@dataclass(frozen=True, slots=True)
class BatchSubmission:
    """A call of ``qsub``. The shell script runs on the job's first host. ``resources`` are the arguments of ``-l``."""

    script: str = "true"
    user: str = "alice"
    select: str | None = "1:ncpus=1"
    place: str | None = None
    walltime: str | None = "0:10:00"
    resources: Mapping[str, str] = field(default_factory=dict)
    held: bool = False


@dataclass(frozen=True, slots=True)
class JobStatus:
    """A job as ``qstat -xf`` prints it.

    ``run_version`` is 0 before the first run. ``hosts`` are the hosts of the last run. ``execution_time`` is the
    earliest start in seconds since the epoch, or None.
    """

    id: str
    state: BatchJobState
    comment: str | None
    hosts: tuple[str, ...]
    run_version: int
    exit_status: int | None
    hold: str
    resources: Mapping[str, str]
    execution_time: float | None = None


@dataclass(frozen=True, slots=True)
class JobOutput:
    """The output of a job that ended."""

    stdout: str
    stderr: str


class Batch(Protocol):
    """Requests of users and operators. Each request may raise NoSuchJob, BatchRefused or ServerStopped."""

    def submit(self, wanted: BatchSubmission) -> str:
        """Submit a job and return its ID."""

    def alter(self, job: str, resources: Mapping[str, str]) -> None:
        """Change resources of a job (``qalter -l``). The value "" removes a resource."""

    def delete(self, job: str, *, force: bool = False) -> None:
        """Delete a job (``qdel``, or ``qdel -W force``)."""

    def rerun(self, job: str) -> None:
        """End a running job and queue it again (``qrerun``)."""

    def status(self, job: str) -> JobStatus:
        """Return the status of a job, also of a job that has ended."""

    def output(self, job: str) -> JobOutput:
        """Return the output of a job that ended."""


class Machines(Protocol):
    """Failures and starts of hosts and of the server. Each method is idempotent."""

    def kill_host(self, name: str) -> None:
        """Kill a host with all its processes."""

    def start_host(self, name: str) -> None:
        """Start a host, without the processes that ran on it before."""

    def stop_server(self) -> None:
        """Stop the server. The hosts continue to run."""

    def start_server(self) -> None:
        """Start the server with the jobs that existed at its stop."""
