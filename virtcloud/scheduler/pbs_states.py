"""PURE. What OpenPBS and Torque have in common: the states of jobs (qstat(1B)) and of servers."""

from virtcloud.model.errors import BadInput, SchedulerSilent
from virtcloud.scheduler.ended import Ended
from virtcloud.scheduler.jobs import Server, Standing, checked_name

RESOURCE = "vcluster"
States = dict[str, tuple[Standing, str]]
STATES: States = {
    "R": (Standing.RUNNING, "runs"),
    "S": (Standing.RUNNING, "is suspended"),
    "E": (Standing.EXITING, "is exiting"),
    "Q": (Standing.PENDING, "is queued"),
    "H": (Standing.PENDING, "is held"),
    "W": (Standing.PENDING, "waits for its time"),
    "T": (Standing.PENDING, "is being moved"),
}
AT_WORK = frozenset({"Active", "Idle", "Scheduling"})
"""States of a server that has read all its jobs; the others are of one that starts or stops."""


def standing(states: States, state: str) -> tuple[Standing, str]:
    """Say what a job's state means."""
    return states.get(state, (Standing.UNREADABLE, f"its state {state!r} is not one that is known here"))


def server(ended: Ended, name: str, state: str, jobs: str) -> Server:
    """Make a server of what its command said; raises SchedulerSilent for one that is not at work."""
    try:
        found = Server(checked_name(name), empty=int(jobs) == 0)
    except (ValueError, BadInput) as error:
        raise not_a_server(ended) from error
    if state not in AT_WORK:
        raise SchedulerSilent(f"server {name} is {state}, not at work")
    return found


def not_a_server(ended: Ended) -> SchedulerSilent:
    """Say that a command said nothing of a server."""
    return SchedulerSilent(f"{ended.command}: expected one server with its state, got something else")
