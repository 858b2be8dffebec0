"""File systems of their own for folders that users write to: bounded, and removed as a whole.

A tmpfs is limited in bytes and in files (tmpfs(5)). Removing it follows no path in it, so no tree that a user builds,
however deep or busy, keeps it from being removed; what a process still holds open is freed when the process ends.

A job's folder: files that only the job's user may read. Everything may be repeated.

A folder is a file system of its own (:mod:`virtcloud.agent.volumes`): what its user writes there fills no more than it.
It is made while root alone may enter it, and given to the user as a whole: nothing is ever written through a path that
a user can change, such as a symbolic link in a folder that is the user's own. Once it was given, it is only removed.
A file beside it, which is root's, records that it is complete and what it was made of.
"""

import ctypes
import os
import pwd
import subprocess
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from hashlib import sha256
from pathlib import Path
from typing import Protocol

from virtcloud.agent import log
from virtcloud.agent.network.names import file_name
from virtcloud.model.errors import Refused

MS_NOSUID, MS_NODEV, MS_NOEXEC = 2, 4, 8  # linux/mount.h
MNT_DETACH, UMOUNT_NOFOLLOW = 2, 8


class FileSystemMounts(Protocol):
    """What job folders need of the machine."""

    def mounted(self, place: Path) -> bool:
        """Return whether a file system of its own is at ``place``."""

    def mount(self, place: Path, size: int, files: int) -> None:
        """Mount an empty one of at most ``size`` bytes and ``files`` files, for root only; raise OSError."""

    def unmount(self, place: Path) -> None:
        """Remove it with all its content, also while it is in use; raise OSError."""


class TmpfsMounts:
    """The kernel's tmpfs, in the mount namespace of this process."""

    def mounted(self, place: Path) -> bool:
        """Return whether ``place`` is on another file system than its parent; no symbolic link is followed."""
        try:
            return place.lstat().st_dev != place.parent.stat().st_dev
        except FileNotFoundError:
            return False

    def mount(self, place: Path, size: int, files: int) -> None:
        """Mount a tmpfs."""
        options = f"size={size},nr_inodes={files},mode=0700".encode()
        flags = MS_NOSUID | MS_NODEV | MS_NOEXEC
        _check_result(place, _libc().mount(b"tmpfs", os.fsencode(place), b"tmpfs", ctypes.c_ulong(flags), options))

    def unmount(self, place: Path) -> None:
        """Detach a tmpfs."""
        _check_result(place, _libc().umount2(os.fsencode(place), MNT_DETACH | UMOUNT_NOFOLLOW))


def _libc() -> ctypes.CDLL:
    return ctypes.CDLL(None, use_errno=True)


def _check_result(place: Path, result: int) -> None:
    if result:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number), str(place))


ROOT_MODE = 0o711  # users pass through, and learn no other job's key
FOLDER_MODE, FILE_MODE = 0o500, 0o600  # the user's ssh adds to its file of known hosts
COMPLETE_PREFIX, NEW_PREFIX, OLD_PREFIX = ".made-", ".new-", ".old-"  # no key of a cluster begins with a dot
SPARE_BYTES, SPARE_FILES, PAGE = 1 << 18, 32, 4096
"""What a user may add: known hosts, control sockets of ssh."""
REMOVE_S = 60.0


class JobFolders:
    """The folders of all jobs on this machine, below ``root``."""

    def __init__(self, root: Path, volumes: FileSystemMounts) -> None:
        """Work below ``root``; it is made when first needed."""
        self._root = root
        self._volumes = volumes

    def place(self, key: str, state: str = "") -> Path:
        """Return where the folder of a job is, or its record."""
        return self._root / f"{state}{file_name(key)}"

    def ensure(self, key: str, user: str, files: Mapping[str, str]) -> Path:
        """Make the folder of a job with these files; raise Refused for a user unknown on this machine.

        A folder that was made so, by this agent or a former one, stays as it is, with what its user added.
        """
        account = find_account(user)
        place, made = self.place(key), self.place(key, COMPLETE_PREFIX)
        about = sha256(repr((account.pw_uid, account.pw_gid, sorted(files.items()))).encode()).hexdigest()
        with _refused(f"make the job's folder {place}"):
            self._ensure_root()
            if self._volumes.mounted(place) and made.exists() and made.read_text() == about:
                return place
            self._clear(key)
            self._fill(place, files, account)
            made.write_text(about)
        return place

    def ensure_none(self, key: str) -> None:
        """Remove the folder of a job; none is success."""
        with _refused(f"remove the job's folder {self.place(key)}"):
            self._clear(key)

    def _ensure_root(self) -> None:
        self._root.mkdir(parents=True, exist_ok=True)
        self._root.chmod(ROOT_MODE)

    def _fill(self, place: Path, files: Mapping[str, str], account: pwd.struct_passwd) -> None:
        place.mkdir(mode=0o700)
        size = sum(PAGE * (1 + len(text.encode()) // PAGE) for text in files.values())
        self._volumes.mount(place, size + SPARE_BYTES, len(files) + SPARE_FILES)
        for name, text in files.items():
            _write(place / name, text, account)
        os.chown(place, account.pw_uid, account.pw_gid)
        place.chmod(FOLDER_MODE)

    def _clear(self, key: str) -> None:
        """Remove a folder, whole or half made, and what an earlier version of the agent made."""
        place = self.place(key)
        self.place(key, COMPLETE_PREFIX).unlink(missing_ok=True)
        while self._volumes.mounted(place):
            self._volumes.unmount(place)
            log.info("job_folder_removed", folder=place)
        try:
            place.rmdir()
        except FileNotFoundError:
            pass
        except OSError:
            if place.is_symlink() or not place.is_dir():
                raise
            _remove_tree(self.place(key, OLD_PREFIX))
            place.rename(self.place(key, OLD_PREFIX))
        for state in (NEW_PREFIX, OLD_PREFIX):
            _remove_tree(self.place(key, state))


def find_account(user: str) -> pwd.struct_passwd:
    """Look a user up; raises Refused for one whom this machine does not know."""
    try:
        return pwd.getpwnam(user)
    except KeyError as error:
        raise Refused(
            f"user {user} is not known on this machine ({os.uname().nodename}); its job's files can belong to nobody. "
            "Let this machine know the user (getent passwd must find it)"
        ) from error


def _write(path: Path, text: str, account: pwd.struct_passwd) -> None:
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, 0o600)
    with os.fdopen(descriptor, "w") as file:
        file.write(text)
        os.fchown(descriptor, account.pw_uid, account.pw_gid)
        os.fchmod(descriptor, FILE_MODE)


def _remove_tree(folder: Path) -> None:
    """Remove a tree that a user may have built, of any depth; rm(1) follows no link and needs no stack."""
    if not folder.exists():
        return
    folder.chmod(0o700)
    os.chown(folder, os.geteuid(), os.getegid())
    argv = ["rm", "-rf", "--one-file-system", "--", str(folder)]
    try:
        done = subprocess.run(argv, capture_output=True, text=True, check=False, timeout=REMOVE_S)  # noqa: S603 - no shell
    except subprocess.TimeoutExpired as error:
        raise OSError(error.timeout, f"rm took longer than {REMOVE_S:g} s", str(folder)) from error
    if done.returncode:
        raise OSError(done.returncode, " ".join(done.stderr.split()), str(folder))


@contextmanager
def _refused(what: str) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise Refused(f"cannot {what}: {error.strerror} ({error.filename})") from error
