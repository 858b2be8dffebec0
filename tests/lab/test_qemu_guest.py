"""Tests of QEMU guests. The first cluster has a QEMU guest ``machine`` and a container ``container``.

The machine's disk is an image of the catalogue with cloud-init. The machine boots once for all tests that only read its
state.
"""

import hashlib
import shutil
import subprocess
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

import pytest
from support.lab.jobs import ask

from virtcloud import Client
from virtcloud.client.sbf import SbfClient
from virtcloud.lab import Lab, LabImpossible
from virtcloud.lab.demo.context import ENTER_CONTAINER
from virtcloud.lab.small_disk import ensure_small_disk
from virtcloud.lab.snapshot import Snapshot, read_guests, read_interfaces, run_checked, take_snapshot
from virtcloud.model.cluster import ClusterRequest, ClusterSpec, ClusterState
from virtcloud.model.guest_seed import render_known_hosts
from virtcloud.model.image import ImageContent
from virtcloud.model.views import ClusterView, PlacementProgress

pytestmark = [pytest.mark.lab, pytest.mark.timeout(900)]

T = TypeVar("T")
BOOT_S = 90
FULL_LINE = 70
"""The length of a full line of a private key's file. The first line and the last two lines can be shorter."""
SILENCE_S = 300.0
"""The longest permitted time in seconds without new output of the machines' consoles.

The first output comes 90 s after the start of a machine, by the machine's own clock.
"""
COUNT_CONSOLE_BYTES = "cat /run/virtcloud/agent/guests/*/console.log 2>/dev/null | wc -c"
FOLDER = "/run/qemu-test"
"""A folder of the container's host, with the user's private key and the known hosts."""
ENTER_NETWORK = ENTER_CONTAINER.replace(" -n -m -u ", " -n ")
COMMANDS = {
    "account": "id -un; hostname; uname -r",
    "addresses": "ip -o -4 addr show dev eth0",
    "peers": "cat /etc/hosts /etc/virtcloud/hostfile",
    "names": "busybox nslookup container.seeded.internal",
    "ping": "sudo busybox ping -c 2 10.0.0.2",
}
"""Commands that the user runs in the machine after the login."""


def make_spec(authorized_key: str) -> ClusterSpec:
    """Return the spec of a cluster whose hosts offer DHCP and DNS.

    DHCP assigns only the first address of each guest.
    """
    machine = {
        "name": "machine",
        "host": "brno-h1",
        "image": "small",
        "memory_mb": 256,
        "addresses": ["10.0.0.1/24", "10.1.0.1/24"],
    }
    container = {"name": "container", "host": "praha-h1", "image": "busybox", "memory_mb": 32}
    return ClusterSpec.model_validate(
        {
            "owner": "alice",
            "deadline_s": 120,
            "authorized_keys": [authorized_key],
            "host_services": ["dhcp", "dns"],
            "guests": [machine, {**container, "addresses": ["10.0.0.2/24"]}],
        }
    )


@dataclass(frozen=True)
class BootedMachine:
    """The machine's libvirt domain, and the outputs of `COMMANDS`.

    ``messages`` are the agent's sentences about the elements and guests for which a job waited. ``before`` is the
    snapshot of the lab before the cluster was created.
    """

    domain: str
    messages: list[str]
    outputs: dict[str, str]
    before: Snapshot


@pytest.fixture(scope="module")
def client(mixed: Lab) -> Iterator[SbfClient]:
    with SbfClient(f"unix://{mixed.sbf_socket}", timeout=60) as client:
        yield client


@pytest.fixture(scope="module")
def booted(mixed: Lab, client: SbfClient, user_key: Path) -> BootedMachine:
    """Create the cluster, wait as a job does until the machine has booted, and run `COMMANDS` in one login."""
    before = take_snapshot(mixed, mixed.topology)
    add_disk(mixed, client)
    job = {"cluster": "seeded", "attempt": 1}
    ask(mixed, "praha-h1", {"do": "up", **job})
    spec = make_spec(user_key.with_suffix(".pub").read_text().strip())
    view = client.put_cluster("seeded", ClusterRequest(spec=spec, attempt=1))
    messages = wait_for_barrier(mixed, job)
    assert client.cluster("seeded").state is ClusterState.ACTIVE
    write_on_host(mixed, "id", user_key.read_text())
    write_on_host(mixed, "known_hosts", render_known_hosts(client.peers(view.key, view.id).peers))
    (domain,) = read_guests(mixed, "brno-h1")
    mark = "===\n"
    texts = log_in(mixed, "; echo ===; ".join(COMMANDS.values())).split(mark)
    return BootedMachine(domain, messages, dict(zip(COMMANDS, texts, strict=True)), before)


def write_on_host(lab: Lab, name: str, text: str) -> None:
    script = f"umask 077; mkdir -p {FOLDER}; cat >{FOLDER}/{name}"
    lab.run("praha-h1", ("sh", "-c", script), stdin=text, check=True)


