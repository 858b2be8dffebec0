"""A job's folder, whose files only the job's user may read. All operations are idempotent.

Each folder is a separate tmpfs, whose size is limited, and which the agent can remove in one step. The agent writes the
files while only root can enter the folder, and then makes the job's user the folder's owner. Afterwards, the agent does
not write to the folder. So the agent never writes through a path that a user can change, such as a symbolic link.

The parent folder, which belongs to root, contains a digest of each complete folder.
"""

import ctypes
import os
import pwd
from collections.abc import Mapping
from hashlib import sha256
from pathlib import Path
from typing import Protocol

from virtcloud.agent import log
from virtcloud.agent.files import refuse_os_errors
from virtcloud.agent.network.names import file_name
from virtcloud.agent.tree_removal import check_not_blocked, remove_tree
from virtcloud.model.errors import Refused

ROOT_MODE = 0o711  # users can enter the folder, but not list it
FOLDER_MODE, FILE_MODE = 0o500, 0o600  # the user's ssh adds host keys to the file known_hosts
COMPLETE_PREFIX, NEW_PREFIX, OLD_PREFIX = ".made-", ".new-", ".old-"  # no cluster's key begins with a dot
USER_BYTES, USER_FILES, PAGE = 1 << 18, 32, 4096
"""The maximum numbers of bytes and of files that a user can add to the folder. ssh adds known hosts and sockets. A
tmpfs stores each file in whole pages of ``PAGE`` bytes.
"""
REMOVE_TIMEOUT_S = 60.0
"""Maximum duration of a removal in seconds. The thread of `JobRemovals` removes folders.

The agent ends if this thread reports no progress for `MAX_REMOVAL_S` (`removals`), which must be much longer.
"""
MS_NOSUID, MS_NODEV, MS_NOEXEC = 2, 4, 8  # linux/mount.h
MNT_DETACH, UMOUNT_NOFOLLOW = 2, 8


class FileSystemMounts(Protocol):
    """The mount operations that jobs' folders need."""

    def mounted(self, path: Path) -> bool:
        """Return whether a file system is mounted at ``path``."""

    def mount(self, path: Path, size: int, files: int) -> None:
        """Mount an empty file system that only root may enter. Raise OSError if the kernel refuses the mount.

        The file system can contain at most ``size`` bytes and ``files`` files.
        """

    def unmount(self, path: Path) -> None:
        """Detach the file system, even if processes use its files. Its content is lost.

        Raise OSError if the kernel refuses.
        """


class TmpfsMounts:
    """Mounts of tmpfs (tmpfs(5)) in the mount namespace of this process.

    A tmpfs has a maximum number of bytes and files, and is removed by detaching the mount. So neither deep folders nor
    open files prevent the removal.
    """

    def mounted(self, path: Path) -> bool:
        """Return whether ``path`` and its parent are on different file systems. Follow no symbolic link."""
        try:
            return path.lstat().st_dev != path.parent.stat().st_dev
        except FileNotFoundError:
            return False

    def mount(self, path: Path, size: int, files: int) -> None:
        """Mount a tmpfs."""
        options = f"size={size},nr_inodes={files},mode=0700".encode()
        flags = MS_NOSUID | MS_NODEV | MS_NOEXEC
        _check_result(path, _libc().mount(b"tmpfs", os.fsencode(path), b"tmpfs", ctypes.c_ulong(flags), options))

    def unmount(self, path: Path) -> None:
        """Detach a tmpfs."""
        _check_result(path, _libc().umount2(os.fsencode(path), MNT_DETACH | UMOUNT_NOFOLLOW))


