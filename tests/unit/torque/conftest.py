"""The bench on which scripts are tried."""

import getpass
from collections.abc import Iterator
from pathlib import Path

import pytest
from torque_bench import Bench, running


@pytest.fixture
def bench(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Iterator[Bench]:
    """Give a host with an agent and an SBF."""
    with running(tmp_path, getpass.getuser(), capsys) as made:
        yield made
