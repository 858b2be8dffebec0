"""Disks of virtual machines: an overlay (qcow2) over the image's disk, and extra disks (raw).

===================  ====================================================================================
in the guest's       content
folder
===================  ====================================================================================
``disk.qcow2``       the overlay: the data that the guest wrote; the image's disk is never changed
``disk.json``        the image and the size from which the overlay was created; written after the overlay
``disk-NAME.raw``    the extra disk NAME: a sparse file, which uses space only for data that the guest wrote
===================  ====================================================================================

The disks are kept when the guest or the host restarts. If the image or the wanted size changes, the agent replaces the
overlay by an empty overlay. If the wanted size of an extra disk changes, the agent replaces this disk by an empty disk.
Only root and QEMU's user may read a disk; libvirt makes QEMU's user the owner.
"""

import json
import os
import subprocess
from collections.abc import Collection
from pathlib import Path
from typing import Any, Final

from pydantic import ValidationError

from virtcloud.agent import log
from virtcloud.agent.files import refuse_os_errors, write_durably
from virtcloud.agent.guests.images import QemuImage
from virtcloud.model.document import Document
from virtcloud.model.errors import Refused
from virtcloud.model.wanted import GuestWanted

DISK: Final = "disk.qcow2"
RECORD: Final = "disk.json"
TIMEOUT_S = 60.0
CHECK_CODES: Final = frozenset({0, 2, 3})
"""The exit codes of ``qemu-img check`` that come with a report: no errors, errors, unused clusters (qemu-img(1))."""
MIB: Final = 1 << 20
MAX_ERROR_CHARACTERS: Final = 500


class DiskRecord(Document):
    """The origin of an overlay. ``image`` is the text of `identify_disk` for the image's disk."""

    image: str
    size_mb: int | None

    @property
    def disk(self) -> Path:
        """The path of the image's disk."""
        return Path(self.image.rsplit(" ", 3)[0])


def extra_disk_file(name: str) -> str:
    """Return the name of an extra disk's file."""
    return f"disk-{name}.raw"


def ensure_disks(folder: Path, image: QemuImage, guest: GuestWanted) -> None:
    """Create the missing disks of a guest in its folder, and remove extra disks that are not in its spec.

    Raise Refused if a disk cannot be created, for example because ``disk_mb`` is smaller than the image's disk.
    """
    size_mb = guest.limits.disk_mb if guest.limits else None
    with refuse_os_errors(f"create the disks of guest {guest.name} in {folder}"):
        if image.disk is None and size_mb is not None:
            raise Refused(f"guest {guest.name}: disk_mb is {size_mb}, but image {guest.image} has no disk; use disks")
        if image.disk is not None:
            _ensure_overlay(folder, image.disk, image.disk_format, size_mb, guest)
        _ensure_extra_disks(folder, guest)


def _ensure_overlay(folder: Path, disk: Path, disk_format: str, size_mb: int | None, guest: GuestWanted) -> None:
    record = DiskRecord(image=identify_disk(disk), size_mb=size_mb)
    former = find_record(folder)
    if former == record and (folder / DISK).exists():
        return
    if former is not None:
        log.info("guest_disk_replaced", folder=folder, image=disk)
    size = _check_image(disk, disk_format, size_mb, guest)
    for name in (RECORD, DISK):
        (folder / name).unlink(missing_ok=True)
    _run("create", "-q", "-f", "qcow2", "-b", str(disk), "-F", disk_format, str(folder / DISK), str(size), over=disk)
    (folder / DISK).chmod(0o600)
    write_durably(folder / RECORD, record.model_dump_json().encode())


def identify_disk(disk: Path) -> str:
    """Return a text with the path, inode, size and modification time of a disk. A change of the disk changes the text.

    Raise OSError if the file is missing.
    """
    status = disk.stat()
    return f"{disk} {status.st_ino} {status.st_size} {status.st_mtime_ns}"


def _check_image(disk: Path, disk_format: str, size_mb: int | None, guest: GuestWanted) -> int:
    """Return the size in bytes that a guest's disk will have: ``size_mb``, or the size of the image's disk.

    Raise Refused if the image's disk is larger than ``size_mb``, refers to other files, or is damaged.
    """
    description: dict[str, Any] = json.loads(_run("info", "-f", disk_format, "--output=json", str(disk), over=disk))
    data = description.get("format-specific", {}).get("data", {})
    for other in (description.get("backing-filename"), data.get("data-file")):
        if other is not None:
            raise Refused(
                f"image {guest.image}: its disk {disk} names the file {other}, so that guests could read files of this "
                "host; make the disk independent: qemu-img convert -O qcow2"
            )
    if disk_format == "qcow2":
        _check_complete(disk, guest)
    size = int(description["virtual-size"])
    if size_mb is not None and size_mb * MIB < size:
        raise Refused(
            f"guest {guest.name}: expected disk_mb of at least {-(-size // MIB)}, the size of the disk of image "
            f"{guest.image}, got {size_mb}"
        )
    return size if size_mb is None else size_mb * MIB


def _check_complete(disk: Path, guest: GuestWanted) -> None:
    """Raise Refused if a qcow2 file refers to data that the file does not contain.

    QEMU opens a truncated file without an error; the guest would then read zeros, or fail later.
    """
    output = _run("check", "-f", "qcow2", "--output=json", str(disk), over=disk, codes=CHECK_CODES)
    report: dict[str, Any] = json.loads(output)
    faults = report.get("corruptions", 0) + report.get("check-errors", 0)
    if faults:
        raise Refused(
            f"image {guest.image}: expected a complete qcow2 file, got {disk} with {faults} errors (qemu-img check), "
            "for example because it was truncated by an interrupted download; add a complete file as a new image"
        )


def _ensure_extra_disks(folder: Path, guest: GuestWanted) -> None:
    disks = {extra_disk_file(disk.name): disk.size_mb * MIB for disk in guest.disks or ()}
    for path in folder.glob(extra_disk_file("*")):
        if path.stat().st_size != disks.get(path.name):
            path.unlink()
    for name, size in disks.items():
        if not (folder / name).exists():
            descriptor = os.open(folder / name, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
            try:
                os.truncate(descriptor, size)
            finally:
                os.close(descriptor)


def find_record(folder: Path) -> DiskRecord | None:
    """Return the record of the overlay in a guest's folder, or None if the record is missing or malformed."""
    path = folder / RECORD
    try:
        return DiskRecord.model_validate_json(path.read_bytes())
    except FileNotFoundError:
        return None
    except ValidationError as error:
        log.warning("guest_disk_record_malformed", path=path, error=error)
        return None


def _run(*arguments: str, over: Path, codes: Collection[int] = (0,)) -> str:
    """Run qemu-img and return its output. Raise Refused if its exit code is not one of ``codes``."""
    try:
        result = subprocess.run(  # noqa: S603 - no shell; the paths are the administrator's
            ["qemu-img", *arguments],  # noqa: S607
            capture_output=True,
            text=True,
            check=False,
            timeout=TIMEOUT_S,
        )
    except FileNotFoundError as error:
        raise Refused(
            f"cannot create a guest's disk over {over}: qemu-img is not installed; apt-get install qemu-utils"
        ) from error
    except subprocess.TimeoutExpired as error:
        raise Refused(f"cannot create a guest's disk over {over}: {error}") from error
    if result.returncode not in codes:
        raise Refused(
            f"cannot create a guest's disk over {over}: {' '.join(result.stderr.split())[:MAX_ERROR_CHARACTERS]}"
        )
    return result.stdout
