"""The submit filter: a job with a faulty request never enters a queue, and a good one's request is made to travel.

It runs at qsub, as the user, maybe several times: it helps, and guards nothing. The prologue checks again.
"""

from typing import Optional, Sequence

from virtcloud.jobs.errors import RequestError
from virtcloud.jobs.request import parse
from virtcloud.jobs.torque import admit
from virtcloud.jobs.torque_travel import CARRIER, MARK, carrying, request_of, submission_of
from virtcloud.torque.scripts.settings import Settings


def filtered(arguments: Sequence[str], script: str, settings: Settings) -> str:
    """PURE. Give the script as qsub is to have it; raises RequestError. Without a request nothing is changed."""
    submission = submission_of(arguments, script)
    request = request_of(submission.resources)
    if request is None:
        return script
    admit(
        parse(request), submission.resources, _limit(submission.resources.get("walltime"), settings), submission.array
    )
    carrier = submission.resources.get(CARRIER)
    if carrier is not None and not carrier.startswith(MARK):
        raise RequestError("%s: expected none, since the request travels in it, got %r" % (CARRIER, carrier))
    return carrying(script, request)


def _limit(walltime: Optional[str], settings: Settings) -> Optional[int]:
    """Give the longest walltime; nothing for a job that says none yet: its queue may give it one."""
    return None if walltime is None else settings.longest_walltime
