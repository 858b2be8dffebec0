"""The lab that tests run on: the default one, whole, up once for all of them."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from virtcloud.lab import Lab, LabFile, LabImpossible, LabOptions, read_lab_file, take_down
from virtcloud.lab.state import LabState


def start(file: LabFile, state: LabState | None = None, wishes: LabOptions | None = None) -> Lab:
    """Start a lab; a test for which none can run here says so (and fails where a lab is required)."""
    try:
        return Lab.up(file, wishes, state=state)
    except LabImpossible as error:
        pytest.skip(f"NO LAB: {error}")


@contextmanager
def lab_of(name: str, temporary: pytest.TempPathFactory, wishes: LabOptions | None = None) -> Iterator[Lab]:
    """Run a lab of ``topologies/NAME.yaml`` with a state folder of its own."""
    file = read_lab_file(Path(__file__).parent / f"topologies/{name}.yaml")
    running = start(file, LabState(temporary.mktemp(name) / "state"), wishes)
    yield running
    running.down()


@pytest.fixture(scope="session")
def lab() -> Iterator[Lab]:
    """Give the lab of metacenter.yaml with SBF and agents; nothing may be left of it afterwards."""
    running = start(read_lab_file())
    yield running
    running.down()


@pytest.fixture(scope="session")
def bare(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Lab]:
    """Give a lab of network, sshd and libvirtd only; its tests leave all services running."""
    running = start(read_lab_file(), LabState(tmp_path_factory.mktemp("bare") / "state"), LabOptions(bare=True))
    yield running
    running.down()


@pytest.fixture(scope="module")
def mixed(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Lab]:
    """Give a lab of two sites, in which one host runs QEMU guests as well."""
    with lab_of("mixed", tmp_path_factory) as running:
        yield running


@pytest.fixture(scope="module")
def cabled(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Lab]:
    """Give a lab of one site with two switches, in which everybody speaks LLDP."""
    with lab_of("cabled", tmp_path_factory) as running:
        yield running


@pytest.fixture(scope="module")
def paths(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Lab]:
    """Give a lab of two sites, one of them a ring of three switches."""
    with lab_of("paths", tmp_path_factory) as running:
        yield running


@pytest.fixture(scope="module")
def prepared(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Lab]:
    """Give a lab of two sites' switches with a Linux bridge and an Open vSwitch between them, and no SBF."""
    with lab_of("prepared", tmp_path_factory, LabOptions(bare=True)) as running:
        yield running


@pytest.fixture(scope="module")
def fabric(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Lab]:
    """Give a lab of three sites whose provider edges are on an EVPN fabric, and no SBF."""
    with lab_of("edges", tmp_path_factory, LabOptions(bare=True)) as running:
        yield running


@pytest.fixture(scope="module")
def edges(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Lab]:
    """Give a lab whose sites are joined in three ways; an edge that is cut off is given up soon, drift is seen soon."""
    timing = {"connect_timeout": 2, "read_timeout": 3, "retry_most": 1, "drift_interval": 3}
    with lab_of("edges", tmp_path_factory, LabOptions(timing=timing)) as running:
        yield running


@pytest.fixture
def own_state(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LabState]:
    """Give a folder for a lab of the test's own; whatever is left of it is removed."""
    state = LabState(tmp_path_factory.mktemp("lab") / "state")
    yield state
    take_down(state)