def add_disk(lab: Lab, client: SbfClient) -> None:
    """Copy the small disk to the hosts' image folder, and add it to the catalogue as image ``small`` for all users."""
    try:
        disk = ensure_small_disk(lambda _: None)
    except LabImpossible as error:
        pytest.skip(f"NO LAB: {error}")
    file = lab.state.folder / "images/files/small.qcow2"
    file.parent.mkdir()
    shutil.copyfile(disk, file)
    with file.open("rb") as data:
        checksum = hashlib.file_digest(data, "sha256").hexdigest()
    content = {"sha256": checksum, "size": file.stat().st_size, "format": "qcow2", "architecture": "x86_64"}
    client.add_image("small", ImageContent.model_validate(content), file="files/small.qcow2")
    client.share_image("small", everybody=True)


def log_in(lab: Lab, command: str, address: str = "10.0.0.1") -> str:
    """Log in to a machine with ssh, and run a command there. Return the command's output.

    ssh runs in the network namespace of the container, and trusts only the known host keys in `FOLDER`.
    """
    (container,) = read_guests(lab, "praha-h1")
    known = f"UserKnownHostsFile={FOLDER}/known_hosts"
    options = ("BatchMode=yes", "StrictHostKeyChecking=yes", known, "ConnectTimeout=10")
    ssh = ("ssh", "-F", "none", "-i", f"{FOLDER}/id", *(word for option in options for word in ("-o", option)))
    argv = ("sh", "-c", ENTER_NETWORK, container, *ssh, f"alice@{address}", command)
    errors: list[str] = []

    def attempt() -> str | None:
        result = lab.run("praha-h1", argv)
        errors[:] = [result.stderr]
        return result.stdout if result.returncode == 0 else None

    return wait_while_booting(lab, attempt, errors)


def wait_while_booting(lab: Lab, attempt: Callable[[], T | None], errors: list[str]) -> T:
    """Call ``attempt`` until it returns a result.

    The test fails with ``errors`` if the machines' consoles print nothing for `SILENCE_S`. The total time is unlimited:
    on a busy computer, an emulated machine can boot for minutes.
    """
    printed, deadline = -1, 0.0
    while (result := attempt()) is None:
        now_printed = int(run_checked(lab, "brno-h1", "sh", "-c", COUNT_CONSOLE_BYTES))
        if now_printed > printed:
            printed, deadline = now_printed, time.monotonic() + SILENCE_S
        assert time.monotonic() < deadline, errors
        time.sleep(1)
    return result


def wait_for_state(client: SbfClient, view: ClusterView, state: ClusterState) -> ClusterView:
    deadline = time.monotonic() + 150
    while view.state is not state and time.monotonic() < deadline:
        view = client.cluster(view.key, after=view.version, wait=5)
    assert view.state is state, view.reason
    return view


def wait_for_barrier(lab: Lab, job: dict[str, object]) -> list[str]:
    """Wait on the container's host, as a job does, until the cluster is up.

    Return the agent's sentences about the elements and guests for which the job waited.
    """
    missing: list[str] = []

    def attempt() -> list[str] | None:
        (output,) = ask(lab, "praha-h1", {"do": "state", "wait": 20, **job})
        missing.extend(output.get("missing", ()))
        return missing if output["state"] == "up" else None

    return wait_while_booting(lab, attempt, missing)


def run_in_container(lab: Lab, *argv: str, given: str = "") -> str:
    (domain,) = read_guests(lab, "praha-h1")
    return lab.run("praha-h1", ("sh", "-c", ENTER_CONTAINER, domain, *argv), stdin=given).stdout


def test_a_job_waits_until_its_machine_has_booted(booted: BootedMachine) -> None:
    assert "guest machine does not answer at 10.0.0.1 or 10.1.0.1" in booted.messages


def test_a_user_logs_in_to_a_qemu_guest(booted: BootedMachine) -> None:
    user, host, kernel = booted.outputs["account"].split()
    assert (user, host) == ("alice", "machine")
    assert kernel.endswith("cloud-amd64"), "expected the kernel of the QEMU guest"


def test_a_qemu_guest_gets_addresses_from_dhcp_and_its_seed(booted: BootedMachine) -> None:
    """DHCP assigns the first address, which has a lifetime (``dynamic``). The seed contains the second address."""
    lines = booted.outputs["addresses"].splitlines()
    assert [(line.split()[3], "dynamic" in line) for line in lines] == [("10.0.0.1/24", True), ("10.1.0.1/24", False)]


def test_a_qemu_guest_finds_names_by_dns(booted: BootedMachine) -> None:
    output = booted.outputs["names"]
    assert "169.254.169.254" in output, "expected the address of the host's server, which DHCP assigns"
    assert "10.0.0.2" in output


def test_a_qemu_guest_knows_the_other_guests(booted: BootedMachine) -> None:
    lines = booted.outputs["peers"].splitlines()
    assert [line for line in lines if line.startswith("10.0.0.2 ")] == ["10.0.0.2 container.seeded.internal container"]
    assert lines[-2:] == ["machine slots=1", "container slots=1"]


