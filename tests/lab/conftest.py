"""The labs on which tests run. Each pytest process runs at most one shared lab at a time."""

import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from distribution import LABS, lab_of

from virtcloud.client.sbf import SbfClient
from virtcloud.lab import Lab, LabFile, LabImpossible, LabOptions, read_lab_file, take_down
from virtcloud.lab.state import LabState
from virtcloud.model.errors import ServiceUnreachable

DEFAULT = LABS[0]
SHARED_LAB: "pytest.StashKey[SharedLab]" = pytest.StashKey()


def start_lab(file: LabFile, state: LabState | None = None, options: LabOptions | None = None) -> Lab:
    """Start a lab. Skip the test if no lab can run on this machine.

    If ``VIRTCLOUD_REQUIRE_LAB`` is set, a skipped test counts as failed.
    """
    try:
        return Lab.up(file, options, state=state)
    except LabImpossible as error:
        pytest.skip(f"NO LAB: {error}")


class SharedLab:
    """The shared lab of this process, which successive test files use.

    An idle lab uses memory and processor time, so the lab runs only until a file needs another lab or no lab.
    ``next_lab`` is the name of the lab that the next test uses, or "" if the next test uses no shared lab.
    """

    def __init__(self, temporary: pytest.TempPathFactory) -> None:
        self._temporary = temporary
        self._running: tuple[str, Lab] | None = None
        self.next_lab = ""

    @contextmanager
    def use(self, name: str, options: LabOptions | None = None, topology: str = "") -> Iterator[Lab]:
        """Yield the lab ``name`` for one test file.

        The lab's topology is ``topologies/TOPOLOGY.yaml``, or metacenter.yaml if ``topology`` is "". Afterwards, stop
        the lab if the next file does not use this lab, if SBF does not answer, or if clusters remain: such clusters
        could change the results of the next file. With ``options.bare``, neither SBF nor agents run, so stop the lab
        only if the next file does not use this lab.
        """
        running = (
            self._running[1] if self._running and self._running[0] == name else self._start(name, options, topology)
        )
        yield running
        is_bare = options is not None and options.bare
        if self.next_lab != name or (not is_bare and has_clusters(running)):
            self.stop()

    def _start(self, name: str, options: LabOptions | None, topology: str) -> Lab:
        self.stop()
        path = Path(__file__).parent / f"topologies/{topology}.yaml" if topology else None
        state = None if name == DEFAULT else LabState(self._temporary.mktemp(name) / "state")
        started_lab = start_lab(read_lab_file(path), state, options)
        self._running = name, started_lab
        return started_lab

    def stop(self) -> None:
        if self._running is not None:
            (_, running), self._running = self._running, None
            running.down()


def has_clusters(lab: Lab) -> bool:
    """Return whether a lab has clusters that have not ended. If its SBF does not answer, return True."""
    try:
        with SbfClient(f"unix://{lab.sbf_socket}") as client:
            return bool(client.clusters())
    except ServiceUnreachable:
        return True


@pytest.fixture(scope="session")
def shared_lab(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[SharedLab]:
    shared = request.config.stash[SHARED_LAB] = SharedLab(tmp_path_factory)
    yield shared
    shared.stop()


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_teardown(item: pytest.Item, nextitem: pytest.Item | None) -> None:
    if shared := item.config.stash.get(SHARED_LAB, None):
        shared.next_lab = lab_of(nextitem) if nextitem else ""


@pytest.fixture(scope="module")
def lab(shared_lab: SharedLab) -> Iterator[Lab]:
    with shared_lab.use(DEFAULT) as running:
        yield running


@pytest.fixture(scope="module")
def client(lab: Lab) -> Iterator[SbfClient]:
    with SbfClient(f"unix://{lab.sbf_socket}", timeout=60) as client:
        yield client


@pytest.fixture(scope="module")
def user_key(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The file of a new private SSH key. The public key is in the file with the suffix ``.pub``."""
    path = tmp_path_factory.mktemp("keys") / "id"
    subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(path)], check=True)  # noqa: S603, S607
    return path


@pytest.fixture(scope="module")
def bare(shared_lab: SharedLab) -> Iterator[Lab]:
    """A lab in which neither SBF nor agents run. Each test must leave the other services (libvirtd, sshd) running."""
    with shared_lab.use("bare", LabOptions(bare=True)) as running:
        yield running


@pytest.fixture(scope="module")
def mixed(shared_lab: SharedLab) -> Iterator[Lab]:
    """A lab of two sites. One of the hosts also runs QEMU guests."""
    with shared_lab.use("mixed", topology="mixed") as running:
        yield running


@pytest.fixture(scope="module")
def cabled(shared_lab: SharedLab) -> Iterator[Lab]:
    """A lab of one site with two switches, in which all switches and hosts run LLDP."""
    with shared_lab.use("cabled", topology="cabled") as running:
        yield running


@pytest.fixture(scope="module")
def paths(shared_lab: SharedLab) -> Iterator[Lab]:
    """A lab of two sites, one of which has a ring of three switches."""
    with shared_lab.use("paths", topology="paths") as running:
        yield running


@pytest.fixture(scope="module")
def prepared(shared_lab: SharedLab) -> Iterator[Lab]:
    """A lab in which neither SBF nor agents run. An EVPN fabric connects three edges.

    The path between the switches of two sites leads through a Linux bridge and then through an Open vSwitch.
    """
    with shared_lab.use("prepared", LabOptions(bare=True), "prepared") as running:
        yield running


@pytest.fixture(scope="module")
def edges(shared_lab: SharedLab) -> Iterator[Lab]:
    """A lab with three kinds of transports between sites. Device timeouts and drift interval are short."""
    timing = {"connect_timeout": 2, "read_timeout": 3, "retry_most": 1, "drift_interval": 3}
    with shared_lab.use("edges", LabOptions(timing=timing), "edges") as running:
        yield running


@pytest.fixture
def own_state(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LabState]:
    """The state folder for a test's own lab. After the test, remove all remains of the lab."""
    state = LabState(tmp_path_factory.mktemp("lab") / "state")
    yield state
    take_down(state)
