import json
import os
import shutil
import subprocess
from collections.abc import Callable, Container
from pathlib import Path
from typing import Any

import pytest

from virtcloud.agent.guests import guest_disks
from virtcloud.agent.guests.disk_archives import find_guest_disk
from virtcloud.agent.guests.guest_disks import ensure_disks
from virtcloud.agent.guests.id_ranges import CLONE_IDS
from virtcloud.agent.guests.images import QemuImage
from virtcloud.model.errors import Refused
from virtcloud.model.wanted import GuestWanted

MakeGuest = Callable[..., GuestWanted]
MIB = 1 << 20


@pytest.fixture
def image(tmp_path: Path) -> QemuImage:
    disk = tmp_path / "disk.img"
    with disk.open("wb") as file:
        file.truncate(20 * MIB)
    return QemuImage(kind="qemu", kernel=tmp_path / "vmlinuz", disk=disk, disk_format="raw")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "guest").mkdir()
    return tmp_path / "guest"


def describe(disk: Path) -> dict[str, Any]:
    output = subprocess.run(["qemu-img", "info", "--output=json", str(disk)], capture_output=True, check=True).stdout  # noqa: S603, S607
    return dict(json.loads(output))


def write_to(disk: Path) -> bytes:
    subprocess.run(["qemu-io", "-f", "qcow2", "-c", "write -P 7 0 512", str(disk)], capture_output=True, check=True)  # noqa: S603, S607
    return disk.read_bytes()


@pytest.mark.parametrize(("disk_mb", "size"), [(None, 20 * MIB), (64, 64 * MIB)])
def test_a_disk_has_the_size_of_the_spec(
    folder: Path, image: QemuImage, make_guest: MakeGuest, disk_mb: int | None, size: int
) -> None:
    ensure_disks(folder, image, make_guest(limits={"disk_mb": disk_mb}))
    assert describe(folder / "disk.qcow2")["virtual-size"] == size


def test_a_disk_without_a_record_is_created_again(folder: Path, image: QemuImage, make_guest: MakeGuest) -> None:
    """A power failure interrupted the creation of the disk, which is therefore incomplete."""
    (folder / "disk.qcow2").write_bytes(b"")
    ensure_disks(folder, image, make_guest())
    assert describe(folder / "disk.qcow2")["format"] == "qcow2"


def test_a_disk_is_kept_if_only_the_memory_changes(folder: Path, image: QemuImage, make_guest: MakeGuest) -> None:
    ensure_disks(folder, image, make_guest())
    content = write_to(folder / "disk.qcow2")
    ensure_disks(folder, image, make_guest(memory_mb=512))
    assert (folder / "disk.qcow2").read_bytes() == content


@pytest.mark.parametrize("changed", ["size", "image", "killed"])
def test_a_disk_is_replaced_after_a_change_or_a_kill(
    folder: Path, image: QemuImage, make_guest: MakeGuest, changed: str
) -> None:
    ensure_disks(folder, image, make_guest())
    content = write_to(folder / "disk.qcow2")
    if changed == "image":
        assert image.disk is not None
        image.disk.write_bytes(bytes(20 * MIB))
    if changed == "killed":
        (folder / "disk.json").unlink()
    ensure_disks(folder, image, make_guest(limits={"disk_mb": 32} if changed == "size" else None))
    assert (folder / "disk.qcow2").read_bytes() != content


SHA256 = "5e" * 32


@pytest.fixture
def catalogue_image(tmp_path: Path, image: QemuImage) -> QemuImage:
    assert image.disk is not None
    disk = tmp_path / "state/images" / SHA256 / "disk.raw"
    disk.parent.mkdir(parents=True)
    image.disk.rename(disk)
    return QemuImage(kind="qemu", disk=disk, disk_format="raw")


@pytest.mark.parametrize("state", ["state", "larger"])
def test_a_moved_state_folder_keeps_the_disks(
    folder: Path, catalogue_image: QemuImage, make_guest: MakeGuest, tmp_path: Path, state: str
) -> None:
    """The agent records the inode of the image's disk, as earlier agents did. The copied disk has another inode."""
    ensure_disks(folder, catalogue_image, make_guest())
    content = write_to(folder / "disk.qcow2")
    shutil.copytree(tmp_path / "state", tmp_path / "copy")
    shutil.rmtree(tmp_path / "state")
    (tmp_path / "copy").rename(tmp_path / state)
    disk = tmp_path / state / "images" / SHA256 / "disk.raw"
    os.utime(disk)
    ensure_disks(folder, catalogue_image.model_copy(update={"disk": disk}), make_guest())
    assert (folder / "disk.qcow2").read_bytes() == content
    found = find_guest_disk(folder, os.getuid())
    assert found is not None
    assert found.base == disk


