"""The labs that tests run on. Each lab is started once for all tests of a session or of a module."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from virtcloud.lab import Lab, LabFile, LabImpossible, LabOptions, read_lab_file, take_down
from virtcloud.lab.state import LabState


def start(file: LabFile, state: LabState | None = None, wishes: LabOptions | None = None) -> Lab:
    """Start a lab. Skip the test if no lab can run here (the test fails where a lab is required)."""
    try:
        return Lab.up(file, wishes, state=state)
    except LabImpossible as error:
        pytest.skip(f"NO LAB: {error}")


@contextmanager
def lab_of(name: str, temporary: pytest.TempPathFactory, wishes: LabOptions | None = None) -> Iterator[Lab]:
    """Run a lab of ``topologies/NAME.yaml`` with its own state folder."""
    file = read_lab_file(Path(__file__).parent / f"topologies/{name}.yaml")
    running = start(file, LabState(temporary.mktemp(name) / "state"), wishes)
    yield running
    running.down()


@pytest.fixture(scope="session")
def lab() -> Iterator[Lab]:
    """Yield the default lab (metacenter.yaml) with SBF and agents."""
    running = start(read_lab_file())
    yield running
    running.down()


@pytest.fixture(scope="session")
def bare(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Lab]:
    """Yield a lab of network, sshd and libvirtd only. Its tests leave all services running."""
    running = start(read_lab_file(), LabState(tmp_path_factory.mktemp("bare") / "state"), LabOptions(bare=True))
    yield running
    running.down()


@pytest.fixture(scope="module")
def mixed(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Lab]:
    """Yield a lab of two sites. One of its hosts also runs QEMU guests."""
    with lab_of("mixed", tmp_path_factory) as running:
        yield running


@pytest.fixture(scope="module")
def cabled(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Lab]:
    """Yield a lab of one site with two switches, in which all switches and hosts run LLDP."""
    with lab_of("cabled", tmp_path_factory) as running:
        yield running


@pytest.fixture(scope="module")
def paths(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Lab]:
    """Yield a lab of two sites. One of the sites has a ring of three switches."""
    with lab_of("paths", tmp_path_factory) as running:
        yield running


@pytest.fixture(scope="module")
def prepared(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Lab]:
    """Yield a lab of the switches of two sites, connected by a Linux bridge and an Open vSwitch, without SBF."""
    with lab_of("prepared", tmp_path_factory, LabOptions(bare=True)) as running:
        yield running


@pytest.fixture(scope="module")
def fabric(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Lab]:
    """Yield a lab of three sites whose provider edges are on an EVPN fabric, without SBF."""
    with lab_of("edges", tmp_path_factory, LabOptions(bare=True)) as running:
        yield running


@pytest.fixture(scope="module")
def edges(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Lab]:
    """Yield a lab whose sites are connected in three ways. Timeouts for devices and the drift interval are short."""
    timing = {"connect_timeout": 2, "read_timeout": 3, "retry_most": 1, "drift_interval": 3}
    with lab_of("edges", tmp_path_factory, LabOptions(timing=timing)) as running:
        yield running


@pytest.fixture
def own_state(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LabState]:
    """Yield the state folder for a test's own lab. Everything that remains of the lab is removed."""
    state = LabState(tmp_path_factory.mktemp("lab") / "state")
    yield state
    take_down(state)
