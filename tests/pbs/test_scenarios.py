from collections.abc import Callable

import pytest
from batch_scenarios.scenarios import ALL
from batch_scenarios.stage import ScenarioStage

pytestmark = [pytest.mark.pbs, pytest.mark.timeout(600)]


@pytest.mark.parametrize("scenario", ALL, ids=lambda one: one.__name__)
def test_the_scenario_succeeds(stage: ScenarioStage, scenario: Callable[[ScenarioStage], None]) -> None:
    scenario(stage)
