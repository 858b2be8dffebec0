"""Tests of images that are made from disks of virtual machines, with qemu-img."""

import os
import select
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from hashlib import sha256
from pathlib import Path

import pytest

from virtcloud.agent.guests.disk_archives import StoppedGuestDisk, find_guest_disk, open_disk_archive
from virtcloud.agent.guests.guest_disks import ensure_disks
from virtcloud.agent.guests.images import QemuImage
from virtcloud.model.errors import Refused
from virtcloud.model.wanted import GuestWanted

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="NOT TESTED: only root can run qemu-img as another user")
MakeGuest = Callable[..., GuestWanted]
MIB, USER = 1 << 20, 0x10000000
LINE = "b3BlbnNzaC1rZXktdjEAAAAABG5vbmUAAAAEbm9uZQAAAAAAAAABAAAAMwAAAAtzc2gtZW"
SECRET = "QyNTUxOQAAACCbn7sxDmGVJ3xVd2cZqTf8l1xJ0yHk4rYz9uPw3sQvLmAAAAoBcDeFgHiJ"  # noqa: S105 - no real key


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "guest").mkdir()
    return tmp_path / "guest"


@pytest.fixture
def disk(tmp_path: Path, folder: Path, make_guest: MakeGuest) -> StoppedGuestDisk:
    """The disk of a stopped guest. The first MiB has data of the image, the second MiB data of the guest."""
    raw, base = tmp_path / "base.raw", tmp_path / "base.qcow2"
    raw.write_bytes(b"image".ljust(4 * MIB, b"\0"))
    subprocess.run(["qemu-img", "convert", "-O", "qcow2", str(raw), str(base)], check=True)  # noqa: S603, S607
    base.chmod(0o644)
    ensure_disks(folder, QemuImage(kind="qemu", disk=base), make_guest())
    write(folder / "disk.qcow2", b"guest", MIB)
    found = find_guest_disk(folder, USER)
    assert found is not None
    return found


def write(disk: Path, data: bytes, position: int) -> None:
    source = disk.with_name("data")
    source.write_bytes(data)
    command = f"write -s {source} {position} {len(data)}"
    subprocess.run(["qemu-io", "-f", "qcow2", "-c", command, str(disk)], capture_output=True, check=True)  # noqa: S603, S607


def clone(disk: StoppedGuestDisk, tmp_path: Path, *texts: str) -> bytes:
    with open_disk_archive(tmp_path) as archive:
        list(archive.pack(disk, texts))
        data, content = b"".join(archive.read()), archive.describe()
    assert (content.sha256, content.size, content.format) == (sha256(data).hexdigest(), len(data), "qcow2")
    cloned, raw = tmp_path / "cloned.qcow2", tmp_path / "cloned.raw"
    cloned.write_bytes(data)
    subprocess.run(["qemu-img", "convert", "-f", "qcow2", "-O", "raw", str(cloned), str(raw)], check=True)  # noqa: S603, S607
    return raw.read_bytes()


def test_a_clone_has_the_data_of_image_and_guest(disk: StoppedGuestDisk, tmp_path: Path) -> None:
    data = clone(disk, tmp_path)
    assert (len(data), data[:5], data[MIB : MIB + 5]) == (4 * MIB, b"image", b"guest")


def test_no_line_of_a_key_remains_in_a_clone(disk: StoppedGuestDisk, tmp_path: Path) -> None:
    """The agent reads a disk in pieces. A line may extend over two pieces or over two blocks that are not adjacent."""
    write(disk.overlay, b"guest".ljust(2 * MIB, b"."), MIB)
    for position in (MIB + 8192, 2 * MIB - 30, 3 * MIB - 70):
        write(disk.overlay, SECRET.encode(), position)
    write(disk.overlay, SECRET[:30].encode(), 3 * MIB + 4096 - 30)
    write(disk.overlay, SECRET[30:].encode(), 3 * MIB + 8192)
    data = clone(disk, tmp_path, LINE, SECRET)
    assert not [n for n in range(len(SECRET) - 16) if SECRET[n : n + 16].encode() in data]
    assert data[MIB : MIB + 5] == b"guest"


