"""Shifts the owner and group IDs of all files in a folder, for a container whose users have shifted IDs on the host.

chown(2) removes the set-user-ID and set-group-ID bits and the capabilities of a program. Therefore this module sets
these bits and capabilities again. The new capabilities are valid only in the container's user namespace
(capabilities(7), version 3).
"""

import errno
import os
import stat
import struct
import time
from collections.abc import Callable
from pathlib import Path

CAPABILITIES = "security.capability"
REVISION_MASK, REVISION_2, REVISION_3 = 0xFF000000, 0x02000000, 0x03000000  # linux/capability.h
DATA_BYTES = 20  # struct vfs_cap_data: a word with revision and flags, and four words with capabilities
EXECUTABLE = 0o111
PROGRESS_S = 1.0
"""Seconds between two reports of progress while many files of a guest are changed."""


def shift_owners(folder: Path, shift: int, count: int, progress: Callable[[], object] = lambda: None) -> None:
    """Change the owners of all files and folders in the tree ``folder``, but not the owner of ``folder`` itself.

    Add ``shift`` to each owner ID and each group ID that is less than ``count``. Follow no symbolic links. ``shift``
    must be at least ``count``, so that a file with several hard links is changed only once. The caller ensures that no
    other user can change the tree. Raise OSError if an owner cannot be changed. ``progress`` is called every
    `PROGRESS_S` seconds.
    """
    reported = time.monotonic()
    for _, folders, files, descriptor in os.fwalk(folder, onerror=_raise):
        for name in (*folders, *files):
            _shift_owner(name, descriptor, shift, count)
            if time.monotonic() - reported >= PROGRESS_S:
                progress()
                reported = time.monotonic()


def _raise(error: OSError) -> None:
    raise error


def _shift_owner(name: str, folder: int, shift: int, count: int) -> None:
    status = os.stat(name, dir_fd=folder, follow_symlinks=False)
    owner, group = (number + shift if number < count else number for number in (status.st_uid, status.st_gid))
    if (owner, group) == (status.st_uid, status.st_gid):
        return
    is_program = stat.S_ISREG(status.st_mode) and bool(status.st_mode & EXECUTABLE)
    path = f"/proc/self/fd/{folder}/{name}"  # os.getxattr accepts no descriptor of a folder
    capabilities = _read_capabilities(path) if is_program else None
    os.chown(name, owner, group, dir_fd=folder, follow_symlinks=False)
    if is_program and status.st_mode & (stat.S_ISUID | stat.S_ISGID):
        os.chmod(name, stat.S_IMODE(status.st_mode), dir_fd=folder)
    if capabilities is not None:
        os.setxattr(path, CAPABILITIES, _confine_capabilities(capabilities, shift))


def _read_capabilities(path: str) -> bytes | None:
    try:
        return os.getxattr(path, CAPABILITIES, follow_symlinks=False)
    except OSError as error:
        if error.errno not in {errno.ENODATA, errno.EOPNOTSUPP}:
            raise
        return None


def _confine_capabilities(capabilities: bytes, root: int) -> bytes:
    """Convert capabilities of version 2 to version 3, and return capabilities of other versions unchanged.

    The converted capabilities are valid only in the user namespace whose user 0 is the host's ID ``root``.
    """
    (revision,) = struct.unpack_from("<I", capabilities)
    if revision & REVISION_MASK != REVISION_2:
        return capabilities
    return (
        struct.pack("<I", revision & ~REVISION_MASK | REVISION_3) + capabilities[4:DATA_BYTES] + struct.pack("<I", root)
    )
