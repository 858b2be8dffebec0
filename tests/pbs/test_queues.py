"""Queues whose default resources contain a request for a cluster. At submission, hooks do not see this request."""

from collections.abc import Iterator

import pytest
from batch_scenarios.stage import ScenarioStage

from virtcloud.lab.pbs import LabPbs

pytestmark = [pytest.mark.pbs, pytest.mark.timeout(600)]
QUEUE = "clusters"


@pytest.fixture
def queue(batch: LabPbs) -> Iterator[str]:
    batch.root("qmgr", "-c", f"create queue {QUEUE} queue_type=execution,enabled=true,started=true")
    batch.root("qmgr", "-c", f"set queue {QUEUE} resources_default.vcluster = image=busybox")
    yield QUEUE
    batch.root("qmgr", "-c", f"delete queue {QUEUE}")


def submit(batch: LabPbs, queue: str, *more: str) -> str:
    """Submit a job to the queue. The job itself contains no request for a cluster."""
    shape = ["-l", "select=1:ncpus=1", "-l", "walltime=0:05:00", "-q", queue, *more]
    return batch.user("alice", ["qsub", *shape, "--", "/bin/true"]).stdout.strip()


def test_an_array_is_deleted_and_the_scheduler_continues(stage: ScenarioStage, batch: LabPbs, queue: str) -> None:
    """If the runjob hook rejected the array, the scheduler would try to start it again and again."""
    array = submit(batch, queue, "-J", "1-2")
    assert stage.await_end(stage.submit()).exit_status == 0
    stage.await_that(lambda: "job_state = F" in batch.root("qstat", "-xf", array), f"{array} to be deleted")


def test_a_job_with_shared_hosts_is_held_until_altered(stage: ScenarioStage, batch: LabPbs, queue: str) -> None:
    job = submit(batch, queue)
    stage.jobs.append(job)
    stage.await_queued(job, "vcluster: a cluster needs one exclusive host per chunk: use -l place=scatter:excl")
    stage.batch.alter(job, {"place": "scatter:excl"})
    batch.root("qrls", job)
    assert stage.await_end(job).exit_status == 0
    stage.await_released(job)
