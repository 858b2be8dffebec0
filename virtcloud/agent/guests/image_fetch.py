"""Fetches an image's file from SBF, from a URL, or from the host's folder of images, and verifies its checksum.

After an interruption, the next attempt fetches only the missing part (RFC 9110, 14.2 and 13.1.5: Range and If-Range).
"""

import os
import stat
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from pathlib import Path

from virtcloud.agent.files import describe_os_error
from virtcloud.agent.guests.partial_files import READ_BYTES, PartialFile
from virtcloud.agent.guests.url_transfers import FULL, open_url
from virtcloud.client.connection import FileTransfer
from virtcloud.model.errors import (
    BadInput,
    Forbidden,
    NotFound,
    Refused,
    ServiceUnreachable,
    Unreachable,
    VirtcloudError,
)
from virtcloud.model.image import HEAD_BYTES, HostFile, ImageSource, check_head
from virtcloud.model.values import Name

DownloadFromSbf = Callable[[str, int, str | None], AbstractContextManager[FileTransfer]]
"""A function that opens a transfer of an image's file from SBF. The arguments are the image's name, the offset in
bytes, and the ETag of the file from which the bytes before the offset came (None if the ETag is unknown).
"""


@dataclass(frozen=True, slots=True)
class ImageSources:
    """The sources of images.

    ``urls`` are the permitted beginnings of URLs, or None to permit all URLs with public addresses.
    """

    sbf: DownloadFromSbf
    folder: Path
    urls: tuple[str, ...] | None = None

    def open(
        self, name: Name, source: ImageSource, offset: int, etag: str | None
    ) -> AbstractContextManager[FileTransfer]:
        """Return a context manager that opens a transfer of an image's file, from ``offset`` on.

        ``etag`` is the ETag of the file from which the bytes before ``offset`` came. For a file of this host, ``etag``
        is ignored. If the server now has another version of the file, the transfer starts at the file's beginning. The
        context manager raises Refused if the source does not have the file, and Unreachable if the source does not
        answer.
        """
        if source.file is not None:
            return _open_host_file(self.folder, source.file, offset)
        if source.url is not None:
            return open_url(source.url, offset, etag, self.urls)
        return self._open_at_sbf(name, offset, etag)

    @contextmanager
    def _open_at_sbf(self, name: Name, offset: int, etag: str | None) -> Iterator[FileTransfer]:
        try:
            with self.sbf(name, offset, etag) as transfer:
                yield transfer
        except (NotFound, Forbidden) as error:
            raise Refused(str(error)) from error
        except ServiceUnreachable as error:
            raise Unreachable(str(error)) from error


@contextmanager
def _open_host_file(folder: Path, path: HostFile, offset: int) -> Iterator[FileTransfer]:
    """Yield a transfer of a file in the host's folder of images, from ``offset`` on.

    Raise Refused for a file that is not regular, and for a symbolic link to a file outside of the folder.
    """
    try:
        real = (folder / path).resolve(strict=True)
        if not real.is_relative_to(folder.resolve()):
            raise Refused(f"{folder / path}: expected a file in {folder}, got a link to {real}")
        with real.open("rb") as file:
            if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
                raise Refused(f"{folder / path}: expected a regular file, got something else")
            file.seek(offset)
            yield FileTransfer(offset, None, iter(lambda: file.read(READ_BYTES), b""))
    except OSError as error:
        if error.errno in FULL:
            raise
        raise Refused(f"{folder / path}: cannot be read: {describe_os_error(error)}") from error


@dataclass(frozen=True, slots=True)
class ImageFetch:
    """The fetch of one image.

    After an attempt that leaves the file incomplete, ``pause`` is called with a number and the error. The number is 1
    after an attempt that received data, and increases by 1 after each attempt without data. ``pause`` waits, or raises
    the error if no guest needs the image.
    """

    sources: ImageSources
    pause: Callable[[int, VirtcloudError], None]
    progress: Callable[[int], object]

    def run(self, name: Name, source: ImageSource, path: Path) -> None:
        """Fetch an image into the file ``path``.

        Raise Refused if the source does not have the image, or if the received file has a wrong checksum.
        """
        partial = PartialFile(path, self.progress)
        try:
            resumed = partial.size > 0
            self._receive_all(name, source, partial)
            if partial.sha256 != source.sha256 and resumed:  # the file may have changed since the last attempt
                partial.clear()
                self._receive_all(name, source, partial)
            if partial.sha256 != source.sha256:
                raise Refused(
                    f"expected sha256 {source.sha256}, got {partial.sha256}: the source has another file now; add the "
                    "image again under another name"
                )
        finally:
            partial.close()

    def _receive_all(self, name: Name, source: ImageSource, partial: PartialFile) -> None:
        if partial.size > source.size:
            partial.clear()
        attempts = 0
        while partial.size < source.size:
            before = partial.size
            try:
                with self.sources.open(name, source, partial.size, partial.etag) as transfer:
                    partial.receive(transfer, source.size)
                error: VirtcloudError = Unreachable(f"the file ended after {partial.size} of {source.size} bytes")
            except Unreachable as unreachable:
                error = unreachable
            if partial.size < source.size:
                attempts = 1 if partial.size > before else attempts + 1
                self.pause(attempts, error)


def check_format(source: ImageSource, path: Path) -> None:
    """Raise Refused if the file ``path`` is no usable image of the format of ``source``."""
    with path.open("rb") as file:
        head = file.read(HEAD_BYTES)
    try:
        check_head(source.format, head)
    except BadInput as error:
        raise Refused(str(error)) from error
