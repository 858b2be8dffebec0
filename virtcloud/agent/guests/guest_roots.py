"""Root file systems of containers. Each container has a separate, writable root: an overlay over its image's root.

===================  ===================================================================================
in the guest's       content
folder
===================  ===================================================================================
``ids``              the guest's range of user IDs (``id_ranges.py``)
``layers``           the overlay's two folders: ``upper`` (the files that the guest wrote) and ``work``
``layers.ext4``      the file system of ``layers``, if the guest's disk has a maximum size
``image``            a mount of the image with shifted owners, while ``root`` is being mounted
``root``             the mounted overlay, which is the guest's root
``root.json``        the image and the size from which the layers were created; written after the layers
===================  ===================================================================================

In a container, user IDs start at 0. On the host, the container's user IDs start at the first ID of the guest's range.
So the owners of the image's files must be shifted. An idmapped mount (mount_setattr(2)) shifts the owners without a
change of the files. If the image's file system does not support idmapped mounts, the agent changes the owners in the
overlay. With the option ``metacopy``, the overlay then copies only owners and modes, not the content.
"""

import errno
import os
from collections.abc import Callable
from pathlib import Path
from typing import Literal, Protocol

from pydantic import ValidationError

from virtcloud.agent import log
from virtcloud.agent.files import refuse_os_errors, write_durably
from virtcloud.agent.guests import mounts
from virtcloud.agent.guests.id_ranges import FIRST_ID, IDS_PER_GUEST, IdRanges
from virtcloud.agent.guests.image_folder import is_same_image
from virtcloud.agent.guests.rooted_files import GuestRoot
from virtcloud.agent.guests.shifted_owners import shift_owners
from virtcloud.agent.tree_removal import check_not_blocked, remove_tree
from virtcloud.model.document import Document

ROOT, LAYERS, IMAGE, LAYERS_FILE, RECORD = "root", "layers", "image", "layers.ext4", "root.json"
FOLDER_MODE = 0o710  # the superuser inside the guest may enter the folder, and the guest's other users may not


class RootRecord(Document):
    """The origin of a root's layers.

    ``shifted`` states what shifts the owners of the image's files. ``mount``: an idmapped mount. ``files``: a change of
    the owners in the overlay.
    """

    image: str
    size_mb: int | None
    shifted: Literal["mount", "files"]


class ContainerRoots(Protocol):
    """The operations on containers' roots that the other modules of this package need."""

    def find(self, domain: str) -> GuestRoot | None:
        """Return a guest's mounted root, or None."""

    def ensure(self, domain: str, image: Path, size_mb: int | None = None) -> GuestRoot:
        """Mount a guest's root, an overlay whose lower folder is ``image``, and return the root."""

    def ensure_none(self, domain: str) -> None:
        """Unmount a guest's root, and remove its layers."""