def test_a_qemu_guest_and_a_container_ping_each_other(mixed: Lab, booted: BootedMachine) -> None:
    xml = run_checked(mixed, "brno-h1", "virsh", "-c", "qemu:///system", "dumpxml", booted.domain)
    assert "<domain type='qemu'" in xml
    assert "2 packets transmitted, 2 packets received" in booted.outputs["ping"]
    assert "bytes from 10.0.0.1" in run_in_container(mixed, "/bin/ping", "-c", "1", "-W", "5", "10.0.0.1")


def test_a_machines_console_log_contains_the_machines_name(mixed: Lab, booted: BootedMachine) -> None:
    console = f"/run/virtcloud/agent/guests/{booted.domain}/console.log"
    assert "machine: up" in run_checked(mixed, "brno-h1", "cat", console)
    assert run_in_container(mixed, "hostname") == "container\n"


@pytest.fixture(scope="module")
def clone(mixed: Lab, client: SbfClient, booted: BootedMachine) -> Iterator[str]:
    pytest.importorskip("websockets", reason="NOT TESTED: websockets is not installed")
    keys = log_in(mixed, "echo a file of the clone >note; sudo cat /etc/ssh/ssh_host_ed25519_key .ssh/id_ed25519; sync")
    with Client(f"unix://{mixed.sbf_socket}") as opened:
        opened.get("seeded").guests["machine"].stop().clone("cloned")
    yield keys
    client.remove_image("cloned")


def test_a_cloned_image_contains_files_but_no_private_keys(client: SbfClient, clone: str, tmp_path: Path) -> None:
    secrets = {line.encode() for line in clone.splitlines() if len(line) == FULL_LINE}
    secrets = {secret for secret in secrets if not secret.startswith(b"b3BlbnNz")}  # this line is the same in all keys
    with client.download_image("cloned") as file:
        (tmp_path / "disk").write_bytes(b"".join(file.chunks))
    convert = ("qemu-img", "convert", "-O", "raw", str(tmp_path / "disk"), str(tmp_path / "raw"))
    subprocess.run(convert, check=True)  # noqa: S603 - no input
    content = (tmp_path / "raw").read_bytes()
    assert b"a file of the clone\n" in content
    assert len(secrets) > 1
    assert not [secret for secret in secrets if secret in content]


@pytest.mark.usefixtures("clone")
def test_a_clone_of_a_machine_boots_as_another_machine(mixed: Lab, client: SbfClient, user_key: Path) -> None:
    guest = {"name": "twin", "host": "brno-h1", "image": "cloned", "memory_mb": 256, "addresses": ["10.0.0.3/24"]}
    keys = [user_key.with_suffix(".pub").read_text().strip()]
    spec = {"owner": "alice", "deadline_s": 120, "joins": "seeded", "authorized_keys": keys, "guests": [guest]}
    client.share_image("cloned", everybody=True)
    view = client.put_cluster("twin", ClusterRequest(spec=ClusterSpec.model_validate(spec)))
    wait_for_state(client, view, ClusterState.ACTIVE)
    write_on_host(mixed, "known_hosts", render_known_hosts(client.peers(view.key, view.id).peers))
    assert log_in(mixed, "id -un; hostname; cat note", "10.0.0.3").split("\n", 2) == [
        "alice",
        "twin",
        "a file of the clone\n",
    ]
    wait_for_state(client, client.delete_cluster("twin"), ClusterState.RELEASED)


def test_nothing_remains_of_a_removed_qemu_guest(mixed: Lab, client: SbfClient, booted: BootedMachine) -> None:
    wait_for_state(client, client.delete_cluster("seeded"), ClusterState.RELEASED)
    client.remove_image("small")
    assert take_snapshot(mixed, mixed.topology) == booted.before
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
    """Run commands in the QEMU guest's shell. Return their output.

    First, wait until the guest answers pings. Then connect repeatedly, because the shell starts later.
    """
    shell = f"until /bin/nc -w {BOOT_S} 10.0.0.1 23; do /bin/sleep 1; done"
    up = f"until /bin/ping -c 1 -W 1 10.0.0.1 >/dev/null; do :; done; {shell}"
    return run_in_container(lab, "/bin/timeout", str(BOOT_S), "/bin/sh", "-c", up, given=f"{commands}\nexit\n")


def wait_for_guests(lab: Lab, count: int) -> None:
    deadline = time.monotonic() + 150
    while len(read_guests(lab, "brno-h1")) < count:
        assert time.monotonic() < deadline, "the guests were not started again"
        time.sleep(0.5)


def test_a_guest_with_a_disk_recovers_from_a_power_loss(mixed: Lab) -> None:
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
        assert "written by a gues" in run_in_qemu_guest(mixed, SUM), "the disk was not kept"
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
    before = take_snapshot(mixed, mixed.topology)
    with SbfClient(f"unix://{mixed.sbf_socket}") as client:
        alone = {"owner": "alice", "deadline_s": 60, "guests": DISK_SPEC["guests"][2:]}
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
