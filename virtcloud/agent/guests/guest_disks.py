"""Disks of virtual machines: an overlay (qcow2) over the image's disk, and extra disks (raw).

===================  ====================================================================================
in the guest's       content
folder
===================  ====================================================================================
``disk.qcow2``       the overlay: the data that the guest wrote; the image's disk is never changed
``disk.json``        the image and the size from which the overlay was created; written after the overlay
``disk-NAME.raw``    the extra disk NAME: a sparse file, which uses space only for data that the guest wrote
===================  ====================================================================================

The disks are kept when the guest or the host restarts. Only root and QEMU's user may read a disk. libvirt makes QEMU's
user the owner.

The content of an image's disk is untrusted. The agent reads only the header, and refuses a disk that refers to other
files. Then ``qemu-img`` checks the disk with limits of memory and processor time.
"""

import json
import os
import secrets
import shutil
import stat
import subprocess
from collections.abc import Collection
from pathlib import Path
from typing import IO, Any, Final

from pydantic import ValidationError

from virtcloud.agent import log
from virtcloud.agent.files import refuse_os_errors, write_durably
from virtcloud.agent.guests.id_ranges import CLONE_IDS
from virtcloud.agent.guests.image_folder import is_same_image
from virtcloud.agent.guests.images import QemuImage
from virtcloud.model.document import Document
from virtcloud.model.errors import BadInput, Refused
from virtcloud.model.image import HEAD_BYTES, ImageFormat, check_head
from virtcloud.model.wanted import GuestWanted

DISK: Final = "disk.qcow2"
RECORD: Final = "disk.json"
TIMEOUT_S = 60.0
CHECK_LIMITS: Final = ("--as=1073741824", "--cpu=30", "--core=0")
"""The limits of ``qemu-img check`` (prlimit(1)): bytes of memory, seconds of processor time, and no core dump."""
CHECK_CODES: Final = frozenset({0, 2, 3})
"""The exit codes with which ``qemu-img check`` prints a report: 0 without errors, 2 for errors in the image, 3 for
leaked blocks (qemu-img(1)).
"""
MIB: Final = 1 << 20
MAX_ERROR_CHARACTERS: Final = 500
SIZE_FIELD: Final = slice(24, 32)
"""The bytes of a qcow2 header that contain the size of the disk."""
BlockNode = dict[str, Any]
"""The JSON description of a block device for QEMU (qemu-img(1), "Options")."""


class DiskRecord(Document):
    """The origin of an overlay. ``image`` is the result of `identify_disk` for the image's disk."""

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
    """Create a guest's missing disks in its folder, and remove extra disks that are not in its spec.

    If the image or the overlay's wanted size has changed, replace the overlay by an empty overlay. If the wanted size
    of an extra disk has changed, replace this disk by an empty disk. Raise Refused if a disk cannot be created.
    """
    size_mb = guest.limits.disk_mb if guest.limits else None
    with refuse_os_errors(f"create the disks of guest {guest.name} in {folder}"):
        if image.disk is None and size_mb is not None:
            raise Refused(
                f"guest {guest.name}: expected no disk_mb, because image {guest.image} has no disk, got {size_mb}: "
                "request an extra disk (disks)"
            )
        if image.disk is not None:
            _ensure_overlay(folder, image.disk, image.disk_format, size_mb, guest)
        _ensure_extra_disks(folder, guest)


def _ensure_overlay(folder: Path, disk: Path, disk_format: str, size_mb: int | None, guest: GuestWanted) -> None:
    record = DiskRecord(image=identify_disk(disk), size_mb=size_mb)
    former = find_record(folder)
    if _is_same(former, record) and (folder / DISK).exists():
        if former != record:  # the image's disk was copied, for example with the agent's state folder
            write_durably(folder / RECORD, record.model_dump_json().encode())
        return
    if former is not None:
        log.info("guest_disk_replaced", folder=folder, image=disk)
    size = _check_image(disk, disk_format, size_mb, guest)
    for name in (RECORD, DISK):
        (folder / name).unlink(missing_ok=True)
    backing = ("-u", "-b", str(disk), "-F", disk_format)  # with -u, qemu-img does not open the image's disk
    _run(_find_program(disk), "create", "-q", "-f", "qcow2", *backing, str(folder / DISK), str(size), over=disk)
    (folder / DISK).chmod(0o600)
    write_durably(folder / RECORD, record.model_dump_json().encode())


def _is_same(former: DiskRecord | None, record: DiskRecord) -> bool:
    return former is not None and former.size_mb == record.size_mb and is_same_image(former.image, record.image)


def identify_disk(disk: Path) -> str:
    """Return a text with a disk's path, inode, size and modification time.

    `is_same_image` compares two such texts. Raise OSError if the file is missing.
    """
    status = disk.stat()
    return f"{disk} {status.st_ino} {status.st_size} {status.st_mtime_ns}"


