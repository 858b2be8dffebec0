"""From the request of a cluster to a login by ``ssh``: one LXC guest with OpenSSH at one site of the lab.

The parts follow each other. The switch and the host work at the same time, so only the later of them delays the
cluster. ``ssh`` connects through SBF and the guest's agent, as from anywhere (``virtcloud cluster ssh``). The values
are the parts of the fastest of several runs, because other programs on the machine only lengthen them. The lab's hosts
share one processor where the lab needs a kernel of its own. QEMU guests are not measured: the lab's small QEMU image
has no OpenSSH, and without KVM the boot of a cloud image takes longer than all other parts together.
"""

import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory

from benchmarks.measurement import Measurement
from virtcloud.client.sbf import SbfClient
from virtcloud.lab import Lab, read_lab_file
from virtcloud.lab.state import LabState
from virtcloud.model.cluster import ENDED_STATES, ClusterRequest, ClusterSpec, ClusterState
from virtcloud.model.element import ElementKind
from virtcloud.model.errors import VirtcloudError
from virtcloud.model.guest_sessions import SessionRequest
from virtcloud.model.views import ClusterView, PlacementProgress

HOST, IMAGE, RUNS, TIMEOUT_S = "brno-h1", "busybox-ssh", 4, 120
GUEST = {"name": "n1", "host": HOST, "image": IMAGE, "memory_mb": 64, "addresses": ["10.0.0.1/24"]}
SSH_PORT = 22
Parts = dict[str, float]


def run() -> Iterator[Measurement]:
    """Measure in the default lab."""
    with TemporaryDirectory(prefix="vc") as folder:
        lab = Lab.up(read_lab_file(), state=LabState(Path(folder) / "lab"))
        try:
            yield from measure(f"unix://{lab.sbf_socket}", Path(folder) / "lab/keys/user")
        finally:
            lab.down()


def measure(url: str, identity: Path) -> Iterator[Measurement]:
    """Measure in a running lab. ``identity`` is the file of the user's private key."""
    with SbfClient(url, timeout=60) as client:
        runs = [_measure_once(client, url, identity, f"login{number}") for number in range(RUNS)]
    fastest = min(runs[1:], key=lambda parts: sum(parts.values()))  # the first run loads libraries
    total = sum(fastest.values())
    for part, seconds in fastest.items():
        yield Measurement(f"{part} ({seconds / total:.0%})", seconds, "s")
    yield Measurement("in total", total, "s")


def _measure_once(client: SbfClient, url: str, identity: Path, key: str) -> Parts:
    spec = ClusterSpec.model_validate({"owner": "root", "deadline_s": TIMEOUT_S, "guests": [GUEST]})
    times = [time.monotonic()]
    view = client.put_cluster(key, ClusterRequest(spec=spec))
    times.append(time.monotonic())
    for kind in (ElementKind.SWITCH, ElementKind.HOST):
        view = _wait(client, view, kind)
        times.append(time.monotonic())
    _wait_for_sshd(client, key)
    times.append(time.monotonic())
    argv = [sys.executable, "-m", "virtcloud.cli", "--url", url, "cluster", "ssh", key, "n1", "-l", "root"]
    subprocess.run([*argv, "-i", str(identity), "--", "true"], check=True, timeout=TIMEOUT_S)  # noqa: S603 - no input
    times.append(time.monotonic())
    client.delete_cluster(key)
    while view.state not in ENDED_STATES:
        view = client.cluster(key, after=view.version, wait=5)
    names = ("SBF answers the request", "the switch is ready", "then the host is ready: bridge and guest's start",
             "then OpenSSH in the guest answers", "then ssh logs in, with the start of the command")  # fmt: skip
    return {name: end - start for name, start, end in zip(names, times, times[1:], strict=False)}


def _wait(client: SbfClient, view: ClusterView, kind: ElementKind) -> ClusterView:
    """Wait until all elements of a kind are ready."""
    while any(one.kind is kind and one.progress is not PlacementProgress.CONFIRMED for one in view.placements):
        if view.state not in {ClusterState.CONFIGURING, ClusterState.ACTIVE, ClusterState.REQUESTED}:
            raise AssertionError(view.reason)
        view = client.cluster(view.key, after=view.version, wait=5)
    return view


def _wait_for_sshd(client: SbfClient, key: str) -> None:
    deadline = time.monotonic() + TIMEOUT_S
    while time.monotonic() < deadline:
        try:
            with client.open_session(
                key, "n1", SessionRequest.model_validate({"kind": "port", "port": SSH_PORT})
            ) as session:
                if session.receive().startswith(b"SSH-"):
                    return
        except VirtcloudError:
            time.sleep(0.05)
    raise TimeoutError("OpenSSH in the guest does not answer")
