"""A QEMU guest and a container on the same segment, at two sites."""

import time

import pytest
from lab_jobs import ask

from virtcloud.client.sbf import SbfClient
from virtcloud.lab import Lab
from virtcloud.lab.demo.context import ENTER_CONTAINER
from virtcloud.lab.snapshot import read_guests, read_interfaces, run_checked, take_snapshot
from virtcloud.model.cluster import ClusterRequest, ClusterSpec, ClusterState
from virtcloud.model.views import ClusterView, PlacementProgress

pytestmark = pytest.mark.lab

SPEC = {
    "owner": "alice",
    "deadline_s": 120,
    "guests": [
        {"name": "machine", "host": "brno-h1", "image": "busybox-qemu", "memory_mb": 128, "addresses": ["10.0.0.1/24"]},
        {"name": "container", "host": "praha-h1", "image": "busybox", "memory_mb": 32, "addresses": ["10.0.0.2/24"]},
    ],
}
BOOT_S = 90


def wait_for_state(client: SbfClient, view: ClusterView, state: ClusterState) -> ClusterView:
    deadline = time.monotonic() + 150
    while view.state is not state and time.monotonic() < deadline:
        view = client.cluster(view.key, after=view.version, wait=5)
    assert view.state is state, view.reason
    return view


def wait_for_barrier(lab: Lab, job: dict[str, object]) -> list[str]:
    """Wait on the container's host, as a job does, until the cluster is up. Return the messages of the wait."""
    deadline, missing = time.monotonic() + 150, []
    while time.monotonic() < deadline:
        (output,) = ask(lab, "praha-h1", {"do": "state", "wait": 20, **job})
        if output["state"] == "up":
            return missing
        missing += output["missing"]
    pytest.fail(f"not up: {missing}")


def run_in_container(lab: Lab, *argv: str, given: str = "") -> str:
    (domain,) = read_guests(lab, "praha-h1")
    return lab.run("praha-h1", ("sh", "-c", ENTER_CONTAINER, domain, *argv), stdin=given).stdout


def test_a_qemu_guest_and_a_container_ping_each_other(mixed: Lab) -> None:
    before = take_snapshot(mixed, mixed.topology)
    with SbfClient(f"unix://{mixed.sbf_socket}") as client:
        job = {"cluster": "mixed", "attempt": 1}
        ask(mixed, "praha-h1", {"do": "up", **job})
        client.put_cluster("mixed", ClusterRequest(spec=ClusterSpec.model_validate(SPEC), attempt=1))
        messages = wait_for_barrier(mixed, job)
        assert "guest machine does not answer at 10.0.0.1" in messages, "expected a wait while the guest boots"
        assert client.cluster("mixed").state is ClusterState.ACTIVE
        (machine,) = read_guests(mixed, "brno-h1")
        assert "<domain type='qemu'" in run_checked(
            mixed, "brno-h1", "virsh", "-c", "qemu:///system", "dumpxml", machine
        )

        up = f"/bin/ping -c 1 -W 1 10.0.0.1 && /bin/nc -w {BOOT_S} 10.0.0.1 23"
        output = run_in_container(
            mixed, "/bin/timeout", str(BOOT_S), "/bin/sh", "-c", up, given="ping -c 2 10.0.0.2; uname -r\n"
        )
        assert "bytes from 10.0.0.1" in output
        assert "2 packets transmitted, 2 packets received" in output
        assert "cloud-amd64" in output, "expected the kernel of the QEMU guest"
        console = f"/run/virtcloud/agent/guests/{machine}/console.log"
        assert "machine: up" in run_checked(mixed, "brno-h1", "cat", console), "a machine has its guest's name"
        assert run_in_container(mixed, "hostname") == "container\n", "a container has its guest's name"

        wait_for_state(client, client.delete_cluster("mixed"), ClusterState.RELEASED)
    assert take_snapshot(mixed, mixed.topology) == before
    assert mixed.run("brno-h1", ("pgrep", "qemu")).returncode == 1
    assert run_checked(mixed, "brno-h1", "ls", "/run/virtcloud/agent/guests") == ""


