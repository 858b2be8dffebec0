"""Tests of a host that loses its power while a guest starts. The guest must start again afterwards.

The host's disk is an ext4 file system in an image file, mounted by the real kernel. A copy of the image file is the
disk after a power failure: it lacks the data that the kernel has not written yet.
"""

import os
import shutil
import subprocess
import tarfile
import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from hashlib import sha256
from pathlib import Path

import pytest
from support.hosts.seed_documents import CLUSTER_KEY, HOST_KEY, PUBLIC_KEY, seeded_guest, seeded_segment
from support.kernel.network_namespaces import Run

from virtcloud.agent.files import write_durably
from virtcloud.agent.guests import image_cache, mounts
from virtcloud.agent.guests.container_seeds import write_container_seed
from virtcloud.agent.guests.guest_disks import ensure_disks
from virtcloud.agent.guests.guest_roots import GuestRoots
from virtcloud.agent.guests.image_cache import ImageCache
from virtcloud.agent.guests.image_fetch import ImageSources
from virtcloud.agent.guests.image_folder import ImageFolder
from virtcloud.agent.guests.image_unpack import UnpackLimits
from virtcloud.agent.guests.images import LxcImage, QemuImage
from virtcloud.agent.steps import StepPending
from virtcloud.client.connection import FileTransfer
from virtcloud.model.errors import NotFound
from virtcloud.model.image import ImageSource
from virtcloud.model.values import Name
from virtcloud.model.wanted import GuestWanted

MIB = 1 << 20
KEYS = "home/alice/.ssh/authorized_keys"


class HostDisk:
    """The disk of a host, mounted at ``folder``."""

    def __init__(self, parent: Path) -> None:
        self._parent = parent
        self.folder = parent / "host0"
        mounts.create_file_system(parent / "disk0", 256)
        self._mount(0)

    def lose_power(self) -> None:
        number = int(self.folder.name.removeprefix("host")) + 1
        subprocess.run(["cp", "--sparse=always", f"disk{number - 1}", f"disk{number}"], cwd=self._parent, check=True)  # noqa: S603, S607
        self._mount(number)

    def guest(self) -> Path:
        path = self.folder / "vc-1-n1"
        path.mkdir(exist_ok=True)
        return path

    def _mount(self, number: int) -> None:
        self.folder = self._parent / f"host{number}"
        self.folder.mkdir()
        mounts.mount_file_system(self._parent / f"disk{number}", self.folder)


@contextmanager
def host_disk(parent: Path) -> Iterator[HostDisk]:
    disk = HostDisk(parent)
    try:
        yield disk
    finally:
        mounts.unmount_below(parent)


@pytest.fixture
def container(tmp_path: Path) -> Path:
    root = tmp_path / "image"
    for folder in ("bin", "etc/ssh"):
        (root / folder).mkdir(parents=True)
    shutil.copy("/bin/busybox", root / "bin/sh")
    (root / "etc/passwd").write_text("root:x:0:0::/root:/bin/sh\n")
    return root


def seed(roots: GuestRoots, image: Path, size_mb: int | None) -> Path:
    root, guest = roots.ensure("vc-1-n1", image, size_mb), seeded_guest()
    assert guest.seed is not None
    write_container_seed(root, seeded_segment(guest), guest, guest.seed)
    return root.folder


@pytest.mark.parametrize("size_mb", [None, 16])
def test_a_container_has_its_seed_after_a_power_failure(
    tmp_path: Path, container: Path, size_mb: int | None, with_mounts: Run
) -> None:
    """The journal can contain a file's name before the disk contains the file's data.

    After a power failure, such a file would be empty. The file would stay, because the agent does not replace files
    that the guest may have changed.
    """

    def work() -> None:
        with host_disk(tmp_path) as disk:
            disk.guest()
            write_durably(seed(GuestRoots(disk.folder), container, size_mb) / "other", b"commits the journal")
            disk.lose_power()
            root = seed(GuestRoots(disk.folder), container, size_mb)
            assert (root / KEYS).read_text() == f"{PUBLIC_KEY} alice@home\n"
            assert (root / "home/alice/.ssh/id_ed25519").read_text() == CLUSTER_KEY
            assert (root / "etc/ssh/ssh_host_ed25519_key").read_text() == HOST_KEY
            assert "alice:" in (root / "etc/passwd").read_text()

    with_mounts(work)


def test_a_container_without_a_seed_starts_after_a_power_failure(
    tmp_path: Path, container: Path, with_mounts: Run
) -> None:
    def work() -> None:
        with host_disk(tmp_path) as disk:
            disk.guest()
            GuestRoots(disk.folder).ensure("vc-1-n1", container, 16)
            disk.lose_power()
            root = GuestRoots(disk.folder).ensure("vc-1-n1", container, 16)
            assert (root.folder / "bin/sh").exists()

    with_mounts(work)


