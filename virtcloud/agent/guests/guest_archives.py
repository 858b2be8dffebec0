"""Archives of stopped guests, from which images are made."""

import hashlib
import os
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from tempfile import TemporaryFile
from typing import IO, ClassVar, Final

from virtcloud.agent.files import refuse_os_errors
from virtcloud.model.image import Architecture, ImageContent, ImageFormat, Sha256

READ_BYTES: Final = 1 << 20


class GuestArchive:
    """An archive in a file without a name. The file vanishes when the agent ends."""

    image_format: ClassVar[ImageFormat]

    def __init__(self, file: IO[bytes]) -> None:
        """Create an object for an archive in ``file``, which is empty and unbuffered."""
        self._file = file
        self._digest = hashlib.sha256()

    @property
    def size(self) -> int:
        """The size of the archive in bytes."""
        return os.fstat(self._file.fileno()).st_size

    def describe(self) -> ImageContent:
        """Return the image's format, size and checksum, and this host's architecture."""
        return ImageContent(
            sha256=Sha256(self._digest.hexdigest()),
            size=self.size,
            format=self.image_format,
            architecture=Architecture(os.uname().machine),
        )

    def read(self) -> Iterator[bytes]:
        """Yield the content of the archive in pieces."""
        self._file.seek(0)
        while data := self._file.read(READ_BYTES):
            yield data


@contextmanager
def open_archive_files(folder: Path, count: int) -> Iterator[Sequence[IO[bytes]]]:
    """Yield ``count`` files without a name on the file system of ``folder``. Close the files after the block."""
    with refuse_os_errors(f"create a file in {folder}"), ExitStack() as stack:
        files = [stack.enter_context(TemporaryFile(dir=folder, buffering=0)) for _ in range(count)]
        opened = stack.pop_all()
    with opened:
        yield files
