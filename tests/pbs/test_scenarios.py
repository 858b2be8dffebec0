"""The scenarios on a real OpenPBS."""

from collections.abc import Callable

import pytest
from batch_scenarios.scenarios import ALL
from batch_scenarios.stage import Stage

pytestmark = [pytest.mark.pbs, pytest.mark.timeout(600)]


@pytest.mark.parametrize("scenario", ALL, ids=lambda one: one.__name__)
def test_scenario(stage: Stage, scenario: Callable[[Stage], None]) -> None:
    """Each says its claim itself."""
    scenario(stage)