def test_a_container_keeps_what_it_synced(tmp_path: Path, container: Path, with_mounts: Run) -> None:
    def work() -> None:
        with host_disk(tmp_path) as disk:
            disk.guest()
            root = seed(GuestRoots(disk.folder), container, 16)
            (root / "kept").write_text("result")
            mounts.sync_file_system(root)
            disk.lose_power()
            assert (seed(GuestRoots(disk.folder), container, 16) / "kept").read_text() == "result"

    with_mounts(work)


def test_a_virtual_machines_disk_survives_a_power_failure(
    tmp_path: Path, make_guest: Callable[..., GuestWanted], with_mounts: Run
) -> None:
    image = QemuImage(kind="qemu", disk=tmp_path / "image.raw", disk_format="raw")
    (tmp_path / "image.raw").write_bytes(bytes(MIB))

    def work() -> None:
        with host_disk(tmp_path) as disk:
            ensure_disks(disk.guest(), image, make_guest())
            write_durably(disk.folder / "other", b"commits the journal")
            disk.lose_power()
            ensure_disks(disk.guest(), image, make_guest())
            check = ["qemu-img", "check", "-q", str(disk.guest() / "disk.qcow2")]
            assert subprocess.run(check, check=False).returncode == 0  # noqa: S603

    with_mounts(work)


@pytest.mark.parametrize("moment", ["unpack", "remove_partial_file"])
def test_a_fetched_image_is_complete_after_a_power_failure(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, moment: str, with_mounts: Run
) -> None:
    archive = make_archive(tmp_path / "local/image.tar")
    source = ImageSource.model_validate(
        {"sha256": sha256(archive).hexdigest(), "size": len(archive), "format": "tar", "file": "image.tar"}
        | {"architecture": os.uname().machine}
    )
    real = getattr(image_cache, moment)

    def work() -> None:
        with host_disk(tmp_path) as disk:

            def lose_power_after(*arguments: object) -> object:
                result = real(*arguments)
                monkeypatch.setattr(image_cache, moment, real)
                write_durably(disk.folder / "other", b"commits the journal")
                disk.lose_power()
                return result

            monkeypatch.setattr(image_cache, moment, lose_power_after)
            fetch(disk.folder, tmp_path / "local", source)
            image = fetch(disk.folder, tmp_path / "local", source)
            assert disk.folder.name == "host1"
            assert image.rootfs.is_relative_to(disk.folder)
            assert (image.rootfs / "sbin/init").read_bytes() == Path("/bin/busybox").read_bytes()
            assert [path.name for path in (disk.folder / "images").iterdir()] == [source.sha256]

    with_mounts(work)


def test_a_guests_image_stays_in_use_after_a_power_failure(tmp_path: Path, with_mounts: Run) -> None:
    archive = make_archive(tmp_path / "local/image.tar")
    source = ImageSource.model_validate(
        {"sha256": sha256(archive).hexdigest(), "size": len(archive), "format": "tar", "file": "image.tar"}
        | {"architecture": os.uname().machine}
    )

    def work() -> None:
        with host_disk(tmp_path) as disk:
            fetch(disk.folder, tmp_path / "local", source)
            write_durably(disk.folder / "other", b"commits the journal")
            disk.lose_power()
            folder = ImageFolder(disk.folder / "images", disk.folder / "guests")
            assert [path.name for path in folder.list_entries()] == [source.sha256]
            assert folder.list_unused(()) == []

    with_mounts(work)


def make_archive(path: Path) -> bytes:
    path.parent.mkdir()
    with tarfile.open(path, "w") as archive:
        archive.add("/bin/busybox", "sbin/init")
    return path.read_bytes()


def fetch(host: Path, local: Path, source: ImageSource) -> LxcImage:
    done = threading.Event()
    settings = image_cache.CacheSettings(
        host / "images", host / "guests", source.architecture, 64 * MIB, UnpackLimits(16 * MIB)
    )
    cache = ImageCache(settings, ImageSources(no_sbf, local, ()), done.set, lambda _: None)
    try:
        image = cache.require(Name("c"), source, host / "guests/vc-1-n1")
    except StepPending:
        assert done.wait(20)
        image = cache.require(Name("c"), source, host / "guests/vc-1-n1")
    assert isinstance(image, LxcImage)
    return image


def no_sbf(_name: str, _offset: int, _etag: str | None) -> AbstractContextManager[FileTransfer]:
    raise NotFound("image c is not known")