def _check_image(disk: Path, disk_format: str, size_mb: int | None, guest: GuestWanted) -> int:
    """Return the size in bytes of a guest's disk: ``size_mb``, or the size of the image's disk.

    Raise Refused if the image's disk is larger than ``size_mb``, refers to other files, or is damaged.
    """
    with disk.open("rb") as file:
        size = _read_size(file, disk_format, guest)
        if disk_format == "qcow2":
            _check_complete(file, guest)
    if size_mb is not None and size_mb * MIB < size:
        raise Refused(
            f"guest {guest.name}: expected disk_mb of at least {-(-size // MIB)}, the size of the disk of image "
            f"{guest.image}, got {size_mb}"
        )
    return size if size_mb is None else size_mb * MIB


def _read_size(file: IO[bytes], disk_format: str, guest: GuestWanted) -> int:
    if disk_format != "qcow2":
        return file.seek(0, os.SEEK_END)
    head = file.read(HEAD_BYTES)
    try:
        check_head(ImageFormat.QCOW2, head)
    except BadInput as error:
        raise Refused(f"image {guest.image}: guests cannot use its disk {file.name}: {error}") from error
    return int.from_bytes(head[SIZE_FIELD])


def _check_complete(file: IO[bytes], guest: GuestWanted) -> None:
    """Raise Refused if ``qemu-img check`` finds errors in a qcow2 file.

    QEMU opens a truncated file without an error. The guest would then read zeros, or fail later.
    """
    disk = Path(file.name)
    node = json.dumps(describe_node("qcow2", file) | {"backing": None})
    argv = ("prlimit", *CHECK_LIMITS, _find_program(disk), "check", "--output=json", f"json:{node}")
    output = _run(*argv, over=disk, codes=CHECK_CODES, lent=file)
    try:
        report: dict[str, Any] = json.loads(output)
    except ValueError as error:
        raise Refused(
            f"image {guest.image}: cannot check the disk {disk}: expected a report in JSON from qemu-img check, got "
            f"{output[:MAX_ERROR_CHARACTERS]!r}; try the command on this host: qemu-img check --output=json {disk}"
        ) from error
    faults = report.get("corruptions", 0) + report.get("check-errors", 0)
    if faults:
        raise Refused(
            f"image {guest.image}: expected a complete qcow2 file, got {disk} with {faults} errors (qemu-img check), "
            "for example because it was truncated by an interrupted download; add a complete file as a new image"
        )


def describe_node(driver: str, file: IO[bytes]) -> BlockNode:
    """Return the description of an open file for a program that inherits the file."""
    return {
        "driver": driver,
        "file": {"driver": "file", "filename": f"/proc/self/fd/{file.fileno()}", "locking": "off"},
    }


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


def _find_program(over: Path) -> str:
    program = shutil.which("qemu-img")
    if program is None:
        raise Refused(
            f"cannot create a guest's disk over {over}: qemu-img is not installed; apt-get install qemu-utils"
        )
    return program


def _run(*argv: str, over: Path, codes: Collection[int] = (0,), lent: IO[bytes] | None = None) -> str:
    """Run a program and return its output.

    The program inherits the file ``lent``, and then runs as the user that `_drop_rights` chooses.
    """
    limited = {} if lent is None else _drop_rights(lent)
    try:
        result: subprocess.CompletedProcess[str] = subprocess.run(  # noqa: S603 - no shell
            argv, capture_output=True, text=True, errors="replace", check=False, timeout=TIMEOUT_S, **limited
        )
    except (subprocess.TimeoutExpired, OSError) as error:
        raise Refused(f"cannot create a guest's disk over {over}: {error}") from error
    if result.returncode not in codes:
        reason = " ".join(result.stderr.split())[:MAX_ERROR_CHARACTERS] or f"the program ended with {result.returncode}"
        raise Refused(f"cannot create a guest's disk over {over}: {reason}")
    return result.stdout


def _drop_rights(lent: IO[bytes]) -> dict[str, Any]:
    """Return the arguments of subprocess for a program that inherits the file ``lent``.

    If the agent runs as root, the program runs with a user ID that belongs to no account, or as the file's owner if not
    all users may read the file. SBF's catalogue has only files that all users may read. The folder of images has others
    too.
    """
    status = os.fstat(lent.fileno())
    stranger = secrets.choice(CLONE_IDS)
    user, group = (stranger, stranger) if status.st_mode & stat.S_IROTH else (status.st_uid, status.st_gid)
    identity = {} if os.geteuid() else {"user": user, "group": group, "extra_groups": ()}
    return {"pass_fds": [lent.fileno()], "cwd": "/", "env": {"PATH": os.defpath}, **identity}