def test_the_record_of_an_earlier_agent_stays_valid(folder: Path, image: QemuImage, make_guest: MakeGuest) -> None:
    assert image.disk is not None
    ensure_disks(folder, image, make_guest())
    content, status = write_to(folder / "disk.qcow2"), image.disk.stat()
    earlier = f"{image.disk} {status.st_ino} {status.st_size} {status.st_mtime_ns}"
    (folder / "disk.json").write_text(json.dumps({"image": earlier, "size_mb": None}))
    ensure_disks(folder, image, make_guest())
    assert (folder / "disk.qcow2").read_bytes() == content


def test_a_copied_image_keeps_the_disks(folder: Path, image: QemuImage, make_guest: MakeGuest) -> None:
    assert image.disk is not None
    ensure_disks(folder, image, make_guest())
    content = write_to(folder / "disk.qcow2")
    shutil.copy2(image.disk, copy := image.disk.with_name("copy"))
    copy.rename(image.disk)
    ensure_disks(folder, image, make_guest())
    assert (folder / "disk.qcow2").read_bytes() == content


def test_another_image_of_the_catalogue_replaces_the_disk(
    folder: Path, catalogue_image: QemuImage, make_guest: MakeGuest
) -> None:
    assert catalogue_image.disk is not None
    ensure_disks(folder, catalogue_image, make_guest())
    content = write_to(folder / "disk.qcow2")
    other = catalogue_image.disk.parent.with_name("6f" * 32)
    catalogue_image.disk.parent.rename(other)
    ensure_disks(folder, catalogue_image.model_copy(update={"disk": other / "disk.raw"}), make_guest())
    assert (folder / "disk.qcow2").read_bytes() != content


def test_a_disk_smaller_than_its_image_is_refused(folder: Path, image: QemuImage, make_guest: MakeGuest) -> None:
    with pytest.raises(
        Refused, match="guest g1: expected disk_mb of at least 20, the size of the disk of image busybox, got 16"
    ):
        ensure_disks(folder, image, make_guest(limits={"disk_mb": 16}))
    assert list(folder.iterdir()) == []


def test_a_disk_size_is_refused_for_images_without_a_disk(
    folder: Path, image: QemuImage, make_guest: MakeGuest
) -> None:
    with pytest.raises(Refused, match="expected no disk_mb, because image busybox has no disk, got 16"):
        ensure_disks(folder, image.model_copy(update={"disk": None}), make_guest(limits={"disk_mb": 16}))


@pytest.mark.parametrize("reference", ["backing file", "external data file"])
def test_an_image_that_names_a_host_file_is_refused(
    folder: Path, image: QemuImage, make_guest: MakeGuest, tmp_path: Path, reference: str
) -> None:
    """If the agent accepted this image, the guest could read other files of the host."""
    disk, secret = tmp_path / "stolen.qcow2", tmp_path / "secret"
    secret.write_bytes(b"root's secret".ljust(MIB))
    options = {
        "backing file": ["-u", "-b", str(secret), "-F", "raw"],
        "external data file": ["-o", f"data_file={secret}"],
    }
    create = ["qemu-img", "create", "-q", "-f", "qcow2", *options[reference], str(disk), "1M"]
    subprocess.run(create, check=True)  # noqa: S603
    with pytest.raises(Refused, match=rf"image busybox: .* without an? {reference}"):
        ensure_disks(folder, image.model_copy(update={"disk": disk, "disk_format": "qcow2"}), make_guest())


@pytest.fixture
def full_image(tmp_path: Path) -> QemuImage:
    disk = tmp_path / "full.qcow2"
    subprocess.run(["qemu-img", "create", "-q", "-f", "qcow2", str(disk), "20M"], check=True)  # noqa: S603, S607
    return QemuImage(kind="qemu", disk=disk)


