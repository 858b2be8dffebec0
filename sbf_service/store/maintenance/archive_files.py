"""Archive files: SBF writes rows as JSON lines into an archive file, and then deletes them from the database.

The caller derives the final name of a complete file from the first row. If SBF is killed before it deletes the rows,
the next run writes a file that begins with the same row, and thereby replaces the file.
"""

import json
import os
from collections.abc import Iterable, Mapping
from contextlib import suppress
from datetime import datetime
from pathlib import Path

from sbf_service.local_files import (
    PRIVATE_MODE,
    ensure_private_folder,
    find_write_remedy,
    give_to_owner_of,
    synchronize_folder,
)
from virtcloud.model.errors import BadInput
from virtcloud.model.values import format_utc


def write_archive(folder: Path, name: str, rows: Iterable[Mapping[str, object]]) -> Path:
    """Write rows to the file ``name`` in ``folder``, wait for the disk, and return the path.

    If root runs this process, a new folder gets the owner of its parent, and the file the owner of the folder. Raise
    BadInput, without changing an existing file, if the file cannot be written.
    """
    path, new = folder / name, folder / f".{name}.new"
    try:
        ensure_private_folder(folder)
        new.unlink(missing_ok=True)
        with os.fdopen(os.open(new, os.O_WRONLY | os.O_CREAT | os.O_EXCL, PRIVATE_MODE), "w", encoding="utf-8") as file:
            give_to_owner_of(folder, file.fileno())
            for row in rows:
                file.write(json.dumps(row, ensure_ascii=False, default=_format_value) + "\n")
            file.flush()
            os.fsync(file.fileno())
        new.replace(path)
        synchronize_folder(folder)
    except OSError as error:
        with suppress(OSError):
            new.unlink(missing_ok=True)
        remedy = find_write_remedy(error, folder, "free space, or set another folder that SBF's user can write")
        raise BadInput(
            f"retention.folder = '{folder}': {name} cannot be written: {error.strerror or error}; its rows stay in the "
            f"database: {remedy}"
        ) from error
    return path


def _format_value(value: object) -> str:
    return format_utc(value) if isinstance(value, datetime) else str(value)
