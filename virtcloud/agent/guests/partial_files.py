"""The fetched part of an image's file. The next attempt to fetch the file continues at the end of this part."""

import hashlib
import os
import re
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import BinaryIO, Final

from virtcloud.agent.files import write_all
from virtcloud.client.connection import FileTransfer
from virtcloud.model.errors import Refused

READ_BYTES: Final = 1 << 20
_VALIDATOR: Final = re.compile(rb"[ -~]+")  # an ETag, or a time of modification


class PartialFile:
    """The fetched part of an image's file, its size, and its checksum."""

    def __init__(self, path: Path, progress: Callable[[int], object]) -> None:
        """Open the file, and compute the checksum of its content.

        ``progress`` is called with the size in bytes after each increase. If ``progress`` raises an error, close the
        file.
        """
        self._path, self._etag_path, self._progress = path, path.with_suffix(".etag"), progress
        self._file: BinaryIO = os.fdopen(os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW, 0o600), "r+b", 0)
        self._digest, self.size = hashlib.sha256(), 0
        with ExitStack() as stack:
            stack.callback(self._file.close)
            while data := self._file.read(READ_BYTES):
                self._count(data)
            stack.pop_all()

    @property
    def etag(self) -> str | None:
        """The ETag of the file's fetched version, or None if the ETag is unknown or malformed.

        After a power failure, the ETag's file can contain any bytes. Such bytes must not be sent in a request's header.
        """
        text = self._etag_path.read_bytes() if self._etag_path.exists() else b""
        return text.decode() if _VALIDATOR.fullmatch(text) else None

    @property
    def sha256(self) -> str:
        """The checksum of the fetched part."""
        return self._digest.hexdigest()

    def receive(self, transfer: FileTransfer, size: int) -> None:
        """Append the data of a transfer.

        If the transfer does not start at the end of this part, discard the part first. Raise Refused if the file is
        longer than ``size``, its expected size in bytes.
        """
        if transfer.start != self.size:
            self.clear()
        if transfer.etag is not None:
            self._etag_path.write_text(transfer.etag)
        for data in transfer.chunks:
            if self.size + len(data) > size:
                raise Refused(f"expected a file of {size} bytes, got a longer file")
            write_all(self._file, data)
            self._count(data)

    def clear(self) -> None:
        """Discard the fetched part."""
        self._file.seek(0)
        self._file.truncate()
        self._etag_path.unlink(missing_ok=True)
        self._digest, self.size = hashlib.sha256(), 0

    def close(self) -> None:
        """Write the file to the disk. Close the file even if the writing fails."""
        with self._file:
            os.fsync(self._file.fileno())

    def _count(self, data: bytes) -> None:
        self._digest.update(data)
        self.size += len(data)
        self._progress(self.size)


def remove_partial_file(path: Path) -> None:
    """Remove a partial file and the file with its ETag."""
    path.unlink(missing_ok=True)
    path.with_suffix(".etag").unlink(missing_ok=True)
