"""Safe access to the files in a container's root. The image's author and the guest control these files.

The kernel resolves each path as if the container's root were the root directory (openat2(2), RESOLVE_IN_ROOT). A file
is written as a new file and then renamed, so the agent never opens a device, a FIFO or a file with several hard links
for writing. The owners of new files are within the guest's range of IDs.
"""

import ctypes
import errno
import os
import secrets
import stat
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from fnmatch import fnmatch
from pathlib import Path
from typing import Final

from virtcloud.agent.guests.id_ranges import IDS_PER_GUEST

OPENAT2: Final = 437  # a system call: the same number on all architectures
RESOLVE_NO_MAGICLINKS, RESOLVE_IN_ROOT = 0x02, 0x10  # linux/openat2.h
MAX_READ: Final = 1 << 20
RENAMES_S = 1.0
"""Time limit in seconds for attempts to open a file while processes on this machine, including guests, rename files."""
FOLDER_MODE, FILE_MODE, ACCESS = 0o755, 0o644, 0o777


@dataclass(frozen=True, slots=True)
class GuestRoot:
    """A container's root on the host.

    The guest may change everything below ``folder``. An ID n inside the guest is the ID n + ``id_shift`` on the host.
    """

    folder: Path
    id_shift: int


class _OpenHow(ctypes.Structure):
    """``struct open_how`` of linux/openat2.h."""

    _fields_ = (("flags", ctypes.c_uint64), ("mode", ctypes.c_uint64), ("resolve", ctypes.c_uint64))


