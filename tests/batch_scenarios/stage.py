"""The batch system and the world (SBF, switches, hosts) of a scenario, and the methods that wait for a state."""

import time
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, suppress
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Protocol

from virtcloud.client.sbf import SbfClient
from virtcloud.model.cluster import ENDED_STATES, ClusterState
from virtcloud.model.errors import NotFound
from virtcloud.model.views import ClusterView
from virtcloud.testing.fakepbs.batch_system import Batch, BatchRefused, BatchSubmission, JobStatus, Machines
from virtcloud.testing.fakepbs.batch_system import BatchJobState as JobState


class HostFault(StrEnum):
    """Faults of a host while its hook runs at a job's start."""

    MOM_DIES = "MoM dies"
    AGENT_DIES = "agent dies"
    AGENT_HANGS = "agent hangs for longer than the hook waits"


class BatchWorld(Protocol):
    """SBF, the switches that SBF configures, and the hosts with their agents and MoMs."""

    client: SbfClient
    """A client with an operator's rights."""
    hosts: Sequence[str]
    """The hosts of the batch system."""
    patience: float
    """The time limit of every wait, in seconds."""
    outage: float
    """The duration in seconds of a job that must outlast a restart of the batch system's server."""

    def left(self) -> str:
        """Describe the differences of all switches and hosts from their initial state. Return "" if there are none."""

    def unreachable(self, switch: str) -> AbstractContextManager[None]:
        """Make a switch unreachable for SBF within the context.

        Within the context, the time limit of a cluster's start is short.
        """

    def stop_sbf(self) -> None:
        """Kill SBF."""

    def start_sbf(self) -> None:
        """Start SBF on its database."""

    def kill_mom(self, host: str) -> None:
        """Kill the MoM of a host, but not the host's agent."""

    def start_mom(self, host: str) -> None:
        """Start the MoM of a host again."""

    def in_begin(self, host: str, fault: HostFault) -> AbstractContextManager[Callable[[], None]]:
        """Cause a fault at the host's next job start. Yield a function that waits for the fault.

        At the end of the context, repair the host.
        """

    def log(self, job: str) -> str:
        """Return the log messages about a job, for the report of a failed test."""


REQUEST = "image=busybox"
SCRIPT = """echo started
env | grep ^VCLUSTER_ | sort
echo hosts; cat $VCLUSTER_HOSTS
echo hostfile; cat $VCLUSTER_HOSTFILE
"""
FOREVER = "echo started; exec sleep 600\n"
WAITING = (JobState.QUEUED, JobState.WAITING, JobState.HELD)


@dataclass
class ScenarioStage:
    """The batch system and its world, with the steps of scenarios."""

    batch: Batch
    machines: Machines
    world: BatchWorld
    user: str = "alice"
    jobs: list[str] = field(default_factory=list)

    def submit(self, hosts: int = 1, request: str = "", user: str | None = None, script: str = SCRIPT) -> str:
        resources = {"vcluster": f"{REQUEST}:{request}" if request else REQUEST}
        job = self.batch.submit(BatchSubmission(script, user or self.user, f"{hosts}:ncpus=1", resources=resources))
        self.jobs.append(job)
        return job

    def submit_started(self, hosts: int = 1, request: str = "") -> str:
        job = self.submit(hosts, request, script=FOREVER)
        self.await_started(job)
        return job

    def await_started(self, job: str) -> None:
        self.await_that(
            lambda: "started" in self.batch.output(job).stdout, f"{job} to begin", lambda: self.world.log(job)
        )

    def force_delete(self, job: str) -> None:
        with suppress(BatchRefused):
            self.batch.delete(job, force=True)

    def await_running(self, job: str) -> JobStatus:
        """Wait until the batch system reports a job as running. The job's script may start later."""
        return self.await_job(job, lambda status: status.state is JobState.RUNNING, "run")

    def await_not_running(self, job: str) -> JobStatus:
        return self.await_job(job, lambda status: status.state is not JobState.RUNNING, "stop running")

    def await_end(self, job: str) -> JobStatus:
        return self.await_job(job, lambda status: status.state is JobState.FINISHED, "end")

    def await_queued(self, job: str, words: str) -> JobStatus:
        return self.await_job(
            job,
            lambda status: status.state in WAITING and words in (status.comment or ""),
            f"wait with {words!r} in its comment",
        )

    def await_job(self, job: str, reached: Callable[[JobStatus], bool], goal: str) -> JobStatus:
        statuses = [self.batch.status(job)]

        def is_reached() -> bool:
            statuses.append(self.batch.status(job))
            return reached(statuses[-1])

        self.await_that(is_reached, f"job {job} to {goal}", lambda: f"{statuses[-1]}\n{self.world.log(job)}")
        return statuses[-1]

    def cluster(self, job: str) -> ClusterView | None:
        try:
            return self.world.client.cluster(job.lower())
        except NotFound:
            return None

    def await_active(self, job: str) -> ClusterView:
        return self._await_cluster(job, lambda view: view.state is ClusterState.ACTIVE, "active")

    def await_requested(self, job: str) -> ClusterView:
        return self._await_cluster(job, lambda _: True, "requested")

    def await_released(self, job: str) -> None:
        self.await_that(
            lambda: (view := self.cluster(job)) is None or view.state in ENDED_STATES,
            f"the cluster of {job} to be released",
        )

    def await_clean(self) -> None:
        self.await_that(lambda: not self.world.left(), "the initial state", self.world.left)

    def await_that(self, reached: Callable[[], bool], goal: str, observed: Callable[[], object] = lambda: "") -> None:
        """Wait until the condition holds. After a timeout, the message contains ``goal`` and ``observed()``."""
        deadline = time.monotonic() + self.world.patience
        while not reached():
            assert time.monotonic() < deadline, f"expected {goal} within {self.world.patience:.0f} s, got {observed()}"
            time.sleep(0.1)

    def _await_cluster(self, job: str, reached: Callable[[ClusterView], bool], goal: str) -> ClusterView:
        views: list[ClusterView] = []

        def is_reached() -> bool:
            view = self.cluster(job)
            views[:] = [view] if view is not None else []
            return view is not None and reached(view)

        self.await_that(is_reached, f"the cluster of {job} to be {goal}", lambda: views)
        return views[0]
