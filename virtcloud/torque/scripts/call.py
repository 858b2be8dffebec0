"""What Torque says when it runs a script: arguments in an order of its own, a few variables, and an exit code back."""

import re
from pathlib import Path
from typing import Dict, Mapping, NamedTuple, Optional, Sequence

from virtcloud.jobs.torque import resources
from virtcloud.jobs.torque_travel import CARRIER, MARK, carried_by, request_of

RUN, ABORT, REQUEUE = 0, 1, 2
"""Exit codes of a prologue, as Torque takes them: anything but 0 and 1 puts the job back into its queue."""
DELETED = "the job was deleted while its cluster was being set up"
REQUESTED = {"prologue": 5, "prologue.parallel": 5, "epilogue": 6, "epilogue.parallel": 6, "epilogue.precancel": 6}
"""The argument that lists the resources asked for: an epilogue has the session before it."""
SCRIPT = {"prologue": 8, "epilogue": 11}
"""The argument that names the job's script, which its first host has."""
LONG = 900
"""Torque lists 2 kB of resources, ``nodes`` before ``other``, and leaves out what does not fit."""
JOB = re.compile(r"[A-Za-z0-9][A-Za-z0-9._\[\]-]*")
SCHEDULERS = "MAGRATHEA_VLANID"
"""A scheduler that asked SBF itself puts its network's ID here."""


class Ended(Exception):
    """A script ends before its time, with a code for Torque and words for the user."""

    def __init__(self, code: int, text: str) -> None:
        """Keep both."""
        super().__init__(text)
        self.code = code


class Call(NamedTuple):
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
        return request_of(self.wanted)

    @property
    def network(self) -> Optional[str]:
        """The network that the job asks for without guests of ours: ``private`` or an ID; nothing if it does not."""
        return self.wanted.get("net") if self.request is None else None

    @property
    def is_ours(self) -> bool:
        """Say whether there is anything to do here: a job that asks, and nobody who asked for it already."""
        return (self.request or self.network) is not None and not self.environment.get(SCHEDULERS)


def check(call: Call) -> None:
    """Refuse a job whose id cannot be one; raises Ended."""
    if JOB.fullmatch(call.job) is None:
        raise Ended(ABORT, "expected the id of a job as first argument, got %r" % call.job)


def read_call(script: str, arguments: Sequence[str], environment: Mapping[str, str]) -> Call:
    """Read the arguments of a script, without its own name; those that an older Torque leaves out are empty."""
    given = dict(enumerate(arguments, 1))
    listed = given.get(REQUESTED[script], "")
    wanted = resources(listed)
    if len(listed) > LONG and request_of(wanted) is None:
        wanted.update(_left_out(given.get(SCRIPT.get(script, 0), "")))
    return Call(given.get(1, ""), given.get(2, ""), wanted, environment)


def _left_out(script: str) -> Dict[str, str]:
    """Give the request from the job's own script, where the submit filter put it."""
    try:
        carried = carried_by(Path(script).read_text(encoding="latin-1"))
    except OSError:
        return {}
    return {} if carried is None else {CARRIER: MARK + carried}
