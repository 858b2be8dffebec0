"""The files of the cache of images: images that are ready for use, and images that are being fetched.

==============================  ===================================================================================
path                            content
==============================  ===================================================================================
``<sha256>/``                   an image that is ready for use: the content and the file ``size``, whose modification
                                time is the time of the last use of the image
``.partial-<fetch>``            the part of an image's file that was fetched; the next attempt fetches the rest.
                                ``<fetch>`` is the fetch's identity, 64 hexadecimal digits (`fetch_states`)
``.new-<fetch>``, ``.new-…``    an image that is being unpacked or removed
``image.sha256``                in a guest's folder: the checksum of the image that the guest uses. While a former
                                domain of the guest may run, the file has a further line for each former image
==============================  ===================================================================================
"""

import os
import re
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from virtcloud.agent.files import refuse_os_errors, write_durably
from virtcloud.agent.guests.images import GuestImage, LxcImage, QemuImage
from virtcloud.model.element import Hypervisor
from virtcloud.model.image import ImageSource, Sha256

CHECKSUM: Final = "image.sha256"
SIZE, ROOTFS = "size", "rootfs"
PARTIAL, NEW = ".partial-", ".new-"
FOLDER: Final = "images"
"""The name of the cache's folder in the agent's state folder."""
CATALOGUE_IDENTITY: Final = re.compile(
    rf"/.*/{FOLDER}/({Sha256.pattern})/({ROOTFS}|disk\.[a-z0-9]+)(?: \d+){{2,3}}", re.DOTALL
)
DISK_IDENTITY: Final = re.compile(r"(/.*?) \d+((?: \d+){2})", re.DOTALL)
"""Matches a disk's identity. The groups are the path, and the numbers after the inode (`is_same_image`)."""


@dataclass(frozen=True, slots=True)
class ImageFolder:
    """The folder of the cache, and the parent ``guests`` of the guests' folders."""

    folder: Path
    guests: Path

    def find(self, source: ImageSource) -> GuestImage | None:
        """Return the image of ``source`` if the image is ready for use, otherwise None."""
        path = self.folder / source.sha256 / content_name(source)
        if not path.exists():
            return None
        if source.kind is Hypervisor.LXC:
            return LxcImage(kind="lxc", rootfs=path)
        return QemuImage(kind="qemu", disk=path, disk_format=source.format)

    def record_use(self, source: ImageSource, guest_folder: Path) -> None:
        """Record durably that a guest uses an image, in addition to the images that the guest's former domains may use.

        The record ends when the guest's folder is removed. An image without a record could be evicted although the
        guest's disk needs the image. Raise Refused if the record cannot be written. If another program removed the file
        `SIZE`, the time of the last use is not recorded.
        """
        record = guest_folder / CHECKSUM
        with refuse_os_errors(f"record the use of an image in {guest_folder}"):
            guest_folder.mkdir(parents=True, exist_ok=True)
            if source.sha256 not in (former := _read_checksums(record)):
                write_durably(record, "\n".join((source.sha256, *sorted(former))).encode())
            with suppress(FileNotFoundError):
                os.utime(self.folder / source.sha256 / SIZE)

    def list_entries(self) -> list[Path]:
        """Return the folders of images that are ready for use, and the partial files of fetches."""
        partial = self.folder.glob(f"{PARTIAL}*[0-9a-f]")
        return [*(path for path in self.folder.iterdir() if Sha256.matches(path.name)), *partial]

    def list_unused(self, fetches: Iterable[tuple[Sha256, Sha256]]) -> list[Path]:
        """Return the images and partial files that no guest and no fetch uses, the least recently used first.

        ``fetches`` are the identities of running fetches, each with the checksum of its image. The partial files of
        earlier versions of the agent are named after an image's checksum, and are unused.
        """
        used = set[str]().union(*{_read_checksums(path) for path in self.guests.glob(f"*/{CHECKSUM}")})
        used |= {name for fetch, checksum in fetches for name in (self.partial_path(fetch).name, checksum)}
        unused = [path for path in self.list_entries() if path.name not in used]
        return sorted(unused, key=_last_use)

    def partial_path(self, fetch: Sha256) -> Path:
        """Return the path of the partial file of the fetch with the identity ``fetch``."""
        return self.folder / f"{PARTIAL}{fetch}"

    def new_folder(self, fetch: Sha256) -> Path:
        """Return the path of the folder in which the fetched image is prepared."""
        return self.folder / f"{NEW}{fetch}"


def end_former_uses(source: ImageSource, guest_folder: Path) -> None:
    """Record durably that a guest uses only the image of ``source``. Raise Refused if the record cannot be written.

    Call this function only if no former domain of the guest runs.
    """
    record = guest_folder / CHECKSUM
    with refuse_os_errors(f"record the use of an image in {guest_folder}"):
        if _read_checksums(record) != {source.sha256}:
            write_durably(record, source.sha256.encode())


def content_name(source: ImageSource) -> str:
    """Return the name of the content in an image's folder: "rootfs", or a name such as "disk.qcow2"."""
    return ROOTFS if source.kind is Hypervisor.LXC else f"disk.{source.format}"


def is_same_image(former: str, present: str) -> bool:
    """Return whether two identities of an image's content denote the same content. Pure.

    An identity is the content's absolute path, its inode, and further numbers, each after a space. For an image of the
    catalogue, only the checksum in the path must be equal, because the state folder can differ. For a disk in the
    folder of images, all parts except the inode must be equal: a copy (``cp -a``) changes the inode. For a root file
    system in the folder of images, the inode must be equal too, because the identity contains no size.
    """
    return _list_fixed_parts(former) == _list_fixed_parts(present)


def _list_fixed_parts(identity: str) -> tuple[str, ...]:
    if found := CATALOGUE_IDENTITY.fullmatch(identity):
        return found.groups()
    found = DISK_IDENTITY.fullmatch(identity)
    return found.groups() if found else (identity,)


def read_size(path: Path) -> int:
    """Return the size in bytes of the image in the folder ``path``, or of the partial file ``path``.

    If the file `SIZE` is missing or damaged, add up the sizes of the image's files. Return 0 if the files cannot be
    read.
    """
    try:
        if not path.is_dir():
            return path.stat().st_size
        with suppress(FileNotFoundError, ValueError):
            return int((path / SIZE).read_text())
        return sum(file.lstat().st_size for file in path.rglob("*"))
    except OSError:
        return 0


def _read_checksums(path: Path) -> frozenset[str]:
    try:
        return frozenset(filter(Sha256.matches, path.read_text(errors="replace").split()))
    except FileNotFoundError:
        return frozenset()


def _last_use(path: Path) -> float:
    try:
        return (path / SIZE if path.is_dir() else path).stat().st_mtime
    except OSError:
        return 0.0
