"""A fake PBS for tests of hooks: runs one hook on one event, or whole jobs through the hooks of a small batch system.

Written from the documentation, the behaviour and recorded input files of OpenPBS 23.06; contains no code of PBS.
"""

from virtcloud.testing.fakepbs.batch_system import (
    Batch,
    BatchJobState,
    BatchRefused,
    BatchSubmission,
    JobOutput,
    JobStatus,
    Machines,
    NoSuchJob,
    ServerStopped,
)
from virtcloud.testing.fakepbs.fake_batch import FakeBatch, Pace
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
