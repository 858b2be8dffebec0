"""Files of the agent: atomic writes that survive a crash, and the translation of OSError into Refused."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from virtcloud.model.errors import Refused


def write_durably(path: Path, content: bytes, mode: int = 0o600, *, sync_folder: bool = True) -> None:
    """Replace a file atomically. After a crash, the file has its former content or ``content``.

    Without ``sync_folder``, it may still have its former content until another file of the folder is written durably.
    Raise OSError if the file cannot be written.
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
    """Remove a file. The file stays removed after a crash. An absent file raises no error.

    Raise OSError if the file cannot be removed.
    """
    path.unlink(missing_ok=True)
    _sync_folder(path.parent)


def describe_os_error(error: OSError) -> str:
    """Return the error's message, and the path of the file if the error contains a path."""
    return f"{error.strerror or error}" + (f" ({error.filename})" if error.filename else "")


@contextmanager
def refuse_os_errors(action: str) -> Iterator[None]:
    """Translate an OSError within the block to Refused with the message "cannot ``action``: …"."""
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