def test_a_clone_reads_no_file_that_the_disk_names(disk: StoppedGuestDisk, tmp_path: Path) -> None:
    """A guest that took over its QEMU could write the name of any file of the host into the disk's file."""
    (tmp_path / "secret").write_bytes(b"host's secret".ljust(4 * MIB))
    command = ["qemu-img", "rebase", "-u", "-f", "qcow2", "-F", "raw", "-b", str(tmp_path / "secret")]
    subprocess.run([*command, str(disk.overlay)], check=True)  # noqa: S603
    data = clone(disk, tmp_path)
    assert (data[:5], data[MIB : MIB + 5]) == (b"image", b"guest")


def test_a_disk_with_an_external_data_file_is_refused(disk: StoppedGuestDisk, tmp_path: Path) -> None:
    with disk.overlay.open("r+b") as file:
        file.seek(79)
        file.write(b"\x04")
    with pytest.raises(Refused, match="expected a qcow2 file without an external data file"):
        clone(disk, tmp_path)


def test_a_disk_that_claims_another_size_is_refused(disk: StoppedGuestDisk, tmp_path: Path) -> None:
    """The header of the disk's file states 256 MiB. The host must not write a copy of this size."""
    with disk.overlay.open("r+b") as file:
        file.seek(24)
        file.write((256 * MIB).to_bytes(8))
    with pytest.raises(Refused, match=r"cannot copy the disk .*disk\.qcow2"):
        clone(disk, tmp_path)


def test_the_owner_of_a_cloned_disk_is_root_again(disk: StoppedGuestDisk, tmp_path: Path) -> None:
    clone(disk, tmp_path)
    status = disk.overlay.stat()
    assert (status.st_uid, status.st_mode & 0o777) == (0, 0o600)


PROGRAM = """
import os, sys
from pathlib import Path
from virtcloud.agent.guests.disk_archives import StoppedGuestDisk, open_disk_archive
os.defpath = f"{sys.argv[1]}:{os.defpath}"
with open_disk_archive(Path(sys.argv[2])) as archive:
    list(archive.pack(StoppedGuestDisk(Path(sys.argv[3]), Path(sys.argv[4]), 4 << 20, int(sys.argv[5])), ()))
"""


def test_qemu_img_ends_when_the_agent_is_killed(disk: StoppedGuestDisk, tmp_path: Path) -> None:
    """The copy is a deleted file, so it would occupy the disk as long as qemu-img runs."""
    with tempfile.TemporaryDirectory() as programs:
        Path(programs).chmod(0o755)
        Path(programs, "qemu-img").write_text("#!/bin/sh\nexec sleep 60\n")
        Path(programs, "qemu-img").chmod(0o755)
        argv = [sys.executable, "-c", PROGRAM, programs, str(tmp_path), str(disk.overlay), str(disk.base), str(USER)]
        with subprocess.Popen(argv) as agent:  # noqa: S603 - a program of this test
            program = wait_for_child(agent.pid, "sleep")
            agent.kill()
    with os.fdopen(program) as descriptor:
        assert select.select([descriptor], [], [], 5)[0]


def wait_for_child(parent: int, name: str) -> int:
    """Wait until a process has a child with this name. Return a descriptor of the child (pidfd_open(2))."""
    deadline = time.monotonic() + 20
    while time.monotonic() < deadline:
        for child in Path(f"/proc/{parent}/task/{parent}/children").read_text().split():
            if Path(f"/proc/{child}/comm").read_text().strip() == name:
                return os.pidfd_open(int(child))
        time.sleep(0.02)
    pytest.fail(f"process {parent} has no child {name}")


def test_an_image_that_only_root_may_read_is_named(disk: StoppedGuestDisk, tmp_path: Path) -> None:
    disk.base.chmod(0o600)
    with pytest.raises(Refused, match=r"check that all users may read .*base\.qcow2"):
        clone(disk, tmp_path)
