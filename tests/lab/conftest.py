"""The labs on which tests run. Each lab is started once for all tests of a session or of a module."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from virtcloud.lab import Lab, LabFile, LabImpossible, LabOptions, read_lab_file, take_down
from virtcloud.lab.state import LabState


def start_lab(file: LabFile, state: LabState | None = None, options: LabOptions | None = None) -> Lab:
    """Start a lab. Skip the test if no lab can run on this machine.

    If the environment variable ``VIRTCLOUD_REQUIRE_LAB`` is set, a skipped test counts as failed.
    """
    try:
        return Lab.up(file, options, state=state)
    except LabImpossible as error:
        pytest.skip(f"NO LAB: {error}")


@contextmanager
def run_lab(name: str, temporary: pytest.TempPathFactory, options: LabOptions | None = None) -> Iterator[Lab]:
    """Run a lab of ``topologies/NAME.yaml`` with its own state folder."""
    file = read_lab_file(Path(__file__).parent / f"topologies/{name}.yaml")
    started_lab = start_lab(file, LabState(temporary.mktemp(name) / "state"), options)
    yield started_lab
    started_lab.down()


@pytest.fixture(scope="session")
def lab() -> Iterator[Lab]:
    """Yield the default lab (metacenter.yaml) with SBF and agents."""
    started_lab = start_lab(read_lab_file())
    yield started_lab
    started_lab.down()


@pytest.fixture(scope="session")
def bare(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Lab]:
    """Yield a lab without SBF and agents. Each test must leave all services of the lab running."""
    started_lab = start_lab(read_lab_file(), LabState(tmp_path_factory.mktemp("bare") / "state"), LabOptions(bare=True))
    yield started_lab
    started_lab.down()


@pytest.fixture(scope="module")
def mixed(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Lab]:
    """Yield a lab of two sites. One of its hosts also runs QEMU guests."""
    with run_lab("mixed", tmp_path_factory) as started_lab:
        yield started_lab


@pytest.fixture(scope="module")
def cabled(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Lab]:
    """Yield a lab of one site with two switches, in which all switches and hosts run LLDP."""
    with run_lab("cabled", tmp_path_factory) as started_lab:
        yield started_lab


@pytest.fixture(scope="module")
def paths(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Lab]:
    """Yield a lab of two sites. One of the sites has a ring of three switches."""
    with run_lab("paths", tmp_path_factory) as started_lab:
        yield started_lab


@pytest.fixture(scope="module")
def prepared(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Lab]:
    """Yield a lab without SBF: two switches behind a Linux bridge and an Open vSwitch, and three edges of a fabric."""
    with run_lab("prepared", tmp_path_factory, LabOptions(bare=True)) as started_lab:
        yield started_lab


@pytest.fixture(scope="module")
def edges(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Lab]:
    """Yield a lab with three kinds of transports between sites. Device timeouts and drift interval are short."""
    timing = {"connect_timeout": 2, "read_timeout": 3, "retry_most": 1, "drift_interval": 3}
    with run_lab("edges", tmp_path_factory, LabOptions(timing=timing)) as started_lab:
        yield started_lab


@pytest.fixture
def own_state(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LabState]:
    """Yield the state folder for a test's own lab. After the test, remove all remains of the lab."""
    state = LabState(tmp_path_factory.mktemp("lab") / "state")
    yield state
    take_down(state)
