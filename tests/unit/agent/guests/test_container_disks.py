"""Tests of extra disks of containers, with the kernel's real file systems."""

import os
from collections.abc import Callable
from pathlib import Path

import pytest
from support.kernel.network_namespaces import Run

from virtcloud.agent.guests import mounts
from virtcloud.agent.guests.container_disks import ensure_container_disks
from virtcloud.model.wanted import GuestWanted

SHIFT = 0x10000000


def ensure(make_guest: Callable[..., GuestWanted], folder: Path, **sizes: int) -> None:
    disks = [{"name": name, "size_mb": size} for name, size in sizes.items()]
    ensure_container_disks(folder, make_guest(disks=disks), SHIFT)


@pytest.fixture(autouse=True)
def loop_devices() -> None:
    if not Path("/dev/loop-control").exists():
        pytest.skip("NOT TESTED: this machine has no loop devices")


def test_a_disk_belongs_to_the_guests_root_user(
    tmp_path: Path, make_guest: Callable[..., GuestWanted], with_mounts: Run
) -> None:
    def check() -> None:
        ensure(make_guest, tmp_path, data=16)
        status = (tmp_path / "disks/data").stat()
        assert (status.st_uid, status.st_gid, status.st_mode & 0o777) == (SHIFT, SHIFT, 0o755)
        assert list((tmp_path / "disks/data").iterdir()) == []
        mounts.unmount_below(tmp_path)

    with_mounts(check)


def test_a_disk_is_kept_until_its_size_changes(
    tmp_path: Path, make_guest: Callable[..., GuestWanted], with_mounts: Run
) -> None:
    def check() -> None:
        ensure(make_guest, tmp_path, data=16, other=16)
        (tmp_path / "disks/data/file").write_text("kept")
        mounts.unmount_below(tmp_path)  # as after a restart of the host
        ensure(make_guest, tmp_path, data=16)
        assert (tmp_path / "disks/data/file").read_text() == "kept"
        assert [path.name for path in tmp_path.glob("disk-*")] == ["disk-data.ext4"]
        ensure(make_guest, tmp_path, data=17)
        assert list((tmp_path / "disks/data").iterdir()) == []
        mounts.unmount_below(tmp_path)

    with_mounts(check)


def test_a_disk_keeps_the_owner_that_the_guest_chose(
    tmp_path: Path, make_guest: Callable[..., GuestWanted], with_mounts: Run
) -> None:
    def check() -> None:
        ensure(make_guest, tmp_path, data=16)
        disk = tmp_path / "disks/data"
        (disk / "lost+found").mkdir()
        (disk / "lost+found/file").touch()
        os.chown(disk, SHIFT + 1000, SHIFT + 1000)
        disk.chmod(0o700)
        ensure(make_guest, tmp_path, data=16)
        assert (disk.stat().st_uid, disk.stat().st_mode & 0o777) == (SHIFT + 1000, 0o700)
        mounts.unmount_below(tmp_path)

    with_mounts(check)


def test_an_interrupted_change_of_the_owner_is_repeated(
    tmp_path: Path,
    make_guest: Callable[..., GuestWanted],
    with_mounts: Run,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def chown(*_: object) -> None:
        raise KeyboardInterrupt

    def check() -> None:
        monkeypatch.setattr(os, "chown", chown)
        with pytest.raises(KeyboardInterrupt):
            ensure(make_guest, tmp_path, data=16)
        monkeypatch.undo()
        ensure(make_guest, tmp_path, data=16)
        assert (tmp_path / "disks/data").stat().st_uid == SHIFT
        mounts.unmount_below(tmp_path)

    with_mounts(check)


def test_an_interrupted_creation_leaves_no_disk(
    tmp_path: Path,
    make_guest: Callable[..., GuestWanted],
    with_mounts: Run,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def create(image: Path, size_mb: int) -> None:
        image.touch()
        raise KeyboardInterrupt

    def check() -> None:
        monkeypatch.setattr(mounts, "create_file_system", create)
        with pytest.raises(KeyboardInterrupt):
            ensure(make_guest, tmp_path, data=16)
        monkeypatch.undo()
        ensure(make_guest, tmp_path, data=16)
        assert mounts.list_mounts(tmp_path) == [tmp_path / "disks/data"]
        mounts.unmount_below(tmp_path)

    with_mounts(check)
