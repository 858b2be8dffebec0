"""What Torque says when it runs a script: arguments in an order of its own, a few variables, and an exit code back.

So long a job may take to start; whoever waits longer is told why, and the job goes back into its queue.
"""

import re
import time
from pathlib import Path
from typing import Callable, Dict, Mapping, NamedTuple, Optional, Sequence

from virtcloud.jobs.torque_request import (
    CARRIER_RESOURCE,
    REQUEST_MARK,
    find_carried_request,
    find_request,
    parse_resources,
)

EXIT_RUN, EXIT_ABORT, EXIT_REQUEUE = 0, 1, 2
"""Exit codes of a prologue, as Torque takes them: anything but 0 and 1 puts the job back into its queue."""
DELETED_MESSAGE = "the job was deleted while its cluster was being set up"
RESOURCES_ARGUMENT = {
    "prologue": 5,
    "prologue.parallel": 5,
    "epilogue": 6,
    "epilogue.parallel": 6,
    "epilogue.precancel": 6,
}
"""The argument that lists the resources asked for: an epilogue has the session before it."""
SCRIPT_ARGUMENT = {"prologue": 8, "epilogue": 11}
"""The argument that names the job's script, which its first host has."""
TRUNCATED_FROM = 900
"""Torque lists 2 kB of resources, ``nodes`` before ``other``, and leaves out what does not fit."""
JOB_ID = re.compile(r"[A-Za-z0-9][A-Za-z0-9._\[\]-]*")
SCHEDULER_VARIABLE = "MAGRATHEA_VLANID"
"""A scheduler that asked SBF itself puts its network's ID here."""


class ScriptExit(Exception):
    """A script ends before its time, with a code for Torque and words for the user."""

    def __init__(self, code: int, text: str) -> None:
        """Keep both."""
        super().__init__(text)
        self.code = code


class ScriptCall(NamedTuple):
    """One run of one script for one job."""

    job: str
    user: str
    wanted: Dict[str, str]
    environment: Mapping[str, str]

    @property
    def key(self) -> str:
        """The key of the job's cluster."""
        return self.job.lower()

    @property
    def request(self) -> Optional[str]:
        """The request of the job, if it has one."""
        return find_request(self.wanted)

    @property
    def network(self) -> Optional[str]:
        """The network that the job asks for without guests of ours: ``private`` or an ID; nothing if it does not."""
        return self.wanted.get("net") if self.request is None else None

    @property
    def is_ours(self) -> bool:
        """Say whether there is anything to do here: a job that asks, and nobody who asked for it already."""
        return (self.request or self.network) is not None and not self.environment.get(SCHEDULER_VARIABLE)


def check_job_id(call: ScriptCall) -> None:
    """Refuse a job whose id cannot be one; raises Ended."""
    if JOB_ID.fullmatch(call.job) is None:
        raise ScriptExit(EXIT_ABORT, "expected the id of a job as first argument, got %r" % call.job)


def parse_call(script: str, arguments: Sequence[str], environment: Mapping[str, str]) -> ScriptCall:
    """Read the arguments of a script, without its own name; those that an older Torque leaves out are empty."""
    given = dict(enumerate(arguments, 1))
    listed = given.get(RESOURCES_ARGUMENT[script], "")
    wanted = parse_resources(listed)
    if len(listed) > TRUNCATED_FROM and find_request(wanted) is None:
        wanted.update(_read_carried_request(given.get(SCRIPT_ARGUMENT.get(script, 0), "")))
    return ScriptCall(given.get(1, ""), given.get(2, ""), wanted, environment)


def _read_carried_request(script: str) -> Dict[str, str]:
    """Give the request from the job's own script, where the submit filter put it."""
    try:
        carried = find_carried_request(Path(script).read_text(encoding="latin-1"))
    except OSError:
        return {}
    return {} if carried is None else {CARRIER_RESOURCE: REQUEST_MARK + carried}


RETRY_PAUSE_S = 0.5
SISTER_WAIT_S = 60.0
"""The longest on a host that is not the job's first: its MoM does nothing else while it runs a script there."""


class RetryBudget:
    """A number of seconds from now."""

    def __init__(self, seconds: float) -> None:
        """Begin now."""
        self._ends = time.monotonic() + seconds
        self.in_vain: Optional[Callable[[], bool]] = None
        """Once set, it is asked at each pause whether nobody waits any more."""

    @property
    def left(self) -> float:
        """The seconds that are left, never less than none."""
        return max(0.0, self._ends - time.monotonic())

    def pause(self, why: str, seconds: float = RETRY_PAUSE_S) -> None:
        """Wait a moment before something is tried again; raises Ended when that is in vain, or too late."""
        if self.in_vain is not None and self.in_vain():
            raise ScriptExit(EXIT_ABORT, DELETED_MESSAGE)
        if self.left < seconds:
            raise ScriptExit(EXIT_REQUEUE, "%s; the job will be tried again" % why)
        time.sleep(seconds)
