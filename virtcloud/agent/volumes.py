"""File systems of their own for folders that users write to: bounded, and removed as a whole.

A tmpfs is limited in bytes and in files (tmpfs(5)). Removing it follows no path in it, so no tree that a user builds,
however deep or busy, keeps it from being removed; what a process still holds open is freed when the process ends.
"""

import ctypes
import os
from pathlib import Path
from typing import Protocol

MS_NOSUID, MS_NODEV, MS_NOEXEC = 2, 4, 8  # linux/mount.h
MNT_DETACH, UMOUNT_NOFOLLOW = 2, 8


class Volumes(Protocol):
    """What job folders need of the machine."""

    def mounted(self, place: Path) -> bool:
        """Return whether a file system of its own is at ``place``."""

    def mount(self, place: Path, size: int, files: int) -> None:
        """Mount an empty one of at most ``size`` bytes and ``files`` files, for root only; raise OSError."""

    def unmount(self, place: Path) -> None:
        """Remove it with all its content, also while it is in use; raise OSError."""


class Tmpfs:
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
        _check(place, _libc().mount(b"tmpfs", os.fsencode(place), b"tmpfs", ctypes.c_ulong(flags), options))

    def unmount(self, place: Path) -> None:
        """Detach a tmpfs."""
        _check(place, _libc().umount2(os.fsencode(place), MNT_DETACH | UMOUNT_NOFOLLOW))


def _libc() -> ctypes.CDLL:
    return ctypes.CDLL(None, use_errno=True)


def _check(place: Path, result: int) -> None:
    if result:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number), str(place))
