"""A batch system with hooks in it: what a scenario may do to it and see of it.

`FakeBatch` is one such, a real OpenPBS another, so that one set of scenarios runs on both.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Protocol


class BatchJobState(StrEnum):
    """A job's state, by the letter that ``qstat`` shows."""

    QUEUED = "Q"
    HELD = "H"
    WAITING = "W"
    RUNNING = "R"
    EXITING = "E"
    FINISHED = "F"


class BatchRefused(Exception):
    """The server or a hook of it said no; the message is what the user reads."""


class NoSuchJob(Exception):
    """The server does not know the job; the message names it."""


class ServerStopped(Exception):
    """Nothing can be asked while the server is stopped."""


@dataclass(frozen=True, slots=True)
class BatchSubmission:
    """What goes to ``qsub``. ``script`` is shell text that runs on the job's first host; ``resources`` go to ``-l``."""

    script: str = "true"
    user: str = "alice"
    select: str | None = "1:ncpus=1"
    place: str | None = None
    walltime: str | None = "0:10:00"
    resources: Mapping[str, str] = field(default_factory=dict)
    held: bool = False


@dataclass(frozen=True, slots=True)
class JobStatus:
    """What ``qstat -xf`` shows; ``run_version`` is 0 before the first run, ``hosts`` are those of the newest.

    ``execution_time`` is when it may run at the earliest (seconds of the epoch), where that was said.
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
    """What came back from a job that ended."""

    stdout: str
    stderr: str


class Batch(Protocol):
    """What users and operators do. Each raises NoSuchJob for a job that is not there, Refused, and ServerAway."""

    def submit(self, wanted: BatchSubmission) -> str:
        """Submit a job; give its identifier."""

    def alter(self, job: str, resources: Mapping[str, str]) -> None:
        """Change resources of a job (``qalter -l``); an empty text takes one away."""

    def delete(self, job: str, *, force: bool = False) -> None:
        """Delete a job (``qdel``, ``qdel -W force``)."""

    def rerun(self, job: str) -> None:
        """End a running job and queue it again (``qrerun``)."""

    def status(self, job: str) -> JobStatus:
        """Say how a job is, ended ones too."""

    def output(self, job: str) -> JobOutput:
        """Give what a job that ended wrote."""


class Machines(Protocol):
    """What happens to machines. Each may be repeated."""

    def kill_host(self, name: str) -> None:
        """Let a host die with all that runs on it."""

    def start_host(self, name: str) -> None:
        """Let it come back, empty."""

    def stop_server(self) -> None:
        """Stop the server; the hosts go on."""

    def start_server(self) -> None:
        """Start it again, with the jobs it knew."""
