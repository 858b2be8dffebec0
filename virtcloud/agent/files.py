"""Files of the agent: atomic writes that survive a power failure, and translation of OSError into Refused."""

import errno
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO

from virtcloud.model.errors import Refused

LACK_OF_FILES = frozenset({errno.EMFILE, errno.ENFILE})
"""Error numbers: this process or the host has too many open files. Such an error does not concern the file itself."""


def write_durably(path: Path, content: bytes, mode: int = 0o600, *, sync_folder: bool = True) -> None:
    """Replace a file atomically. If ``sync_folder`` is true, the new content survives a power failure.

    Otherwise, a power failure can restore the old content, until a later call has synced the folder. Raise OSError if
    the file cannot be written.
    """
    new = path.with_name(f".{path.stem}.new")
    descriptor = os.open(new, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    with os.fdopen(descriptor, "wb") as file:
        os.fchmod(descriptor, mode)
        file.write(content)
        file.flush()
        os.fsync(descriptor)
    new.rename(path)
    if sync_folder:
        _sync_folder(path.parent)


def remove_durably(path: Path) -> None:
    """Remove a file if it exists. The file does not exist after a power failure either."""
    path.unlink(missing_ok=True)
    _sync_folder(path.parent)


def write_all(file: IO[bytes], data: bytes) -> None:
    """Write all bytes to an unbuffered file, because a single write can be incomplete."""
    rest = memoryview(data)
    while rest:
        rest = rest[file.write(rest) :]


def describe_os_error(error: OSError) -> str:
    """Return the error's message, with the path if the error contains a path."""
    return f"{error.strerror or error}" + (f" ({error.filename})" if error.filename else "")


@contextmanager
def refuse_os_errors(action: str) -> Iterator[None]:
    """Translate an OSError within the block into Refused with the message "cannot ``action``: …"."""
    try:
        yield
    except OSError as error:
        raise Refused(f"cannot {action}: {describe_os_error(error)}") from error


def _sync_folder(folder: Path) -> None:
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
