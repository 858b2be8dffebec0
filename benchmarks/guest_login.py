"""The time from the request of a cluster to a login by ``ssh``, for an LXC guest and a QEMU guest at one site of a lab.

The measurements of each guest are consecutive parts of one start. SBF configures the switch while the host's agent
prepares the host. The time of the host counts only from the moment at which the switch is ready. ``ssh`` connects
through SBF and the agent of the guest's host (``virtcloud cluster ssh``). Each guest is started several times. The
values are from the fastest start after the first, because the load by other programs only lengthens a start. If the lab
needs its own kernel, all hosts of the lab share one processor.

The LXC guest is busybox with OpenSSH. The QEMU guest boots a small disk with GRUB, Debian's kernel and cloud-init, on
an emulated processor (TCG). With KVM, the parts inside the guest are several times faster. The values of the QEMU guest
are from its second start, for which the host already has the disk.
"""

import hashlib
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from tempfile import TemporaryDirectory

from benchmarks.measurement import Measurement, measure_load
from virtcloud.client.sbf import SbfClient
from virtcloud.lab import Lab, read_lab_file
from virtcloud.lab.small_disk import BOOT_TIMES, ensure_small_disk
from virtcloud.lab.state import LabState
from virtcloud.model.cluster import ENDED_STATES, ClusterRequest, ClusterSpec, ClusterState
from virtcloud.model.element import ElementKind
from virtcloud.model.errors import VirtcloudError
from virtcloud.model.guest_sessions import SessionRequest
from virtcloud.model.image import ImageContent
from virtcloud.model.views import ClusterView, PlacementProgress

HOST, TIMEOUT_S = "brno-h1", 180
DISK = "small"
TOPOLOGY = Path(__file__).parent.parent / "tests/lab/topologies/mixed.yaml"


@dataclass(frozen=True, slots=True)
class MeasuredGuest:
    """A guest with its user. ``runs`` is the number of starts, including the ignored first start.

    ``pause_s`` is the pause between two tries to reach OpenSSH. A try delays the boot.
    """

    kind: str
    user: str
    image: str
    memory_mb: int
    runs: int
    pause_s: float


GUESTS = (MeasuredGuest("LXC", "root", "busybox-ssh", 64, 4, 0.05), MeasuredGuest("QEMU", "alice", DISK, 256, 2, 1.0))
SSH_PORT = 22
Parts = dict[str, float]


def run() -> Iterator[Measurement]:
    """Start a lab with two sites, from the topology of the tests of QEMU guests, and measure in this lab."""
    yield measure_load()
    with TemporaryDirectory(prefix="vc") as folder:
        lab = Lab.up(read_lab_file(TOPOLOGY), state=LabState(Path(folder) / "lab"))
        try:
            yield from measure(f"unix://{lab.sbf_socket}", Path(folder) / "lab/keys/user")
        finally:
            lab.down()


def measure(url: str, identity: Path) -> Iterator[Measurement]:
    """Measure in a running lab."""
    with SbfClient(url, timeout=60) as client:
        _upload_disk(client)
        for guest in GUESTS:
            runs = [_measure_once(client, url, identity, guest, f"login{number}") for number in range(guest.runs)]
            fastest = min(runs[1:], key=lambda parts: sum(parts.values()))  # the first run loads libraries
            total = sum(fastest.values())
            for part, seconds in fastest.items():
                yield Measurement(f"{guest.kind}: {part} ({seconds / total:.0%})", seconds, "s")
            yield Measurement(f"{guest.kind}: in total", total, "s")


def _upload_disk(client: SbfClient) -> None:
    data = ensure_small_disk(lambda _: None).read_bytes()
    content = {"size": len(data), "format": "qcow2", "architecture": "x86_64"}
    checksum = hashlib.sha256(data).hexdigest()
    client.upload_image(DISK, ImageContent.model_validate({"sha256": checksum, **content}), [data])
    client.share_image(DISK, everybody=True)


def _measure_once(client: SbfClient, url: str, identity: Path, guest: MeasuredGuest, key: str) -> Parts:
    times = [time.monotonic()]
    view = client.put_cluster(key, ClusterRequest(spec=_spec(guest, identity)))
    times.append(time.monotonic())
    for kind in (ElementKind.SWITCH, ElementKind.HOST):
        view = _wait(client, view, kind)
        times.append(time.monotonic())
    _wait_for_sshd(client, key, guest.pause_s)
    times.append(time.monotonic())
    argv = [sys.executable, "-m", "virtcloud.cli", "--url", url, "cluster", "ssh", key, "n1", "-l", guest.user]
    command = [*argv, "-i", str(identity), "--", f"cat {BOOT_TIMES} || true"]
    output = subprocess.run(command, check=True, timeout=TIMEOUT_S, capture_output=True, text=True).stdout  # noqa: S603 - no input
    times.append(time.monotonic())
    client.delete_cluster(key)
    while view.state not in ENDED_STATES:
        view = client.cluster(key, after=view.version, wait=5)
    request, switch, host, boot, login = (end - start for start, end in pairwise(times))
    return {
        "SBF answers the request": request,
        "the switch is ready": switch,
        "then the host is ready: bridge created, guest started": host,
        **_divide_boot(boot, [float(word) for word in output.split()]),
        "then ssh logs in, including the start of the command": login,
    }


def _spec(guest: MeasuredGuest, identity: Path) -> ClusterSpec:
    place = {"name": "n1", "host": HOST, "image": guest.image, "addresses": ["10.0.0.1/24"]}
    return ClusterSpec.model_validate(
        {
            "owner": guest.user,
            "deadline_s": TIMEOUT_S,
            "authorized_keys": [identity.with_suffix(".pub").read_text().strip()],
            "guests": [{**place, "memory_mb": guest.memory_mb}],
        }
    )


def _divide_boot(seconds: float, uptimes: list[float]) -> Parts:
    if not uptimes:
        return {"then OpenSSH in the guest answers": seconds}
    begin, end = uptimes
    return {
        "then boot loader, kernel and OpenSSH in the guest": seconds - (end - begin),
        "and cloud-init, which configures the network": end - begin,
    }


def _wait(client: SbfClient, view: ClusterView, kind: ElementKind) -> ClusterView:
    while any(one.kind is kind and one.progress is not PlacementProgress.CONFIRMED for one in view.placements):
        if view.state not in {ClusterState.CONFIGURING, ClusterState.ACTIVE, ClusterState.REQUESTED}:
            raise AssertionError(view.reason)
        view = client.cluster(view.key, after=view.version, wait=5)
    return view


def _wait_for_sshd(client: SbfClient, key: str, pause_s: float) -> None:
    deadline = time.monotonic() + TIMEOUT_S
    while time.monotonic() < deadline:
        try:
            with client.open_session(
                key, "n1", SessionRequest.model_validate({"kind": "port", "port": SSH_PORT})
            ) as session:
                if session.receive().startswith(b"SSH-"):
                    return
        except VirtcloudError:
            time.sleep(pause_s)
    raise TimeoutError("OpenSSH in the guest does not answer")
