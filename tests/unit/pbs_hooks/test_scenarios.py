"""Runs the scenarios of ``tests/batch_scenarios`` on a fake batch system, with a real SBF and real agents.

``make test-pbs`` runs the same scenarios on a real OpenPBS.
"""

from collections.abc import Callable, Iterator

import pytest
from batch_scenarios.fake_batch import FakeMachines, fake_batch
from batch_scenarios.fake_world import FakeWorld, fake_world
from batch_scenarios.scenarios import ALL
from batch_scenarios.stage import ScenarioStage

from virtcloud.testing.fakepbs.batch_system import BatchJobState

HOSTS = ("brno-h1", "praha-h1", "plzen-h1")


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[FakeWorld]:
    with fake_world(tmp_path_factory.mktemp("world"), HOSTS) as running:
        yield running


@pytest.fixture(scope="module")
def shared_stage(world: FakeWorld, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ScenarioStage]:
    with fake_batch(world, tmp_path_factory.mktemp("batch")) as batch:
        yield ScenarioStage(batch, FakeMachines(batch, world), world, user=world.user)


@pytest.fixture
def stage(shared_stage: ScenarioStage) -> Iterator[ScenarioStage]:
    """Yield the stage that all tests of this module share, with an empty list of jobs.

    After the test, check that all switches and hosts return to their initial state.
    """
    shared_stage.jobs.clear()
    yield shared_stage
    for job in shared_stage.jobs:
        if shared_stage.batch.status(job).state is not BatchJobState.FINISHED:
            shared_stage.batch.delete(job, force=True)
    shared_stage.await_clean()


@pytest.mark.parametrize("scenario", ALL, ids=lambda scenario: scenario.__name__)
def test_the_scenario_succeeds(stage: ScenarioStage, scenario: Callable[[ScenarioStage], None]) -> None:
    scenario(stage)