class JobFolders:
    """The folders of all jobs on this host, below ``root``."""

    def __init__(self, root: Path, mounts: FileSystemMounts) -> None:
        """Create an object for the jobs' folders below ``root``. If ``root`` is missing, `ensure` creates it."""
        self._root = root
        self._mounts = mounts

    def path(self, key: str, prefix: str = "") -> Path:
        """Return the path of a job's folder. ``prefix`` precedes the last component."""
        return self._root / f"{prefix}{file_name(key)}"

    def ensure(self, key: str, user: str, files: Mapping[str, str]) -> Path:
        """Create the folder of a job with these files. Return its path.

        Raise Refused if the user has no account on this host, or the folder cannot be created.

        A complete folder for the same files and user stays unchanged, including the files that the user has added.
        """
        account, path = find_account(user), self.path(key)
        with refuse_os_errors(f"create the job's folder {path}"):
            self._ensure_root()
            if not self.is_complete(key, user, files):
                self._remove(key)
                self._fill(path, files, account)
                self.path(key, COMPLETE_PREFIX).write_text(_digest(account, files))
        return path

    def is_complete(self, key: str, user: str, files: Mapping[str, str]) -> bool:
        """Return whether the folder of a job was created for these files and this user."""
        record = self.path(key, COMPLETE_PREFIX)
        with refuse_os_errors(f"read the record of the job's folder {self.path(key)}"):
            is_created = self._mounts.mounted(self.path(key)) and record.exists()
            return is_created and record.read_text() == _digest(find_account(user), files)

    def ensure_none(self, key: str) -> None:
        """Remove the folder of a job if it exists. Raise Refused if the folder cannot be removed."""
        with refuse_os_errors(f"remove the job's folder {self.path(key)}"):
            self._remove(key)

    def _ensure_root(self) -> None:
        self._root.mkdir(parents=True, exist_ok=True)
        self._root.chmod(ROOT_MODE)

    def _fill(self, path: Path, files: Mapping[str, str], account: pwd.struct_passwd) -> None:
        path.mkdir(mode=0o700)
        size = sum(PAGE * (1 + len(text.encode()) // PAGE) for text in files.values())
        self._mounts.mount(path, size + USER_BYTES, len(files) + USER_FILES)
        for name, text in files.items():
            _write(path / name, text, account)
        os.chown(path, account.pw_uid, account.pw_gid)
        path.chmod(FOLDER_MODE)

    def _remove(self, key: str) -> None:
        """Remove a complete or incomplete folder, even if an earlier agent version created the folder without tmpfs."""
        path = self.path(key)
        self.path(key, COMPLETE_PREFIX).unlink(missing_ok=True)
        while self._mounts.mounted(path):
            self._mounts.unmount(path)
            log.info("job_folder_removed", folder=path)
        try:
            path.rmdir()
        except FileNotFoundError:
            pass
        except OSError:
            if path.is_symlink() or not path.is_dir():
                raise
            _remove_tree(self.path(key, OLD_PREFIX))
            path.rename(self.path(key, OLD_PREFIX))
        for prefix in (NEW_PREFIX, OLD_PREFIX):
            _remove_tree(self.path(key, prefix))


def find_account(user: str) -> pwd.struct_passwd:
    """Return a user's account. Raise Refused if the user has no account on this host."""
    try:
        return pwd.getpwnam(user)
    except KeyError as error:
        raise Refused(
            f"user {user} is not known on host {os.uname().nodename}, so the job's files cannot be created; "
            f"add the user to this host's accounts (getent passwd {user} must find the user)"
        ) from error


def _digest(account: pwd.struct_passwd, files: Mapping[str, str]) -> str:
    return sha256(repr((account.pw_uid, account.pw_gid, sorted(files.items()))).encode()).hexdigest()


def _write(path: Path, text: str, account: pwd.struct_passwd) -> None:
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, 0o600)
    with os.fdopen(descriptor, "w") as file:
        file.write(text)
        os.fchown(descriptor, account.pw_uid, account.pw_gid)
        os.fchmod(descriptor, FILE_MODE)


def _remove_tree(folder: Path) -> None:
    """Remove a folder to which a user could write. The user may have removed the owner's permissions."""
    check_not_blocked(folder)
    if not folder.exists():
        return
    folder.chmod(0o700)
    os.chown(folder, os.geteuid(), os.getegid())
    remove_tree(folder, timeout_s=REMOVE_TIMEOUT_S)


def _libc() -> ctypes.CDLL:
    return ctypes.CDLL(None, use_errno=True)


def _check_result(path: Path, result: int) -> None:
    if result:
        error_number = ctypes.get_errno()
        raise OSError(error_number, os.strerror(error_number), str(path))
