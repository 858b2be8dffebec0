"""PURE. What a scheduler says of jobs, in our words.

PURE. What OpenPBS and Torque have in common: the states of jobs (qstat(1B)) and of servers.
"""

import re
from dataclasses import dataclass
from enum import StrEnum

from virtcloud.jobs.sizes import parse_seconds
from virtcloud.model.errors import BadInput, SchedulerUnavailable
from virtcloud.model.values import ClusterKey
from virtcloud.scheduler.command import CommandResult


class JobPhase(StrEnum):
    """What a job's state means for its cluster."""

    RUNNING = "running"
    """It has hosts: it starts, runs or is suspended."""
    EXITING = "exiting"
    """Its script has ended; its hosts are being tidied, and its cluster goes with that."""
    PENDING = "pending"
    """It waits and has no hosts."""
    GONE = "gone"
    """The scheduler says that it has finished, or that there is no such job."""
    UNREADABLE = "unreadable"
    """The scheduler knows it, but does not say, or not so that it can be read, whether it runs."""


@dataclass(frozen=True, slots=True)
class SchedulerJob:
    """A job: ``words`` say its state, ``attempt`` counts its runs (none: the scheduler does not count).

    ``wants_cluster`` says that it asked for one, ``begun`` that its script was started. Times are in seconds.
    """

    key: ClusterKey
    standing: JobPhase
    words: str
    attempt: int | None = None
    wants_cluster: bool = False
    begun: bool = True
    walltime_s: int = 0
    used_s: int = 0


@dataclass(frozen=True, slots=True)
class SchedulerServer:
    """The scheduler's server: its name ends the ids of its jobs; ``empty`` says that it has no job whatever."""

    name: str
    empty: bool


def job_cluster_key(number: str, server: SchedulerServer) -> ClusterKey:
    """Give the key of a job's cluster: its id, lower case. Raises BadInput where the server's name is too long."""
    return ClusterKey(f"{number}.{server.name}".lower())


def parse_job_number(key: str, server: SchedulerServer) -> str | None:
    """Give the number of the job whose cluster has this key, if it is a job of this server."""
    found = re.fullmatch(r"([0-9]{1,18})\.(.+)", key)
    return found.group(1) if found and found.group(2) == server.name.lower() else None


def parse_seconds_or_zero(text: object) -> int:
    """Read ``168:00:00``; what cannot be read is 0: the job's lease then goes on in small steps."""
    try:
        return parse_seconds(str(text))
    except ValueError:
        return 0


def check_server_name(name: str) -> str:
    """Give a server's name if the keys of its jobs' clusters can end in it; raises BadInput."""
    job_cluster_key("9999999", SchedulerServer(name, empty=False))
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
"""States of a server that has read all its jobs; the others are of one that starts or stops."""


def parse_phase(states: PhaseTable, state: str) -> tuple[JobPhase, str]:
    """Say what a job's state means."""
    return states.get(state, (JobPhase.UNREADABLE, f"its state {state!r} is not one that is known here"))


def build_server(ended: CommandResult, name: str, state: str, jobs: str) -> SchedulerServer:
    """Make a server of what its command said; raises SchedulerSilent for one that is not at work."""
    try:
        found = SchedulerServer(check_server_name(name), empty=int(jobs) == 0)
    except (ValueError, BadInput) as error:
        raise not_a_server_error(ended) from error
    if state not in SERVING_STATES:
        raise SchedulerUnavailable(f"server {name} is {state}, not at work")
    return found


def not_a_server_error(ended: CommandResult) -> SchedulerUnavailable:
    """Say that a command said nothing of a server."""
    return SchedulerUnavailable(f"{ended.command}: expected one server with its state, got something else")
