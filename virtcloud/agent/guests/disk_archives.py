"""Images made from the disks of stopped virtual machines, without the private keys of the machines' clusters.

The disk and its overlay are untrusted, so no program of the host mounts the disk. ``qemu-img`` merges the overlay,
which has the guest's changes, with the image's disk into a raw copy. ``qemu-img`` runs with a user ID that no account
has, reads only the two files that this process passes, and cannot write much more than the disk's size. In the whole
copy, this process overwrites the lines of the private keys, also in deleted files. Then ``qemu-img`` compresses the
copy.
"""

import errno
import json
import os
import subprocess
from collections.abc import Generator, Iterable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryFile
from typing import IO, Final

from virtcloud.agent.files import refuse_os_errors
from virtcloud.agent.guests.guest_archives import READ_BYTES, GuestArchive, open_archive_files
from virtcloud.agent.guests.guest_disks import (
    DISK,
    MIB,
    SIZE_FIELD,
    BlockNode,
    describe_node,
    find_record,
    identify_disk,
)
from virtcloud.agent.guests.image_folder import is_same_image
from virtcloud.model.errors import BadInput, Refused
from virtcloud.model.image import (
    HEAD_BYTES,
    ImageFormat,
    check_head,
    recognize_format,
)

POLL_S: Final = 0.2
PART: Final = 16
"""A line of a key is recognized by the line's first or last 16 characters.

The rest of the line may be in another block.
"""
BACKING_FIELDS: Final = slice(8, 20)
"""The bytes of a qcow2 header that contain the reference to the backing file."""
BLOCK_BYTES: Final = 512
MAX_ERROR_BYTES: Final = 500
ERASED: Final = b"#"


@dataclass(frozen=True, slots=True)
class StoppedGuestDisk:
    """The disk of a stopped virtual machine: the overlay with the guest's changes, and the image's disk ``base``.

    ``size`` is the disk's size in bytes. ``user`` is the user ID for qemu-img; no account has this ID.
    """

    overlay: Path
    base: Path
    size: int
    user: int


def find_guest_disk(folder: Path, user: int) -> StoppedGuestDisk | None:
    """Return the disk in a guest's folder, or None if the guest has no disk.

    ``user`` is the user ID with which qemu-img will read the disk. Raise Refused if the image's disk was changed or
    removed.
    """
    record = find_record(folder)
    if record is None or not (folder / DISK).exists():
        return None
    with refuse_os_errors(f"read the image's disk {record.disk}"):
        if not is_same_image(record.image, identify_disk(record.disk)):
            raise Refused(f"{record.disk} has changed since the guest's disk was created: the guest cannot be cloned")
    size = _read_size(record.disk) if record.size_mb is None else record.size_mb * MIB
    return StoppedGuestDisk(folder / DISK, record.disk, size, user)


def _read_size(disk: Path) -> int:
    with disk.open("rb") as file:
        head = file.read(HEAD_BYTES)
    is_qcow2 = recognize_format(head) is ImageFormat.QCOW2
    return int.from_bytes(head[SIZE_FIELD]) if is_qcow2 else disk.stat().st_size


class DiskArchive(GuestArchive):
    """A compressed copy of a disk (qcow2)."""

    image_format = ImageFormat.QCOW2

    def __init__(self, copy: IO[bytes], file: IO[bytes]) -> None:
        """Create an archive. `pack` writes a raw copy of the disk to ``copy``, and the compressed image to ``file``."""
        super().__init__(file)
        self._copy = copy

    def pack(self, disk: StoppedGuestDisk, texts: Iterable[str]) -> Generator[int]:
        """Copy a disk, overwrite ``texts`` in the copy, and compress the copy. Yield numbers of bytes as progress.

        ``texts`` are the lines of private keys. If the caller closes the generator, qemu-img is killed. Raise Refused
        if the disk cannot be read, or the host has too little free space.
        """
        lines = [text.encode() for text in texts]
        with refuse_os_errors(f"copy the disk {disk.overlay}"), ExitStack() as stack:
            overlay, base = (stack.enter_context(path.open("rb")) for path in (disk.overlay, disk.base))
            stack.enter_context(_lent(overlay, disk.user))
            source = _describe_layers(overlay, base)
            yield from _convert(source, (overlay, base), self._copy, "raw", disk)
            yield from _erase(self._copy.fileno(), lines)
            copy = describe_node("raw", self._copy)
            yield from _convert(copy, (self._copy,), self._file, "qcow2", disk)
            os.ftruncate(self._copy.fileno(), 0)
            for data in self.read():
                self._digest.update(data)
                yield self.size


@contextmanager
def open_disk_archive(folder: Path) -> Iterator[DiskArchive]:
    """Yield an empty archive on the file system of ``folder``."""
    with open_archive_files(folder, 2) as (copy, file):
        yield DiskArchive(copy, file)


@contextmanager
def _lent(overlay: IO[bytes], user: int) -> Iterator[None]:
    """Make ``user`` the owner of the file ``overlay`` within the block, and root the owner afterwards."""
    os.fchown(overlay.fileno(), user, user)
    try:
        yield
    finally:
        os.fchown(overlay.fileno(), 0, 0)


