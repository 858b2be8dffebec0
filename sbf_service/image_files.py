"""The folder of uploaded images: one file per content, with the content's SHA-256 as its name.

SBF writes an upload to a hidden file, locked (flock(2)) while the upload runs. The file's name contains the announced
size and a digest of the owner: the quota of images counts the running uploads of all replicas. The transaction that
inserts the image's row into the database also renames this file. When an image is uploaded or removed, SBF also removes
the files that killed processes left behind: hidden files without a lock, and image files without a row.
"""

import errno
import fcntl
import hashlib
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from secrets import token_hex
from typing import BinaryIO, Final

from sqlalchemy import make_url

from sbf_service.domain.image_rules import ImageLimits
from sbf_service.local_files import find_write_remedy, synchronize_folder
from virtcloud.model.errors import BadInput, NotFound, StorageFull
from virtcloud.model.image import HEAD_BYTES, ImageFormat, Sha256, check_head, recognize_format

DEFAULT_FOLDER: Final = Path("/var/lib/virtcloud/catalogue")
FOLDER_MODE, FILE_MODE = 0o700, 0o600
HIDDEN: Final = ".upload-"
READ_BYTES: Final = 1 << 20
NEW_S: Final = 60.0
"""SBF removes no hidden file younger than this age in seconds: the file's upload may not have locked the file yet."""
FULL: Final = frozenset({errno.ENOSPC, errno.EDQUOT})
ENDED: Final = frozenset({errno.ENOENT, errno.ESTALE})
"""The errors for a hidden file that was removed. ESTALE: another computer removed the file on NFS."""


def find_image_folder(limits: ImageLimits, database: str) -> Path:
    """Return the folder of uploaded images: the folder that the settings name, or a default.

    If the database is a SQLite file, the default is the folder ``catalogue`` beside this file. For any other database,
    the default is `DEFAULT_FOLDER`.
    """
    if limits.folder is not None:
        return Path(limits.folder)
    address = make_url(database)
    if address.get_backend_name() == "sqlite" and address.database not in {None, "", ":memory:"}:
        return Path(str(address.database)).parent / "catalogue"
    return DEFAULT_FOLDER


class Upload:
    """A file that is being uploaded. The file is hidden until :meth:`place` renames it."""

    def __init__(self, file: BinaryIO, path: Path, announced_size: int) -> None:
        """Create an upload to the open ``file``, which has the hidden ``path``.

        The caller has checked the limits for ``announced_size`` bytes.
        """
        self._file, self._path, self._announced_size = file, path, announced_size
        self._digest = hashlib.sha256()
        self.size, self.head = 0, b""

    def write(self, data: bytes) -> None:
        """Append data. Raise BadInput if the file would become larger than announced.

        Raise StorageFull if the file cannot be written.
        """
        if self.size + len(data) > self._announced_size:
            raise BadInput(
                f"image: expected {self._announced_size} bytes, as announced, got more; nothing was stored: send the "
                "file again with its size"
            )
        with _translate_full_disk(self._path.parent):
            _write_all(self._file, data)
        self._digest.update(data)
        self.size += len(data)
        if len(self.head) < HEAD_BYTES:
            self.head += data[: HEAD_BYTES - len(self.head)]

    def finish(self, image_format: ImageFormat | None) -> tuple[Sha256, ImageFormat]:
        """Write the file to the disk. Return its checksum and its format.

        Raise BadInput if the file is empty, has a format other than ``image_format``, or refers to other files.
        """
        if not self.size:
            raise BadInput("image: expected a file, got no bytes")
        found = image_format or recognize_format(self.head)
        check_head(found, self.head)
        with _translate_full_disk(self._path.parent):
            self._file.flush()
            os.fsync(self._file.fileno())
        return Sha256(self._digest.hexdigest()), found

    def place(self, sha256: Sha256) -> None:
        """Rename the file to its SHA-256. An existing file of this name has the same content."""
        with _translate_full_disk(self._path.parent):
            self._path.rename(self._path.parent / sha256)
            synchronize_folder(self._path.parent)


