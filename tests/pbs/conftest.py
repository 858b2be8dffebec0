"""An OpenPBS with three MoMs in a lab. Tests are skipped with a message if the lab or OpenPBS is missing."""

from collections.abc import Iterator

import pytest
from batch_scenarios.openpbs_lab import (
    HOSTS,
    NODE_FAIL_REQUEUE_S,
    RECONCILIATION,
    SCHEDULER_ITERATION_S,
    SETTINGS,
    TIMING,
    RealBatch,
    RealWorld,
)
from batch_scenarios.stage import ScenarioStage

from virtcloud.client.sbf import SbfClient
from virtcloud.lab import Lab, LabImpossible, LabOptions, read_lab_file
from virtcloud.lab.pbs import LabPbs
from virtcloud.lab.snapshot import take_snapshot
from virtcloud.lab.state import LabState
from virtcloud.testing.fakepbs.batch_system import BatchJobState


@pytest.fixture(scope="session")
def batch(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LabPbs]:
    state = LabState(tmp_path_factory.mktemp("pbs") / "lab")
    try:
        pbs = LabPbs.of(Lab(state))
    except LabImpossible as error:
        pytest.skip(f"NO OPENPBS: {error}")
    try:
        running = Lab.up(read_lab_file(), LabOptions(timing=TIMING), state=state)
    except LabImpossible as error:
        pytest.skip(f"NO LAB: {error}")
    try:
        start(pbs)
        yield pbs
    finally:
        running.down()


def start(pbs: LabPbs) -> None:
    pbs.start(HOSTS)
    pbs.install_hooks(SETTINGS)
    pbs.reconcile(RECONCILIATION)
    pbs.root("qmgr", "-c", f"set server node_fail_requeue = {NODE_FAIL_REQUEUE_S}")
    pbs.root("qmgr", "-c", f"set server scheduler_iteration = {SCHEDULER_ITERATION_S}")


@pytest.fixture(scope="session")
def world(batch: LabPbs) -> Iterator[RealWorld]:
    with SbfClient(f"unix://{batch.lab.sbf_socket}", timeout=20) as client:
        yield RealWorld(batch.lab, RealBatch(batch, HOSTS), client, take_snapshot(batch.lab, batch.lab.topology), HOSTS)


@pytest.fixture
def stage(batch: LabPbs, world: RealWorld) -> Iterator[ScenarioStage]:
    """A stage without jobs.

    After the test, delete unfinished jobs, and check that switches and hosts carry nothing of the test's jobs.
    """
    stage = ScenarioStage(world.batch, world.batch, world)
    yield stage
    for job in stage.jobs:
        if stage.batch.status(job).state is not BatchJobState.FINISHED:
            stage.batch.delete(job, force=True)
    stage.await_clean()
    batch.await_free(HOSTS)
