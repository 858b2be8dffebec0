import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest

from virtcloud.client.sbf import SbfClient
from virtcloud.lab import Lab, LabEvent, LabIsDown, read_lab_file, take_down
from virtcloud.lab.state import LabState, find_remains, process_start_time
from virtcloud.model.cluster import ClusterRequest, ClusterSpec, ClusterState

pytestmark = pytest.mark.lab

MIXED, PLAIN = (Path(__file__).parent / f"topologies/{name}.yaml" for name in ("mixed", "plain"))
NAMESPACE_KINDS = ("net", "mnt", "pid", "uts", "ipc")
MOUNT_POINT = 4
"""The index of the mount point in a line of mountinfo (proc_pid_mountinfo(5))."""
OTHER_PROGRAMS = ("/tmp/", "/var/tmp/", "/var/cache/", "/run/netns")  # noqa: S108 - not a path that a test writes
GUEST = {"name": "n1", "host": "praha-h1", "image": "busybox", "memory_mb": 32, "addresses": ["10.0.0.1/24"]}


def namespaces_of(pid: int) -> set[str]:
    try:
        return {str(Path(f"/proc/{pid}/ns/{kind}").readlink()) for kind in NAMESPACE_KINDS}
    except OSError:
        return set()


def processes_in(namespaces: set[str]) -> set[int]:
    pids = {int(entry.name) for entry in Path("/proc").iterdir() if entry.name.isdigit()}
    return {pid for pid in pids if namespaces_of(pid) & namespaces}


def wait_until_empty(namespaces: dict[str, int], within_s: float = 60) -> bool:
    """Wait until no process is in the namespaces. Return False after the time limit.

    ``namespaces`` is the result of :func:`own_namespaces`. This function closes the open files of the namespaces before
    it returns.
    """
    deadline, names = time.monotonic() + within_s, set(namespaces)
    while processes_in(names) and time.monotonic() < deadline:
        time.sleep(0.05)
    is_empty = not processes_in(names)
    for file in namespaces.values():
        os.close(file)
    return is_empty


def wait_until_ended(state: LabState, within_s: float = 60) -> bool:
    """Wait until the lab's first process has ended. Return False after the time limit.

    :func:`wait_until_empty` can return earlier, because a process leaves its namespaces a moment before it ends.
    """
    deadline = time.monotonic() + within_s
    while state.pid() is not None and time.monotonic() < deadline:
        time.sleep(0.05)
    return state.pid() is None


def wait_until_unused(state: LabState, within_s: float = 60) -> bool:
    """Wait until no process has this lab's folder in its command line. Return False after the time limit."""
    deadline, folder = time.monotonic() + within_s, str(state.folder).encode()
    while (processes := [one for one in Path("/proc").glob("[0-9]*/cmdline") if folder in read_command_line(one)]) and (
        time.monotonic() < deadline
    ):
        time.sleep(0.05)
    return not processes


def read_command_line(command_line: Path) -> bytes:
    try:
        return command_line.read_bytes()
    except OSError:
        return b""


def own_namespaces(pid: int | None) -> dict[str, int]:
    """Return the namespaces that a lab has created, each with an open file. ``pid`` is a process in these namespaces.

    While the file is open, the kernel does not reuse the namespace's number for a lab of another pytest process.
    """
    assert pid is not None
    machine = namespaces_of(os.getpid())
    found: dict[str, int] = {}
    for path in (
        Path(f"/proc/{one}/ns/{kind}") for one in processes_in(namespaces_of(pid) - machine) for kind in NAMESPACE_KINDS
    ):
        with suppress(OSError):  # the process has ended
            file = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
            name = str(Path(f"/proc/self/fd/{file}").readlink())
            if name in machine or name in found:
                os.close(file)
            else:
                found[name] = file
    return found


