"""Files on the service's host: token files that only their owner can read, and the database file.

An administrator runs ``sbf token create`` as root, often before the service's first start. A database file that belongs
to root could not be opened by the service.
"""

import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TextIO

from sqlalchemy import make_url

from virtcloud.model.errors import BadInput

PRIVATE_MODE = 0o600


@contextmanager
def private_file(path: Path) -> Iterator[TextIO]:
    """Open a file that replaces ``path`` when the block succeeds. The file has mode 0600 from its creation on.

    Raise BadInput when the file cannot be written. When the block fails, ``path`` is unchanged.
    """
    fresh = path.with_name(f".{path.name}.new")
    try:
        fresh.unlink(missing_ok=True)
        with os.fdopen(os.open(fresh, os.O_WRONLY | os.O_CREAT | os.O_EXCL, PRIVATE_MODE), "w") as opened:
            yield opened
        fresh.replace(path)
    except OSError as error:
        raise BadInput(f"token file {path}: cannot be written: {error.strerror}") from error
    finally:
        with suppress(OSError):
            fresh.unlink(missing_ok=True)


def ensure_database_file(database: str) -> None:
    """If root runs this process, create a missing SQLite file ``database`` for the owner of its folder. Idempotent.

    SQLite creates further files beside the database for the owner of the database file. Raise BadInput for a missing
    folder.
    """
    file = _sqlite_file(database)
    if file is None or os.geteuid() != 0:
        return
    fresh = file.with_name(f".{file.name}.new")
    try:
        fresh.unlink(missing_ok=True)  # left by a process that was killed
        if file.exists():
            return
        owner = file.parent.stat()
        fresh.touch(mode=PRIVATE_MODE, exist_ok=False)
        os.chown(fresh, owner.st_uid, owner.st_gid)
        with suppress(FileExistsError):  # the service created the file first
            file.hardlink_to(fresh)
        fresh.unlink()
    except OSError as error:
        raise BadInput(
            f"database {file}: expected a folder to create it in, got: {error.strerror}; start the service once, which "
            "creates its folder (systemctl start virtcloud-sbf), or run this command as the service's user"
        ) from error


def _sqlite_file(database: str) -> Path | None:
    address = make_url(database)
    named = address.get_backend_name() == "sqlite" and address.database not in {None, "", ":memory:"}
    return Path(str(address.database)) if named and "uri" not in address.query else None
