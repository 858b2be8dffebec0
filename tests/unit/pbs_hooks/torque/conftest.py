import getpass
from collections.abc import Iterator
from pathlib import Path

import pytest
from support.batch_fakes.torque_host import TorqueHost, run_torque_host


@pytest.fixture
def bench(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Iterator[TorqueHost]:
    with run_torque_host(tmp_path, getpass.getuser(), capsys) as host:
        yield host
