"""Jobs and servers of batch systems, as reconciliation reads them. Pure.

``COMMON_STATES`` and ``SERVING_STATES`` contain the states that OpenPBS and Torque share (qstat(1B)).
"""

import re
from dataclasses import dataclass
from enum import StrEnum

from virtcloud.jobs.sizes import parse_seconds
from virtcloud.model.errors import BadInput, SchedulerUnavailable
from virtcloud.model.values import ClusterKey
from virtcloud.scheduler.command import CommandResult


class JobPhase(StrEnum):
    """The phase of a job, which determines whether the job's cluster must exist."""

    RUNNING = "running"
    """The job has hosts: it starts, runs or is suspended."""
    EXITING = "exiting"
    """The job's script has ended. A hook (OpenPBS) or the epilogue (Torque) removes the job's cluster."""
    PENDING = "pending"
    """The job is queued, held or being moved, and has no hosts."""
    GONE = "gone"
    """The job has finished, or is unknown to the batch system."""
    UNREADABLE = "unreadable"
    """The output about the job does not show whether the job runs."""


@dataclass(frozen=True, slots=True)
class SchedulerJob:
    """The state of a job in a batch system.

    ``description``: the state in words. ``attempt``: the number of the current run (None if the batch system does not
    count runs). ``wants_cluster``: the job requested a cluster. ``script_started``: the job's script was started.
    """

    key: ClusterKey
    phase: JobPhase
    description: str
    attempt: int | None = None
    wants_cluster: bool = False
    script_started: bool = True
    walltime_s: int = 0
    used_s: int = 0


@dataclass(frozen=True, slots=True)
class SchedulerServer:
    """The server of a batch system.

    Job IDs end with the server's name (``12.pbssrv``). ``empty``: the server has no job.
    """

    name: str
    empty: bool


def job_cluster_key(number: str, server: SchedulerServer) -> ClusterKey:
    """Return the key of a job's cluster: the job's ID in lower case.

    Raise SchedulerUnavailable if the job's ID is not a valid key: the batch system's answer is then invalid.
    """
    try:
        return ClusterKey(f"{number}.{server.name}".lower())
    except BadInput as error:
        raise SchedulerUnavailable(f"job of server {server.name}: {error}; inspect the output of qstat") from error


def parse_job_number(key: str, server: SchedulerServer) -> str | None:
    """Return the number of the job with this key, or None if the key belongs to no job of this server."""
    match = re.fullmatch(r"([0-9]{1,18})\.(.+)", key)
    return match.group(1) if match and match.group(2) == server.name.lower() else None


def parse_seconds_or_zero(text: object) -> int:
    """Parse a duration such as ``168:00:00``. Return 0 for an invalid value.

    If a job's walltime is 0, the lease of the job's cluster is extended in small steps.
    """
    try:
        return parse_seconds(str(text))
    except ValueError:
        return 0


def check_server_name(name: str) -> str:
    """Return a server's name. Raise BadInput if the name is empty, or if cluster keys cannot end with the name."""
    ClusterKey(f"9999999.{name}".lower())
    if not name:
        raise BadInput("expected the name of the scheduler's server, got nothing")
    return name


REQUEST_RESOURCE = "vcluster"
PhaseTable = dict[str, tuple[JobPhase, str]]
COMMON_STATES: PhaseTable = {
    "R": (JobPhase.RUNNING, "runs"),
    "S": (JobPhase.RUNNING, "is suspended"),
    "E": (JobPhase.EXITING, "is exiting"),
    "Q": (JobPhase.PENDING, "is queued"),
    "H": (JobPhase.PENDING, "is held"),
    "W": (JobPhase.PENDING, "waits for its time"),
    "T": (JobPhase.PENDING, "is being moved"),
}
SERVING_STATES = frozenset({"Active", "Idle", "Scheduling"})
"""States of a server that has read all its jobs. In all other states, the server is starting or stopping."""


def parse_phase(states: PhaseTable, state: str) -> tuple[JobPhase, str]:
    """Return the phase and the description of a job's state."""
    return states.get(state, (JobPhase.UNREADABLE, f"its state {state!r} is unknown"))


def build_server(result: CommandResult, name: str, state: str, jobs: str) -> SchedulerServer:
    """Return the server with these attributes. Raise SchedulerUnavailable unless ``state`` is a serving state."""
    try:
        server = SchedulerServer(check_server_name(name), empty=int(jobs) == 0)
    except (ValueError, BadInput) as error:
        raise not_a_server_error(result) from error
    if state not in SERVING_STATES:
        expected = ", ".join(sorted(SERVING_STATES))
        raise SchedulerUnavailable(f"server {name}: expected one of the states {expected}, got {state}")
    return server


def not_a_server_error(result: CommandResult) -> SchedulerUnavailable:
    """Return the error for output that does not describe a server."""
    return SchedulerUnavailable(f"{result.command}: expected one server with its state, got other output")