class GuestRoots:
    """The roots of this host's containers, in the guests' folders below ``folder``."""

    def __init__(self, folder: Path, first_id: int = FIRST_ID, progress: Callable[[], object] = lambda: None) -> None:
        """Create an object that allocates user IDs from ``first_id`` on.

        ``progress`` is called each second while many files are removed or get other owners.
        """
        self._folder = folder
        self._progress = progress
        self._ids = IdRanges(folder, first_id)
        self._devices_without_shift: set[int] = set()

    def find(self, domain: str) -> GuestRoot | None:
        """Return a guest's root, or None if the root is missing or not mounted."""
        path, shift = self._folder / domain, self._ids.find(domain)
        if shift is None or path / ROOT not in mounts.list_mounts(path):
            return None
        return GuestRoot(path / ROOT, shift)

    def ensure(self, domain: str, image: Path, size_mb: int | None = None) -> GuestRoot:
        """Mount a guest's root, an overlay whose lower folder is ``image``, and return the root.

        The guest's folder must exist. Keep layers that were created from this image with this size. Otherwise, create
        empty layers. Raise Refused if the root cannot be created.
        """
        path, source = self._folder / domain, _identify(image)
        with refuse_os_errors(f"create the root of guest {domain} in {path}"):
            shift = self._ids.ensure(domain)
            mounts.unmount_below(path)
            record = _read_record(path / RECORD)
            if record is not None and record.size_mb == size_mb and is_same_image(record.image, source):
                _mount_layers(path, size_mb)
                _mount_root(path, image, shift, record.shifted)
                if record.image != source:  # the image was copied, for example with the agent's state folder
                    _write_record(path, record.model_copy(update={"image": source}))
            else:
                if record is not None:
                    log.info("guest_root_replaced", domain=domain, image=image)
                self.ensure_none(domain)
                shifted = self._create_root(path, image, shift, size_mb)
                if size_mb is not None:
                    mounts.sync_file_system(path / LAYERS)  # after a power failure, layers with a record are complete
                _write_record(path, RootRecord(image=source, size_mb=size_mb, shifted=shifted))
            os.chown(path, 0, shift)
            path.chmod(FOLDER_MODE)
        return GuestRoot(path / ROOT, shift)

    def ensure_none(self, domain: str) -> None:
        """Unmount a guest's root, and remove its layers. Raise OSError if a mount or file cannot be removed."""
        path = self._folder / domain
        trees = [path / name for name in (ROOT, IMAGE, LAYERS)]
        for tree in trees:
            check_not_blocked(tree)
        mounts.unmount_below(path)
        for name in (RECORD, LAYERS_FILE):
            (path / name).unlink(missing_ok=True)
        for tree in trees:
            remove_tree(tree, self._progress)

    def _create_root(self, path: Path, image: Path, shift: int, size_mb: int | None) -> Literal["mount", "files"]:
        """Create empty layers, and mount the root. Return how the owners are shifted (`RootRecord`).

        If a file system has refused an idmapped mount once, make no further attempt with its images: an attempt starts
        two processes.
        """
        status = image.stat()
        _create_layers(path, status, shift, size_mb)
        if status.st_dev not in self._devices_without_shift:
            try:
                _mount_root(path, image, shift, "mount")
            except OSError as error:
                if error.errno not in {errno.EINVAL, errno.ENOSYS, errno.EPERM}:
                    raise
                self._devices_without_shift.add(status.st_dev)
            else:
                return "mount"
        _mount_root(path, image, shift, "files")
        shift_owners(path / ROOT, shift, IDS_PER_GUEST, self._progress)
        return "files"


def _create_layers(path: Path, image: os.stat_result, shift: int, size_mb: int | None) -> None:
    for name in (LAYERS, IMAGE, ROOT):
        (path / name).mkdir(mode=0o700)
    if size_mb is not None:
        mounts.create_file_system(path / LAYERS_FILE, size_mb)
    _mount_layers(path, size_mb)
    upper = path / LAYERS / "upper"
    for folder in (upper, path / LAYERS / "work"):
        folder.mkdir()
    os.chown(upper, image.st_uid + shift, image.st_gid + shift)
    upper.chmod(image.st_mode & 0o7777)


def _mount_layers(path: Path, size_mb: int | None) -> None:
    if size_mb is not None:
        mounts.mount_file_system(path / LAYERS_FILE, path / LAYERS)


def _mount_root(path: Path, image: Path, shift: int, shifted: Literal["mount", "files"]) -> None:
    upper, work = path / LAYERS / "upper", path / LAYERS / "work"
    if shifted == "files":
        mounts.mount_overlay(image, upper, work, path / ROOT, "metacopy=on")
        return
    with mounts.mounted_with_shifted_owners(image, path / IMAGE, shift, IDS_PER_GUEST):
        mounts.mount_overlay(path / IMAGE, upper, work, path / ROOT)


def _identify(image: Path) -> str:
    """Return a text with the path, inode and modification time of the image's root folder (`is_same_image`)."""
    with refuse_os_errors(f"read the root of the image {image}"):
        status = image.stat()
    return f"{image} {status.st_ino} {status.st_mtime_ns}"


def _write_record(path: Path, record: RootRecord) -> None:
    write_durably(path / RECORD, record.model_dump_json().encode())


def _read_record(path: Path) -> RootRecord | None:
    """Return the record, or None if the record is missing or malformed. Layers without a record are incomplete."""
    try:
        return RootRecord.model_validate_json(path.read_bytes())
    except FileNotFoundError:
        return None
    except ValidationError as error:
        log.warning("guest_root_record_malformed", path=path, error=error)
        return None