class RootedFiles:
    """Reads and writes files in a container's root.

    Paths are relative to the root. Each argument ``owner`` is a user ID inside the guest.

    If the kernel refuses an access, `read_link` and `has_systemd` report that there is no link. The other methods raise
    OSError. Methods that create a file raise ValueError for an owner outside the guest's range.
    """

    def __init__(self, root: GuestRoot) -> None:
        """Create an object for the files of ``root``."""
        self._root = root

    def exists(self, path: str) -> bool:
        """Return whether a file or folder exists at a path in the root."""
        return self._read_status(path) is not None

    def read(self, path: str) -> str | None:
        """Return the content of a file, or None if the file is absent.

        Raise OSError if the file is not a regular file, or is larger than `MAX_READ` bytes.
        """
        try:
            with self._opened(path, os.O_PATH) as descriptor:
                return _read_regular_file(descriptor, path)
        except (FileNotFoundError, NotADirectoryError):
            return None

    def write(self, path: str, content: str, mode: int = FILE_MODE, owner: int = 0) -> None:
        """Replace a file atomically. Create its folder if necessary.

        A file with this content is not written again, so that a guest whose disk is full can start.
        """
        if self._contains(path, content):
            return
        with self._new_name(path) as (folder, new):
            _write_new(new, folder, content, (self._on_host(owner), self._on_host(owner)), mode)

    def append_line(self, path: str, line: str, mode: int = FILE_MODE) -> None:
        """Append a line to a file, unless the file contains the line. Keep the file's owner and mode.

        If the file is absent, create the file with ``mode``.
        """
        lines = (self.read(path) or "").splitlines()
        if line in lines:
            return
        former = self._read_status(path)
        with self._new_name(path) as (folder, new):
            text = "".join(f"{one}\n" for one in (*lines, line))
            owner, group = (former.st_uid, former.st_gid) if former else (self._on_host(0), self._on_host(0))
            _write_new(new, folder, text, (owner, group), stat.S_IMODE(former.st_mode) & ACCESS if former else mode)

    def write_link(self, path: str, target: str) -> None:
        """Replace the file at a path by a symbolic link to ``target``, unless the path already is this link."""
        if self.read_link(path) == target:
            return
        with self._new_name(path) as (folder, new):
            os.symlink(target, new, dir_fd=folder)
            os.chown(new, self._on_host(0), self._on_host(0), dir_fd=folder, follow_symlinks=False)

    def remove(self, path: str, pattern: str) -> None:
        """Remove the files, but not the folders, in ``path`` whose names match ``pattern``.

        Do nothing if the folder is absent.
        """
        if self.exists(path):
            with self._opened(path, os.O_RDONLY | os.O_DIRECTORY) as folder:
                for name in os.listdir(folder):  # noqa: PTH208 - a descriptor
                    if fnmatch(name, pattern) and not _is_folder(name, folder):
                        os.unlink(name, dir_fd=folder)

    def ensure_folder(self, path: str, mode: int = FOLDER_MODE, owner: int = 0) -> None:
        """Create a folder with this owner, unless the folder exists.

        The guest's root user owns missing parent folders, which are also created.
        """
        if self.exists(path):
            return
        with self._new_name(path) as (folder, new):
            os.mkdir(new, 0o700, dir_fd=folder)
            descriptor = os.open(new, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=folder)
            try:
                os.fchown(descriptor, self._on_host(owner), self._on_host(owner))
                os.fchmod(descriptor, mode)
            finally:
                os.close(descriptor)

    @contextmanager
    def _new_name(self, path: str) -> Iterator[tuple[int, str]]:
        """Yield a descriptor of the folder of ``path``, and an unused name in this folder.

        After the block, the file or folder with this name is renamed to ``path``. So even if the agent is killed, no
        file or folder at ``path`` has a wrong owner.
        """
        parent, _, name = path.rpartition("/")
        self.ensure_folder(parent or ".")
        new = f".virtcloud-{secrets.token_hex(8)}"
        with self._opened(parent or ".", os.O_RDONLY | os.O_DIRECTORY) as folder:
            try:
                yield folder, new
                os.rename(new, name, src_dir_fd=folder, dst_dir_fd=folder)
            except BaseException:
                _remove_if_present(new, folder)
                raise

    def _contains(self, path: str, content: str) -> bool:
        try:
            return self.read(path) == content
        except OSError:  # not a regular file, or too large
            return False

    def read_link(self, path: str) -> str | None:
        """Return the target of the symbolic link at a path, or None without a link."""
        try:
            with self._opened(path, os.O_PATH | os.O_NOFOLLOW) as descriptor:
                return os.readlink("", dir_fd=descriptor)
        except OSError:  # the path does not exist, or is no symbolic link
            return None

    def has_systemd(self) -> bool:
        """Return whether ``/sbin/init`` is a link to systemd (Debian's package systemd-sysv)."""
        return (self.read_link("sbin/init") or "").endswith("/systemd")

    def _read_status(self, path: str) -> os.stat_result | None:
        try:
            with self._opened(path, os.O_PATH) as descriptor:
                return os.fstat(descriptor)
        except (FileNotFoundError, NotADirectoryError):
            return None

    def _on_host(self, identifier: int) -> int:
        if not 0 <= identifier < IDS_PER_GUEST:
            raise ValueError(f"expected a user ID from 0 to {IDS_PER_GUEST - 1}, got {identifier}")
        return identifier + self._root.id_shift

    @contextmanager
    def _opened(self, path: str, flags: int) -> Iterator[int]:
        root = os.open(self._root.folder, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            descriptor = _open_in_root(root, path, flags)
        finally:
            os.close(root)
        try:
            yield descriptor
        finally:
            os.close(descriptor)


def _open_in_root(root: int, path: str, flags: int) -> int:
    how = _OpenHow(flags | os.O_CLOEXEC, 0, RESOLVE_IN_ROOT | RESOLVE_NO_MAGICLINKS)
    size, libc = ctypes.c_size_t(ctypes.sizeof(how)), ctypes.CDLL(None, use_errno=True)
    deadline = time.monotonic() + RENAMES_S
    while (descriptor := libc.syscall(OPENAT2, root, os.fsencode(path), ctypes.byref(how), size)) < 0:
        number = ctypes.get_errno()
        # EAGAIN: a process on this machine renamed a file while the kernel resolved "..". Guests can cause this error.
        if number != errno.EAGAIN or time.monotonic() > deadline:
            raise OSError(number, os.strerror(number), path)
    return int(descriptor)


def _write_new(name: str, folder: int, content: str, owner: tuple[int, int], mode: int) -> None:
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
    with os.fdopen(os.open(name, flags, 0o600, dir_fd=folder), "w", errors="surrogateescape") as file:
        file.write(content)
        file.flush()
        os.fchown(file.fileno(), *owner)
        os.fchmod(file.fileno(), mode)
        # The guest's next start does not write this file again, so the file must survive a power failure.
        os.fsync(file.fileno())


def _read_regular_file(descriptor: int, path: str) -> str:
    """Return the content of a regular file.

    ``descriptor`` is only a reference to the file (O_PATH): opening a device could have side effects, so the type is
    checked first.
    """
    status = os.fstat(descriptor)
    if not stat.S_ISREG(status.st_mode) or status.st_size > MAX_READ:
        raise OSError(0, f"expected a file of at most {MAX_READ} bytes", path)
    with open(f"/proc/self/fd/{descriptor}", errors="surrogateescape") as file:  # noqa: PTH123 - a descriptor
        return file.read(MAX_READ)


def _is_folder(name: str, folder: int) -> bool:
    return stat.S_ISDIR(os.stat(name, dir_fd=folder, follow_symlinks=False).st_mode)


def _remove_if_present(name: str, folder: int) -> None:
    with suppress(FileNotFoundError):
        if _is_folder(name, folder):
            os.rmdir(name, dir_fd=folder)
        else:
            os.unlink(name, dir_fd=folder)
