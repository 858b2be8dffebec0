"""Files on the service's host: token files that only their owner can read, the database file, lock files and folders.

Root can run ``sbf token create`` or ``sbf prune`` before the service's first start. These commands must not leave files
or folders of root, which the service could not use.
"""

import errno
import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO, TextIO

from sbf_service.database_address import parse_address
from virtcloud.model.errors import BadInput

PRIVATE_MODE = 0o600
FOLDER_MODE = 0o700


@contextmanager
def private_file(path: Path) -> Iterator[TextIO]:
    """Open a new file that is renamed to ``path`` when the ``with`` block succeeds. The file always has mode 0600.

    Raise BadInput when the file cannot be written or ``path`` exists: the token in an existing file would remain valid.
    """
    new = path.with_name(f".{path.name}.new")
    try:
        if path.exists():
            raise BadInput(
                f"token file {path}: expected a new file, but the file exists; a token in this file remains valid "
                "until the token is revoked: name another file, or revoke that token (virtcloud token revoke) and "
                "remove the file"
            )
        new.unlink(missing_ok=True)
        with os.fdopen(os.open(new, os.O_WRONLY | os.O_CREAT | os.O_EXCL, PRIVATE_MODE), "w") as file:
            yield file
        new.replace(path)
    except OSError as error:
        raise BadInput(f"token file {path}: cannot be written: {error.strerror}; choose another file") from error
    finally:
        with suppress(OSError):
            new.unlink(missing_ok=True)


def ensure_database_file(database: str) -> None:
    """Create the SQLite file of a database URL if root runs this process and the file is missing. Idempotent.

    The file and SQLite's additional files get the owner of the folder. Raise BadInput when the file cannot be created.
    """
    file = _sqlite_file(database)
    if file is None or os.geteuid() != 0:
        return
    new = file.with_name(f".{file.name}.new")
    try:
        new.unlink(missing_ok=True)  # a killed process may have left this file behind
        if file.exists():
            return
        owner = file.parent.stat()
        new.touch(mode=PRIVATE_MODE, exist_ok=False)
        os.chown(new, owner.st_uid, owner.st_gid)
        with suppress(FileExistsError):  # the service may have created the file in the meantime
            file.hardlink_to(new)
        new.unlink()
    except OSError as error:
        raise BadInput(
            f"database {file}: cannot be created: {error.strerror}; start the service once, which creates the folder "
            "(systemctl start virtcloud-sbf), or run this command as the service's user"
        ) from error


def open_lock_file(path: Path, mode: int) -> IO[bytes]:
    """Open a lock file, which the caller must close. Raise OSError if the file cannot be opened or created.

    Create a missing file with ``mode``, which must exclude other users: a user who can lock the file can prevent SBF's
    start. Limit the mode of an existing file to ``mode``, because version 0.2.0 created the file for all users. If root
    runs this process, the file gets the owner of the folder.
    """
    file = os.fdopen(os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW, mode), "rb+")
    try:
        found = os.fstat(file.fileno())
        if os.geteuid() in {0, found.st_uid}:
            os.fchmod(file.fileno(), found.st_mode & mode)
        give_to_owner_of(path.parent, file.fileno())
    except OSError:
        file.close()
        raise
    return file


def give_to_owner_of(folder: Path, descriptor: int) -> None:
    """Change the owner of an open file to the owner of ``folder``, if root runs this process.

    The service's user must be able to open the file later.
    """
    if os.geteuid() == 0:
        owner = folder.stat()
        os.fchown(descriptor, owner.st_uid, owner.st_gid)


def ensure_private_folder(folder: Path) -> None:
    """Create a folder and its missing parents with mode 0700. Idempotent. Raise OSError if a folder cannot be created.

    If root runs this process, a folder of root gets the owner of its parent, even if it existed before.
    """
    missing = [parent for parent in folder.parents if not parent.exists()]
    for path in (*reversed(missing), folder):
        path.mkdir(mode=FOLDER_MODE, exist_ok=True)
        if os.geteuid() == 0:
            _give_root_folder_away(path)


def _give_root_folder_away(folder: Path) -> None:
    """Change the owner of a folder of root to the owner of its parent.

    Do not follow a symbolic link: the owner of the parent could create a link to any folder of root.
    """
    try:
        descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
    except OSError as error:
        if error.errno in {errno.ENOTDIR, errno.ELOOP}:  # a symbolic link of an administrator
            return
        raise
    try:
        if os.fstat(descriptor).st_uid == 0:
            parent = os.stat("..", dir_fd=descriptor)
            os.fchown(descriptor, parent.st_uid, parent.st_gid)
    finally:
        os.close(descriptor)


def try_file_lock(file: IO[bytes]) -> bool:
    """Lock a file until it is closed (flock(2)). Return False if any process, even this one, has locked it."""
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def find_write_remedy(error: OSError, folder: Path, otherwise: str) -> str:
    """Return the remedy for the administrator if SBF cannot write to a folder.

    Return ``otherwise``, unless the file system is read-only: systemd makes all folders read-only for SBF, except those
    in ReadWritePaths (ProtectSystem=strict).
    """
    if error.errno != errno.EROFS:
        return otherwise
    return (
        f"add the lines '[Service]' and 'ReadWritePaths={folder}' with 'systemctl edit virtcloud-sbf', create the "
        f"folder if it is missing (install -d -o virtcloud -m 700 {folder}), and restart SBF; or mount the file system "
        "writable"
    )


def synchronize_folder(folder: Path) -> None:
    """Write a folder's entries to the disk, so that a new file survives a power failure."""
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _sqlite_file(database: str) -> Path | None:
    address = parse_address(database)
    is_file = address.get_backend_name() == "sqlite" and address.database not in {None, "", ":memory:"}
    return Path(str(address.database)) if is_file and "uri" not in address.query else None