@contextmanager
def machine_unchanged(state: LabState) -> Iterator[None]:
    """Check that the code in the context does not change the mounts and interfaces of this machine.

    Below ``OTHER_PROGRAMS``, check only the mounts of this lab, because other programs also mount file systems there.
    """

    def read_machine() -> tuple[list[str], list[str]]:
        interfaces = sorted(one.name for one in Path("/sys/class/net").iterdir())
        mounts = Path("/proc/self/mountinfo").read_text().splitlines()
        others = [mount for mount in mounts if mount.split()[MOUNT_POINT].startswith(OTHER_PROGRAMS)]
        return [mount for mount in mounts if mount not in others or str(state.folder) in mount], interfaces

    before = read_machine()
    yield
    assert read_machine() == before


@contextmanager
def starting(state: LabState, until: str) -> Iterator[subprocess.Popen[str]]:
    """Start a lab as from a terminal, in a separate process group. Wait for the step ``until`` in the output."""
    command = [sys.executable, "-m", "virtcloud.cli", "lab", "up", str(PLAIN)]
    environment = {**os.environ, "VIRTCLOUD_LAB_STATE": str(state.folder), "PYTHONUNBUFFERED": "1"}
    with subprocess.Popen(  # noqa: S603 - our own command
        command, env=environment, stderr=subprocess.PIPE, text=True, start_new_session=True
    ) as process:
        assert process.stderr
        assert any(until in line for line in process.stderr), f"expected {until} in the output"
        yield process
        process.communicate(timeout=60)


@pytest.mark.parametrize("until", ["files", "station sbf", "topology and pools", "sshd", "libvirtd", "agent ("])
def test_an_interrupted_start_leaves_no_remains(own_state: LabState, until: str) -> None:
    with machine_unchanged(own_state):
        with starting(own_state, until) as process:
            supervisor = own_state.launcher()
            created = own_namespaces(supervisor) if supervisor else {}
            os.killpg(process.pid, signal.SIGINT)
        assert process.returncode == 130
        assert wait_until_empty(created)
        assert wait_until_unused(own_state)
        assert find_remains(own_state) == []


def test_the_lab_of_a_killed_start_can_be_removed(own_state: LabState) -> None:
    with machine_unchanged(own_state):
        with starting(own_state, "station sbf") as process:
            process.kill()
        created = own_namespaces(own_state.launcher())
        take_down(own_state)
        assert wait_until_empty(created)
        assert find_remains(own_state) == []


@pytest.mark.parametrize(("victim", "file"), [("pid", MIXED), ("launcher", PLAIN)], ids=["pid", "launcher"])
def test_a_crash_ends_all_processes_and_its_remains_are_reported(own_state: LabState, victim: str, file: Path) -> None:
    with machine_unchanged(own_state):
        lab = Lab.up(read_lab_file(file), state=own_state)
        with SbfClient(f"unix://{lab.sbf_socket}") as client:
            spec = ClusterSpec.model_validate({"owner": "alice", "guests": [GUEST]})
            view = client.put_cluster("a", ClusterRequest(spec=spec))
            while view.state is ClusterState.CONFIGURING:
                view = client.cluster("a", after=view.version, wait=5)
            assert view.state is ClusterState.ACTIVE
        created = own_namespaces(own_state.pid())
        pid = getattr(own_state, victim)()
        os.kill(pid, signal.SIGKILL)
        assert wait_until_empty(created)
        assert wait_until_ended(own_state)
        assert process_start_time(pid) is None
        with pytest.raises(LabIsDown):
            Lab.running(own_state)
        places = (
            own_state.folder,
            own_state.cgroup,
            own_state.sbf_socket,
        )  # own_state.cgroup exists only on a machine with cgroup v2
        remains = [str(one) for one in places if one.exists()]
        assert find_remains(own_state) == remains
        assert str(own_state.folder) in remains

        events: list[LabEvent] = []
        Lab.up(read_lab_file(file), watch=events.append, state=own_state)
        notes = [event.text for event in events if event.step == "remains"]
        assert notes == [f"removed the remains of a lab that ended unexpectedly: {', '.join(remains)}"]
        with SbfClient(f"unix://{lab.sbf_socket}") as client:
            assert client.clusters() == []
        lab.down()
        assert find_remains(own_state) == []