@pytest.mark.skipif(os.geteuid() != 0, reason="NOT TESTED: only root can run qemu-img as another user")
@pytest.mark.parametrize(("mode", "users"), [(0o644, CLONE_IDS), (0o600, {1234})])
def test_an_image_is_checked_without_roots_rights(  # noqa: PLR0913, PLR0917 - fixtures
    folder: Path,
    full_image: QemuImage,
    make_guest: MakeGuest,
    monkeypatch: pytest.MonkeyPatch,
    mode: int,
    users: Container[int],
) -> None:
    run, calls = subprocess.run, list[tuple[Any, Any]]()

    def record(argv: Any, **options: Any) -> object:
        calls.append((argv, options.get("user")))
        return run(argv, **options)

    assert full_image.disk is not None
    full_image.disk.chmod(mode)
    os.chown(full_image.disk, 1234, 1234)
    monkeypatch.setattr(subprocess, "run", record)
    ensure_disks(folder, full_image, make_guest())
    assert [user in users for argv, user in calls if "check" in argv] == [True]
    assert describe(folder / "disk.qcow2")["virtual-size"] == 20 * MIB


def test_the_check_of_an_image_has_a_memory_limit(
    folder: Path, full_image: QemuImage, make_guest: MakeGuest, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(guest_disks, "CHECK_LIMITS", ("--as=1048576",))
    with pytest.raises(Refused, match="cannot create a guest's disk over"):
        ensure_disks(folder, full_image, make_guest())


@pytest.mark.parametrize("kept", [40, 1000, 300_000], ids=["header", "tables", "data"])
def test_a_truncated_image_is_refused(
    folder: Path, image: QemuImage, make_guest: MakeGuest, tmp_path: Path, kept: int
) -> None:
    disk, raw = tmp_path / "disk.qcow2", tmp_path / "full.raw"
    raw.write_bytes(b"x" * MIB)
    subprocess.run(["qemu-img", "convert", "-O", "qcow2", str(raw), str(disk)], check=True)  # noqa: S603, S607
    os.truncate(disk, kept)
    with pytest.raises(
        Refused,
        match=r"expected a complete qcow2 file, got|cannot create a guest's disk over|got version 3 in 40 bytes",
    ):
        ensure_disks(folder, image.model_copy(update={"disk": disk, "disk_format": "qcow2"}), make_guest())
    assert list(folder.iterdir()) == []


def test_a_broken_qemu_img_is_named(
    folder: Path, full_image: QemuImage, make_guest: MakeGuest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    program = tmp_path / "qemu-img"
    program.write_text("#!/bin/sh\nprintf 'beh\\370me'\nprintf 'chyba' >&2\n")
    program.chmod(0o755)
    tmp_path.chmod(0o755)
    monkeypatch.setattr(guest_disks, "_find_program", lambda _over: str(program))
    monkeypatch.setattr(guest_disks, "_drop_rights", lambda lent: {"pass_fds": [lent.fileno()]})
    with pytest.raises(
        Refused, match="expected a report in JSON from qemu-img check, got 'beh�me'; try the command on"
    ):
        ensure_disks(folder, full_image, make_guest())


def test_extra_disks_are_kept_until_the_spec_changes(folder: Path, image: QemuImage, make_guest: MakeGuest) -> None:
    ensure_disks(folder, image, make_guest(disks=[{"name": "a", "size_mb": 16}, {"name": "b", "size_mb": 16}]))
    with (folder / "disk-a.raw").open("r+b") as file:
        file.write(b"kept")
    ensure_disks(folder, image, make_guest(disks=[{"name": "a", "size_mb": 16}, {"name": "b", "size_mb": 32}]))
    disks = {path.name: (path.stat().st_size, path.stat().st_blocks > 0) for path in folder.glob("*.raw")}
    assert disks == {"disk-a.raw": (16 * MIB, True), "disk-b.raw": (32 * MIB, False)}
    ensure_disks(folder, image, make_guest(disks=[{"name": "a", "size_mb": 16}]))
    assert [path.name for path in folder.glob("*.raw")] == ["disk-a.raw"]


def test_only_root_and_qemu_may_read_a_disk(folder: Path, image: QemuImage, make_guest: MakeGuest) -> None:
    ensure_disks(folder, image, make_guest(disks=[{"name": "a", "size_mb": 16}]))
    assert {oct(path.stat().st_mode & 0o777) for path in folder.glob("disk*")} == {"0o600"}
