"""One call of a script by Torque: its arguments and variables, its exit codes, and its time for retries."""

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
"""Exit codes of a prologue. Torque requeues the job for every code except 0 and 1."""
DELETED_MESSAGE = "the job was deleted while its cluster was being set up"
RESOURCES_ARGUMENT = {
    "prologue": 5,
    "prologue.parallel": 5,
    "epilogue": 6,
    "epilogue.parallel": 6,
    "epilogue.precancel": 6,
}
"""The position of the argument with the requested resources. In epilogues, argument 5 is a process session's ID."""
SCRIPT_ARGUMENT = {"prologue": 8, "epilogue": 11}
"""The position of the argument with the file of the job's script. Only the first host has the file."""
TRUNCATED_FROM = 900
"""The number of characters above which a list of resources counts as possibly incomplete.

Torque passes at most 2 kB of resources, first ``nodes`` and then ``other``, and drops the rest.
"""
JOB_ID = re.compile(r"[A-Za-z0-9][A-Za-z0-9._\[\]-]*")
SCHEDULER_VARIABLE = "MAGRATHEA_VLANID"
"""The environment variable with the ID of a network that the scheduler itself requested."""


class ScriptExit(Exception):
    """Ends the script with an exit code for Torque and a message for the user."""

    def __init__(self, code: int, text: str) -> None:
        """Store the exit code and the message."""
        super().__init__(text)
        self.code = code


def requeue(reason: object) -> ScriptExit:
    """Return the exit that requeues the job, with the reason for the user."""
    return ScriptExit(EXIT_REQUEUE, "%s; the job will be tried again" % reason)


class ScriptCall(NamedTuple):
    """One call of a script for one job."""

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
        """The request of the job, or None."""
        return find_request(self.wanted)

    @property
    def network(self) -> Optional[str]:
        """The network that a job without guests requests: ``private``, an ID, or None."""
        return self.wanted.get("net") if self.request is None else None

    @property
    def is_ours(self) -> bool:
        """Whether the job requests a cluster or network that the scheduler itself has not requested."""
        return (self.request or self.network) is not None and not self.environment.get(SCHEDULER_VARIABLE)


def check_job_id(call: ScriptCall) -> None:
    """Raise ScriptExit for an invalid job id."""
    if JOB_ID.fullmatch(call.job) is None:
        raise ScriptExit(EXIT_ABORT, "expected a job id as first argument, got %r" % call.job)


def parse_call(script: str, arguments: Sequence[str], environment: Mapping[str, str]) -> ScriptCall:
    """Parse the arguments of a script. Arguments that older versions of Torque omit are empty.

    ``arguments`` does not contain the script's name.
    """
    by_position = dict(enumerate(arguments, 1))
    listed = by_position.get(RESOURCES_ARGUMENT[script], "")
    wanted = parse_resources(listed)
    if len(listed) > TRUNCATED_FROM and find_request(wanted) is None:
        wanted.update(_read_carried_request(by_position.get(SCRIPT_ARGUMENT.get(script, 0), "")))
    return ScriptCall(by_position.get(1, ""), by_position.get(2, ""), wanted, environment)


def _read_carried_request(script: str) -> Dict[str, str]:
    """Return the request in the job's script, where the submit filter wrote it."""
    try:
        carried = find_carried_request(Path(script).read_text(encoding="latin-1"))
    except OSError:
        return {}
    return {} if carried is None else {CARRIER_RESOURCE: REQUEST_MARK + carried}


RETRY_PAUSE_S = 0.5
SISTER_WAIT_S = 60.0
"""Time limit in seconds of a script on hosts other than the first. The script blocks the MoM."""


class RetryBudget:
    """The time for retries, in seconds from the creation of this object."""

    def __init__(self, seconds: float) -> None:
        """Start the time for retries."""
        self._deadline = time.monotonic() + seconds
        self.is_pointless: Optional[Callable[[], bool]] = None
        """A function that returns whether the job was deleted. After a deletion, `pause` ends the retries."""

    @property
    def left(self) -> float:
        """The remaining seconds, never negative."""
        return max(0.0, self._deadline - time.monotonic())

    def pause(self, why: str, seconds: float = RETRY_PAUSE_S) -> None:
        """Sleep before a retry. Raise ScriptExit if the job was deleted or the time runs out."""
        if self.is_pointless is not None and self.is_pointless():
            raise ScriptExit(EXIT_ABORT, DELETED_MESSAGE)
        if self.left < seconds:
            raise requeue(why)
        time.sleep(seconds)
