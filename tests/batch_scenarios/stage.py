"""A scenario's stage: a batch system, the world around it, and what both must look like.

What is around a batch system in a scenario: SBF, switches, hosts.
"""

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
    """What may happen to a host while its hook begins a job."""

    MOM_DIES = "MoM dies"
    AGENT_DIES = "agent dies"
    AGENT_HANGS = "agent hangs for longer than the hook waits"


class BatchWorld(Protocol):
    """SBF, and what it configures."""

    client: SbfClient
    """Speaks to SBF as an operator."""
    hosts: Sequence[str]
    """Those of the batch system."""
    patience: float
    """Seconds that anything may take here, at most."""
    outage: float
    """Seconds that a job must run to see the batch system's server die and come back."""

    def left(self) -> str:
        """Say what switches and hosts carry that they did not before; empty when nothing does."""

    def cut_off(self, switch: str) -> None:
        """Let a switch not answer SBF any more."""

    def reconnect(self, switch: str) -> None:
        """Let it answer again."""

    def stop_sbf(self) -> None:
        """Let SBF die."""

    def start_sbf(self) -> None:
        """Start it anew, on what it had written."""

    def kill_mom(self, host: str) -> None:
        """Let only a host's part of the batch system die."""

    def start_mom(self, host: str) -> None:
        """Start it anew."""

    def in_begin(self, host: str, fault: HostFault) -> AbstractContextManager[Callable[[], None]]:
        """Let a fault happen while the host's next job begins there; gives what waits for it. Mended at the end."""

    def log(self, job: str) -> str:
        """Give what is known of a job, for a test that failed."""


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
    """Both, with the words in which scenarios are told."""

    batch: Batch
    machines: Machines
    world: BatchWorld
    user: str = "alice"
    jobs: list[str] = field(default_factory=list)

    def submit(self, hosts: int = 1, request: str = "", user: str | None = None, script: str = SCRIPT) -> str:
        """Submit a job that wants so many hosts; ``request`` is added to the request for a cluster."""
        asked = {"vcluster": f"{REQUEST}:{request}" if request else REQUEST}
        job = self.batch.submit(BatchSubmission(script, user or self.user, f"{hosts}:ncpus=1", resources=asked))
        self.jobs.append(job)
        return job

    def begun(self, hosts: int = 1, request: str = "") -> str:
        """Submit a job that runs until it is ended, and wait until its script has begun."""
        job = self.submit(hosts, request, script=FOREVER)
        self.until(lambda: "started" in self.batch.output(job).stdout, f"{job} to begin", lambda: self.world.log(job))
        return job

    def drop(self, job: str) -> None:
        """End a job by force, unless it has ended."""
        with suppress(BatchRefused):
            self.batch.delete(job, force=True)

    def runs(self, job: str) -> JobStatus:
        """Wait until the batch system calls a job running; it is not said that its script has begun."""
        return self.job(job, lambda one: one.state is JobState.RUNNING, "run")

    def runs_no_more(self, job: str) -> JobStatus:
        """Wait until it does so no longer."""
        return self.job(job, lambda one: one.state is not JobState.RUNNING, "run no more")

    def ends(self, job: str) -> JobStatus:
        """Wait until a job has ended; gives it."""
        return self.job(job, lambda one: one.state is JobState.FINISHED, "end")

    def waits(self, job: str, words: str) -> JobStatus:
        """Wait until a job is in its queue and its comment has these words."""
        return self.job(
            job, lambda one: one.state in WAITING and words in (one.comment or ""), f"wait and say {words!r}"
        )

    def job(self, job: str, reached: Callable[[JobStatus], bool], what: str) -> JobStatus:
        """Wait until a job is so."""
        seen = [self.batch.status(job)]

        def look() -> bool:
            seen.append(self.batch.status(job))
            return reached(seen[-1])

        self.until(look, f"job {job} to {what}", lambda: f"{seen[-1]}\n{self.world.log(job)}")
        return seen[-1]

    def cluster(self, job: str) -> ClusterView | None:
        """Give a job's cluster, nothing when there never was one."""
        try:
            return self.world.client.cluster(job.lower())
        except NotFound:
            return None

    def active(self, job: str) -> ClusterView:
        """Wait until a job's cluster is active."""
        return self._cluster(job, lambda one: one.state is ClusterState.ACTIVE, "active")

    def asked(self, job: str) -> ClusterView:
        """Wait until a job's cluster was asked for."""
        return self._cluster(job, lambda _: True, "there")

    def gone(self, job: str) -> None:
        """Wait until nothing is left of a job's cluster."""
        self.until(
            lambda: (found := self.cluster(job)) is None or found.state in ENDED_STATES,
            f"the cluster of {job} to be gone",
        )

    def nothing_left(self) -> None:
        """Wait until no switch and no host carries anything that was not there at the beginning."""
        self.until(lambda: not self.world.left(), "nothing to be left", self.world.left)

    def until(self, reached: Callable[[], bool], what: str, seen: Callable[[], object] = lambda: "") -> None:
        """Wait until it is so."""
        deadline = time.monotonic() + self.world.patience
        while not reached():
            assert time.monotonic() < deadline, f"expected {what} within {self.world.patience:.0f} s, got {seen()}"
            time.sleep(0.1)

    def _cluster(self, job: str, reached: Callable[[ClusterView], bool], what: str) -> ClusterView:
        found: list[ClusterView] = []

        def look() -> bool:
            view = self.cluster(job)
            found[:] = [view] if view is not None else []
            return view is not None and reached(view)

        self.until(look, f"the cluster of {job} to be {what}", lambda: found)
        return found[0]