def _describe_layers(overlay: IO[bytes], base: IO[bytes]) -> BlockNode:
    """Return the description of the disk for QEMU: ``overlay`` over ``base``.

    The overlay's own reference to a backing file is ignored, because the guest's QEMU may have changed it. Raise
    Refused if a file is encrypted, is corrupt or has an external data file, or if ``base`` has a backing file.
    """
    head, base_head = bytearray(overlay.read(HEAD_BYTES)), base.read(HEAD_BYTES)
    head[BACKING_FIELDS] = bytes(BACKING_FIELDS.stop - BACKING_FIELDS.start)
    base_format = recognize_format(base_head)
    try:
        check_head(ImageFormat.QCOW2, bytes(head))
        check_head(base_format, base_head)
    except BadInput as error:
        raise Refused(f"cannot copy the disk with overlay {overlay.name} and base {base.name}: {error}") from error
    is_qcow2 = base_format is ImageFormat.QCOW2
    below = describe_node("qcow2", base) | {"backing": None} if is_qcow2 else describe_node("raw", base)
    return describe_node("qcow2", overlay) | {"backing": below}


def _convert(
    source: BlockNode, files: Iterable[IO[bytes]], target: IO[bytes], target_format: str, disk: StoppedGuestDisk
) -> Iterator[int]:
    """Convert ``source`` to ``target`` with qemu-img, as the user ``disk.user``. Raise Refused if qemu-img fails.

    qemu-img inherits the open ``files``, which ``source`` names. Yield the number of bytes of ``target`` as progress.
    ``target`` may be larger than the disk by 1/16 of the disk's size plus 1 MiB, for the tables of qcow2.
    """
    os.fchown(target.fileno(), disk.user, disk.user)
    limit = f"--fsize={disk.size + disk.size // 16 + MIB}"
    compression = ["-c", "-o", "compression_type=zstd"] if target_format == "qcow2" else []
    # If the agent is killed, the kernel kills qemu-img, and frees the disk space of the deleted target.
    argv = ["setpriv", "--pdeathsig=KILL", "prlimit", limit, "qemu-img", "convert", "-O", target_format, *compression]
    with (
        TemporaryFile() as errors,
        subprocess.Popen(  # noqa: S603 - no shell
            [*argv, f"json:{json.dumps(source)}", f"/proc/self/fd/{target.fileno()}"],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=errors,
            pass_fds=[file.fileno() for file in (*files, target)],
            user=disk.user,
            group=disk.user,
            extra_groups=(),
            cwd="/",
            env={"PATH": os.defpath},
        ) as program,
    ):
        try:
            while program.poll() is None:
                yield os.fstat(target.fileno()).st_blocks * BLOCK_BYTES
                with suppress(subprocess.TimeoutExpired):
                    program.wait(POLL_S)
            if program.returncode:
                error = os.pread(errors.fileno(), MAX_ERROR_BYTES, 0).decode(errors="replace")
                raise Refused(
                    f"cannot copy the disk {disk.overlay}: {' '.join(error.split()) or 'qemu-img was killed'}; check "
                    f"that all users may read {disk.base}, and that the guest's host has free space"
                )
        finally:
            program.kill()


def _erase(descriptor: int, lines: list[bytes]) -> Iterator[int]:
    """Overwrite all ``lines`` in a file. After each block of `READ_BYTES`, yield the block's position.

    If a line continues in another block, up to `PART` - 1 of its characters may remain in one block.
    """
    parts = {part: line for line in lines for part in (line[:PART], line[-PART:])}
    for begin, end in _list_data(descriptor):
        for position in range(begin, end, READ_BYTES):
            data = os.pread(descriptor, READ_BYTES, position)
            for part, line in parts.items():
                for first, last in _find_line(data, part, line):
                    os.pwrite(descriptor, ERASED * (last - first), position + first)
            yield position


def _find_line(data: bytes, part: bytes, line: bytes) -> Iterator[tuple[int, int]]:
    """Yield the begin and end of each range of ``data`` that matches the beginning or end of ``line``.

    ``part`` is the line's first or last `PART` characters. A range extends from ``part`` to the nearest difference from
    ``line``.
    """
    found = data.find(part)
    while found >= 0:
        if line.startswith(part):
            yield found, found + _count_equal(data[found : found + len(line)], line)
        else:
            end = found + PART
            before = data[max(end - len(line), 0) : end]
            yield end - _count_equal(before[::-1], line[::-1]), end
        found = data.find(part, found + PART)


def _count_equal(one: bytes, other: bytes) -> int:
    pairs = zip(one, other, strict=False)
    return next((n for n, (a, b) in enumerate(pairs) if a != b), min(len(one), len(other)))


def _list_data(descriptor: int) -> Iterator[tuple[int, int]]:
    end = 0
    while True:
        try:
            begin = os.lseek(descriptor, end, os.SEEK_DATA)
        except OSError as error:
            if error.errno == errno.ENXIO:
                return
            raise
        end = os.lseek(descriptor, begin, os.SEEK_HOLE)
        yield begin, end