@dataclass(frozen=True, slots=True)
class UploadFolder:
    """The folder of uploaded images."""

    path: Path

    @contextmanager
    def open_upload(self, size: int, owner: str) -> Iterator[Upload]:
        """Yield a new upload of ``size`` bytes. At the end of the ``with`` block, remove a file that was not placed."""
        hidden = self.path / f"{_begin_name(owner)}{size}-{token_hex(8)}"
        with _translate_full_disk(self.path):
            self.path.mkdir(mode=FOLDER_MODE, parents=True, exist_ok=True)
            descriptor = os.open(hidden, os.O_WRONLY | os.O_CREAT | os.O_EXCL, FILE_MODE)
        with os.fdopen(descriptor, "wb", buffering=0) as file:
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX)
                yield Upload(file, hidden, size)
            finally:
                with suppress(FileNotFoundError):
                    hidden.unlink()

    def count_uploading(self, owner: str) -> int:
        """Return the announced bytes of all running uploads of ``owner``. Uploads of killed processes do not count.

        If two uploads begin at the same moment, each counts the other. Raise StorageFull if a hidden file cannot be
        read.
        """
        begin = _begin_name(owner)
        running = (path for path in self.path.glob(f"{begin}*") if _is_locked(path))
        return sum(int(path.name.removeprefix(begin).partition("-")[0]) for path in running)

    def find(self, sha256: Sha256) -> Path:
        """Return the file of an image.

        Raise NotFound if this replica has no such file. Raise StorageFull if SBF has no access to the file.
        """
        path = self.path / sha256
        with _translate_file_errors("read", path):
            is_file = path.is_file()
        if not is_file:
            raise NotFound(
                f"image file {sha256} is missing in {self.path}: if the file was lost, upload it again (virtcloud "
                "image add); several replicas of SBF with one database need a common folder (setting images.folder)"
            )
        return path

    def contains(self, sha256: Sha256, size: int) -> bool:
        """Return whether this replica has an image's file with this size in bytes. Do not read the file.

        Raise StorageFull if SBF has no access to the file.
        """
        path = self.path / sha256
        with _translate_file_errors("read", path):
            return path.is_file() and path.stat().st_size == size

    def compute_checksum(self, sha256: Sha256) -> str:
        """Read an image's file, and return its SHA-256.

        Raise NotFound if this replica has no such file. Raise StorageFull if the file cannot be read.
        """
        digest, path = hashlib.sha256(), self.find(sha256)
        with _translate_file_errors("read", path), path.open("rb") as file:
            while data := file.read(READ_BYTES):
                digest.update(data)
        return digest.hexdigest()

    def remove_unknown(self, known: frozenset[str]) -> None:
        """Remove files whose checksum is not in ``known``, and hidden files of uploads whose process was killed.

        The caller must hold the database's write lock, so that no upload is placed meanwhile. If a file cannot
        be removed, remove the remaining files, and then raise StorageFull.
        """
        with _translate_file_errors("read", self.path):
            files = list(self.path.iterdir()) if self.path.is_dir() else []
        failures: list[StorageFull] = []
        for path in files:
            try:
                with _translate_file_errors("remove", path):
                    _remove_unneeded(path, known)
            except StorageFull as error:
                failures.append(error)
        for failure in failures:
            raise StorageFull(f"{failure}; the next upload or removal of an image removes the file") from failure


def _begin_name(owner: str) -> str:
    return f"{HIDDEN}{hashlib.sha256(owner.encode()).hexdigest()[:16]}-"


def _is_locked(path: Path) -> bool:
    """Return whether the upload to a hidden file still runs, and therefore locks the file.

    The test acquires a shared lock, so that other processes can test at the same time. Raise StorageFull if the file
    cannot be read.
    """
    try:
        with _translate_file_errors("read", path), _suppress_ended(), path.open("rb") as file:
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    return False


@contextmanager
def _translate_file_errors(action: str, path: Path) -> Iterator[None]:
    """Raise StorageFull instead of OSError if SBF cannot read or remove (``action``) a file of the folder of images."""
    try:
        yield
    except BlockingIOError:  # another process has locked the file
        raise
    except OSError as error:
        remedy = (
            "all replicas must have access to this folder, and must run as the same user"
            if isinstance(error, PermissionError)
            else "check the file system of this folder, its locks (flock), and the limit of open files"
        )
        remedy = find_write_remedy(error, path.parent, remedy)
        kind = ", the file of an upload" if path.name.startswith(HIDDEN) else ""
        raise StorageFull(f"SBF cannot {action} {path}{kind}: {error.strerror}; {remedy}") from error


def _remove_unneeded(path: Path, known: frozenset[str]) -> None:
    if path.name.startswith(HIDDEN):
        _remove_unlocked(path)
    elif Sha256.matches(path.name) and path.name not in known:
        path.unlink(missing_ok=True)


def _remove_unlocked(path: Path) -> None:
    with suppress(BlockingIOError), _suppress_ended(), path.open("r+b") as file:  # flock(2) on NFS needs write access
        if time.time() - os.fstat(file.fileno()).st_mtime < NEW_S:
            return
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        path.unlink(missing_ok=True)


@contextmanager
def _suppress_ended() -> Iterator[None]:
    try:
        yield
    except OSError as error:
        if error.errno not in ENDED:
            raise


def _write_all(file: BinaryIO, data: bytes) -> None:
    """Write all bytes to an unbuffered file. One call of ``write`` may write only a part of the bytes."""
    rest = memoryview(data)
    while rest:
        rest = rest[file.write(rest) :]


@contextmanager
def _translate_full_disk(folder: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        if error.errno in FULL:
            raise StorageFull(
                f"the disk of SBF's folder of images {folder} is full: nothing was stored; remove images (virtcloud "
                "image remove), enlarge the disk, or add the image with a URL"
            ) from error
        remedy = "set 'images.folder' in the settings of this SBF to a folder that SBF's user may write"
        raise StorageFull(
            f"SBF cannot write to its folder of images {folder}: {error.strerror}; "
            f"{find_write_remedy(error, folder, remedy)}"
        ) from error