DISK_SPEC = {
    "owner": "alice",
    "deadline_s": 120,
    "guests": [
        {"name": "machine", "host": "brno-h1", "image": "busybox-disk", "memory_mb": 128, "addresses": ["10.0.0.1/24"]},
        {"name": "near", "host": "brno-h1", "image": "busybox", "memory_mb": 32, "addresses": ["10.0.0.3/24"]},
        {"name": "container", "host": "praha-h1", "image": "busybox", "memory_mb": 32, "addresses": ["10.0.0.2/24"]},
    ],
}
SUM = "sha256sum </dev/vda; head -c 17 /dev/vda; echo"
WRITE = "echo written by a guest | dd of=/dev/vda conv=fsync"
"""Writes and flushes the disk: `sync` would not flush the write cache of a disk without a file system."""


def run_in_qemu_guest(lab: Lab, commands: str) -> str:
    """Run commands in the QEMU guest's shell as soon as the guest answers. Return the output of the commands."""
    up = f"until /bin/ping -c 1 -W 1 10.0.0.1 >/dev/null; do :; done; /bin/nc -w {BOOT_S} 10.0.0.1 23"
    return run_in_container(lab, "/bin/timeout", str(BOOT_S), "/bin/sh", "-c", up, given=f"{commands}\nexit\n")


def wait_for_guests(lab: Lab, count: int) -> None:
    deadline = time.monotonic() + 150
    while len(read_guests(lab, "brno-h1")) < count:
        assert time.monotonic() < deadline, "the guests were not started again"
        time.sleep(0.5)


def test_a_guest_with_a_disk_recovers_from_a_power_loss(mixed: Lab) -> None:
    """A guest writes to its disk overlay. The host loses its power, and boots again. The guest has its disk."""
    before = take_snapshot(mixed, mixed.topology)
    image = mixed.state.folder / "images/busybox-disk/disk.img"
    content = image.read_bytes()
    with SbfClient(f"unix://{mixed.sbf_socket}") as client:
        view = client.put_cluster("disk", ClusterRequest(spec=ClusterSpec.model_validate(DISK_SPEC)))
        wait_for_state(client, view, ClusterState.ACTIVE)
        assert "a disk of the lab" in run_in_qemu_guest(mixed, SUM)
        assert "written by a gues" in run_in_qemu_guest(mixed, f"{WRITE}; {SUM}")
        assert image.read_bytes() == content, "the image's disk was written to"

        mixed.power_off("brno-h1")
        mixed.power_on("brno-h1")
        wait_for_guests(mixed, 2)
        assert "written by a gues" in run_in_qemu_guest(mixed, SUM), "the disk is kept"
        wait_for_state(client, client.cluster("disk"), ClusterState.ACTIVE)
        wait_for_state(client, client.delete_cluster("disk"), ClusterState.RELEASED)
    assert image.read_bytes() == content
    assert take_snapshot(mixed, mixed.topology) == before
    assert run_checked(mixed, "brno-h1", "ls", "/run/virtcloud/agent/guests") == ""
    assert (
        run_checked(mixed, "brno-h1", "sh", "-c", "ls /var/log/libvirt/qemu /var/log/libvirt/lxc | grep ^vc- || :")
        == ""
    )


def test_a_hung_libvirtd_does_not_delay_the_removal_of_vlans(mixed: Lab) -> None:
    """The guest may still run, but without a network. The agent confirms the removal when libvirtd answers again."""
    before = take_snapshot(mixed, mixed.topology)
    with SbfClient(f"unix://{mixed.sbf_socket}") as client:
        alone = {"owner": "alice", "deadline_s": 60, "guests": DISK_SPEC["guests"][2:]}  # type: ignore[index]
        view = client.put_cluster("hung", ClusterRequest(spec=ClusterSpec.model_validate(alone)))
        wait_for_state(client, view, ClusterState.ACTIVE)
        run_checked(mixed, "praha-h1", "pkill", "-STOP", "libvirtd")
        try:
            client.delete_cluster("hung")
            deadline = time.monotonic() + 60
            while read_interfaces(mixed, "praha-h1") != before.hosts["praha-h1"]:
                assert time.monotonic() < deadline, read_interfaces(mixed, "praha-h1")
                time.sleep(0.5)
            view = client.cluster("hung")
            (part,) = [one for one in view.placements if one.element == "praha-h1"]
            assert (view.state, part.progress) == (ClusterState.DRAINING, PlacementProgress.REMOVING)
        finally:
            run_checked(mixed, "praha-h1", "pkill", "-CONT", "libvirtd")
        wait_for_state(client, client.cluster("hung"), ClusterState.RELEASED)
    assert take_snapshot(mixed, mixed.topology) == before
