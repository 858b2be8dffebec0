"""PURE. What a scheduler says of jobs, in our words."""

import re
from dataclasses import dataclass
from enum import StrEnum

from virtcloud.jobs.sizes import seconds_of
from virtcloud.model.errors import BadInput
from virtcloud.model.values import ClusterKey


class Standing(StrEnum):
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
class Job:
    """A job: ``words`` say its state, ``attempt`` counts its runs (none: the scheduler does not count).

    ``wants_cluster`` says that it asked for one, ``begun`` that its script was started. Times are in seconds.
    """

    key: ClusterKey
    standing: Standing
    words: str
    attempt: int | None = None
    wants_cluster: bool = False
    begun: bool = True
    walltime_s: int = 0
    used_s: int = 0


@dataclass(frozen=True, slots=True)
class Server:
    """The scheduler's server: its name ends the ids of its jobs; ``empty`` says that it has no job whatever."""

    name: str
    empty: bool


def key_of(number: str, server: Server) -> ClusterKey:
    """Give the key of a job's cluster: its id, lower case. Raises BadInput where the server's name is too long."""
    return ClusterKey(f"{number}.{server.name}".lower())


def number_of(key: str, server: Server) -> str | None:
    """Give the number of the job whose cluster has this key, if it is a job of this server."""
    found = re.fullmatch(r"([0-9]{1,18})\.(.+)", key)
    return found.group(1) if found and found.group(2) == server.name.lower() else None


def seconds(text: object) -> int:
    """Read ``168:00:00``; what cannot be read is 0: the job's lease then goes on in small steps."""
    try:
        return seconds_of(str(text))
    except ValueError:
        return 0


def checked_name(name: str) -> str:
    """Give a server's name if the keys of its jobs' clusters can end in it; raises BadInput."""
    key_of("9999999", Server(name, empty=False))
    if not name:
        raise BadInput("expected the name of the scheduler's server, got nothing")
    return name
