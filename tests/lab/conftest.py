"""The lab that tests run on: the default one, whole, up once for all of them."""

import os
from collections.abc import Iterator

import pytest

from virtcloud.lab import Lab, LabImpossible, read_lab_file, take_down
from virtcloud.lab.state import State

REQUIRED = "VIRTCLOUD_REQUIRE_LAB"  # set in CI: a lab that cannot run is then an error


@pytest.fixture(scope="session")
def lab() -> Iterator[Lab]:
    """Give the lab of metacenter.yaml with SBF and agents; nothing may be left of it afterwards."""
    try:
        running = Lab.up(read_lab_file())
    except LabImpossible as error:
        if os.environ.get(REQUIRED):
            raise
        pytest.skip(f"NO LAB: {error}")
    yield running
    running.down()


@pytest.fixture
def own_state(tmp_path_factory: pytest.TempPathFactory) -> Iterator[State]:
    """Give a folder for a lab of the test's own; whatever is left of it is removed."""
    state = State(tmp_path_factory.mktemp("lab") / "state")
    yield state
    take_down(state)
