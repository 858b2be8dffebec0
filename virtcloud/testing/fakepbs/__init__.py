"""A fake PBS for tests of hooks.

``run_hook`` runs one hook on one event. ``FakeBatch`` runs jobs with their hooks in a small batch system.

The fake follows the documentation, the behaviour and recorded input files of OpenPBS 23.06. The fake contains no code
of PBS.
"""

import warnings

from virtcloud.testing.fakepbs.batch_system import (
    Batch,
    BatchJobState,
    BatchRefused,
    BatchSubmission,
    JobOutput,
    JobStatus,
    Machines,
    NoSuchJob,
    Pace,
    ServerStopped,
)
from virtcloud.testing.fakepbs.fake_batch import FakeBatch
from virtcloud.testing.fakepbs.hook_calls import HookCall
from virtcloud.testing.fakepbs.hook_event import HookEvent, HookFailure, HookJob, HookOutcome, HookVnode
from virtcloud.testing.fakepbs.hook_runner import FakeHost, HookDefinition, HookDidNotRunError, run_hook
from virtcloud.testing.fakepbs.recording import recorded_event

__all__ = [
    "Batch",
    "BatchJobState",
    "BatchRefused",
    "BatchSubmission",
    "FakeBatch",
    "FakeHost",
    "HookCall",
    "HookDefinition",
    "HookDidNotRunError",
    "HookEvent",
    "HookFailure",
    "HookJob",
    "HookOutcome",
    "HookVnode",
    "JobOutput",
    "JobStatus",
    "Machines",
    "NoSuchJob",
    "Pace",
    "ServerStopped",
    "recorded_event",
    "run_hook",
]

_FORMER_NAMES = {
    "Event": HookEvent,
    "Failure": HookFailure,
    "Hook": HookDefinition,
    "Host": FakeHost,
    "Job": HookJob,
    "Outcome": HookOutcome,
    "Output": JobOutput,
    "Refused": BatchRefused,
    "Seen": HookCall,
    "ServerAway": ServerStopped,
    "State": BatchJobState,
    "Submission": BatchSubmission,
    "Vnode": HookVnode,
}


def __getattr__(name: str) -> type:
    """Return a class by its name in version 0.1, and issue a DeprecationWarning."""
    if name not in _FORMER_NAMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    renamed_class = _FORMER_NAMES[name]
    warnings.warn(f"{__name__}.{name} is now called {renamed_class.__name__}", DeprecationWarning, stacklevel=2)
    return renamed_class
