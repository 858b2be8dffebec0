"""The submit filter: a job with a faulty request never enters a queue, and a good one's request is made to travel.

It runs at qsub, as the user, maybe several times: it helps, and guards nothing. The prologue checks again.
"""

from typing import Mapping, Optional, Sequence

from virtcloud.jobs.errors import RequestError
from virtcloud.jobs.request import parse
from virtcloud.jobs.torque import admit
from virtcloud.jobs.torque_travel import (
    CARRIER,
    DIRECTIVE,
    MARK,
    Submission,
    carrying,
    request_of,
    submission_of,
)
from virtcloud.torque.scripts.settings import Settings

PREFIX = "PBS_DPREFIX"
MOST = 1024
"""Torque tells a prologue of 2 kB of resources, and leaves out what does not fit."""


def filtered(arguments: Sequence[str], script: str, settings: Settings, environment: Mapping[str, str]) -> str:
    """PURE. Give the script as qsub is to have it; raises RequestError. Without a request nothing is changed."""
    submission = submission_of(arguments, script)
    other = submission.prefixed or environment.get(PREFIX, DIRECTIVE) != DIRECTIVE
    if other and any(MARK in text for text in (script, *arguments)):
        raise RequestError("leave out -C and %s: the request travels in a line that begins with #PBS" % PREFIX)
    request = request_of(submission.resources)
    if request is None:
        return script
    _check(request, submission, settings)
    return carrying(script, request)


def _check(request: str, submission: Submission, settings: Settings) -> None:
    resources = submission.resources
    admit(parse(request), resources, _limit(resources.get("walltime"), settings), submission.array)
    carrier = resources.get(CARRIER)
    if carrier is not None and not carrier.startswith(MARK):
        raise RequestError("%s: expected none, since the request travels in it, got %r" % (CARRIER, carrier))
    if len(request) > MOST:
        text = "expected at most %d characters, which is what travels with a Torque job, got %d"
        raise RequestError(text % (MOST, len(request)))


def _limit(walltime: Optional[str], settings: Settings) -> Optional[int]:
    """Give the longest walltime; nothing for a job that says none yet: its queue may give it one."""
    return None if walltime is None else settings.longest_walltime
