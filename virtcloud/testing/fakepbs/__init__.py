"""A PBS to test hooks with: the module ``pbs`` for one run of a hook, and a small batch system around it.

Made after OpenPBS 23.06, from its documentation, its behaviour and recorded input files; no line of it is PBS's.
"""

from virtcloud.testing.fakepbs.batch import (
    Batch,
    JobStatus,
    Machines,
    NoSuchJob,
    Output,
    Refused,
    ServerAway,
    State,
    Submission,
)
from virtcloud.testing.fakepbs.callers import Seen
from virtcloud.testing.fakepbs.event import Event, Job, Vnode
from virtcloud.testing.fakepbs.fake import FakeBatch, Pace
from virtcloud.testing.fakepbs.host import Hook, Host
from virtcloud.testing.fakepbs.outcome import Failure, Outcome
from virtcloud.testing.fakepbs.recording import recorded_event
from virtcloud.testing.fakepbs.runner import HookDidNotRunError, run_hook

__all__ = [
    "Batch",
    "Event",
    "Failure",
    "FakeBatch",
    "Hook",
    "HookDidNotRunError",
    "Host",
    "Job",
    "JobStatus",
    "Machines",
    "NoSuchJob",
    "Outcome",
    "Output",
    "Pace",
    "Refused",
    "Seen",
    "ServerAway",
    "State",
    "Submission",
    "Vnode",
    "recorded_event",
    "run_hook",
]
