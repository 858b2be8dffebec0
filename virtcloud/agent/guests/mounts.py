"""Mounts of guests' roots: overlays, mounts with shifted owners, and file systems in image files (mount(2)).

All mounts are made in the calling thread's mount namespace. libvirt must use the same namespace. The functions raise
OSError if the kernel refuses a mount.
"""

import ctypes
import os
import re
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import Final

MS_NODEV: Final = 4  # linux/mount.h
MNT_DETACH, UMOUNT_NOFOLLOW = 2, 8
OPEN_TREE, MOVE_MOUNT, MOUNT_SETATTR = 428, 429, 442  # system calls: the same numbers on all architectures
OPEN_TREE_CLONE, AT_EMPTY_PATH, AT_FDCWD, MOVE_MOUNT_F_EMPTY_PATH = 1, 0x1000, -100, 4
MOUNT_ATTR_RDONLY, MOUNT_ATTR_IDMAP = 0x1, 0x00100000
MOUNT_INFO = Path("/proc/thread-self/mountinfo")
COMMAND_TIMEOUT_S = 60.0
NAMESPACE_TIMEOUT_S = 10.0
_ESCAPED = re.compile(rb"\\([0-3][0-7]{2})")


class _MountAttributes(ctypes.Structure):
    """``struct mount_attr`` of linux/mount.h."""

    _fields_ = (
        ("attr_set", ctypes.c_uint64),
        ("attr_clr", ctypes.c_uint64),
        ("propagation", ctypes.c_uint64),
        ("userns_fd", ctypes.c_uint64),
    )


def mount_overlay(lower: Path, upper: Path, work: Path, target: Path, *options: str) -> None:
    """Mount an overlay on ``target``. Device files in the overlay cannot be opened."""
    with opened_folder(lower) as lower_fd, opened_folder(upper) as upper_fd, opened_folder(work) as work_fd:
        # descriptors instead of paths: colons and commas in a path would separate options
        folders = ("lowerdir", lower_fd), ("upperdir", upper_fd), ("workdir", work_fd)
        words = [*(f"{name}=/proc/thread-self/fd/{descriptor}" for name, descriptor in folders), *options]
        _check(
            target,
            _libc().mount(
                b"overlay", os.fsencode(target), b"overlay", ctypes.c_ulong(MS_NODEV), ",".join(words).encode()
            ),
        )


@contextmanager
def mounted_with_shifted_owners(source: Path, target: Path, shift: int, count: int) -> Iterator[None]:
    """Mount ``source`` read-only on ``target`` within the block. Owner n appears as n + ``shift``, if n < ``count``.

    Raise OSError with EINVAL if the file system of ``source`` does not support idmapped mounts.
    """
    with opened_folder(source) as source_fd, user_namespace(shift, count) as namespace:
        flags = OPEN_TREE_CLONE | AT_EMPTY_PATH | os.O_CLOEXEC
        tree = _check(source, _libc().syscall(OPEN_TREE, source_fd, b"", flags))
        try:
            attributes = _MountAttributes(MOUNT_ATTR_IDMAP | MOUNT_ATTR_RDONLY, 0, 0, namespace)
            size = ctypes.c_size_t(ctypes.sizeof(attributes))
            _check(source, _libc().syscall(MOUNT_SETATTR, tree, b"", AT_EMPTY_PATH, ctypes.byref(attributes), size))
            _check(
                target,
                _libc().syscall(MOVE_MOUNT, tree, b"", AT_FDCWD, os.fsencode(target), MOVE_MOUNT_F_EMPTY_PATH),
            )
        finally:
            os.close(tree)
    try:
        yield
    finally:
        unmount(target)


def mount_file_system(image: Path, target: Path) -> None:
    """Mount the file system in the file ``image`` on ``target``. The kernel must support loop devices."""
    _run("mount", "-o", "loop,nodev", "--", str(image), str(target))


def create_file_system(image: Path, size_mb: int) -> None:
    """Create a sparse file with an empty ext4 file system of ``size_mb`` MiB."""
    with image.open("wb") as file:
        os.fchmod(file.fileno(), 0o600)
        file.truncate(size_mb << 20)
    _run("mkfs.ext4", "-q", "-F", "-m", "0", "-E", "lazy_itable_init=1,lazy_journal_init=1", "--", str(image))


def sync_file_system(folder: Path) -> None:
    """Write all changed data of the file system of ``folder`` to the disk (syncfs(2))."""
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
    try:
        _check(folder, _libc().syncfs(descriptor))
    finally:
        os.close(descriptor)


def list_mounts(folder: Path) -> list[Path]:
    """Return the mount points below ``folder``, in the order of mounting. A path may contain any bytes.

    The paths begin with ``folder``, even if ``folder`` contains symbolic links, which the kernel resolves in its list.
    """
    prefix = os.fsencode(os.path.realpath(folder)) + b"/"
    lines = MOUNT_INFO.read_bytes().split(b"\n")
    points = (_unescape(line.split(b" ", 5)[4]) for line in lines if line)
    return [folder / os.fsdecode(point.removeprefix(prefix)) for point in points if point.startswith(prefix)]


def _unescape(point: bytes) -> bytes:
    return _ESCAPED.sub(lambda match: bytes([int(match.group(1), 8)]), point) if b"\\" in point else point


def unmount(target: Path) -> None:
    """Detach the mount at ``target``, even if programs use the mount's files."""
    _check(target, _libc().umount2(os.fsencode(target), MNT_DETACH | UMOUNT_NOFOLLOW))


def unmount_below(folder: Path) -> None:
    """Detach all mounts below ``folder``. Raise OSError if a mount remains."""
    for path in reversed(list_mounts(folder)):
        unmount(path)


@contextmanager
def user_namespace(shift: int, count: int) -> Iterator[int]:
    """Yield a descriptor of a user namespace whose IDs 0 to ``count`` - 1 are the host's IDs from ``shift`` on."""
    pipe, argv = subprocess.PIPE, ["unshare", "--user", "cat"]
    process = subprocess.Popen(argv, stdin=pipe, stdout=subprocess.DEVNULL, stderr=pipe, text=True)  # noqa: S603 - no shell
    try:
        own, folder = Path("/proc/self/ns/user").readlink(), Path(f"/proc/{process.pid}")
        deadline = time.monotonic() + NAMESPACE_TIMEOUT_S
        while (folder / "ns/user").readlink() == own:
            if time.monotonic() > deadline or process.poll() is not None:
                process.kill()
                error = process.stderr.read().strip() if process.stderr else ""
                raise OSError(0, f"cannot create a user namespace: {error or 'no answer'}")
            time.sleep(0.001)
        for name in ("uid_map", "gid_map"):
            (folder / name).write_text(f"0 {shift} {count}")
        descriptor = os.open(folder / "ns/user", os.O_RDONLY | os.O_CLOEXEC)
        try:
            yield descriptor
        finally:
            os.close(descriptor)
    finally:
        process.communicate()


@contextmanager
def opened_folder(folder: Path) -> Iterator[int]:
    """Yield a descriptor of a folder. Raise OSError for a symbolic link."""
    descriptor = os.open(folder, os.O_PATH | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    try:
        yield descriptor
    finally:
        os.close(descriptor)


def _run(*argv: str) -> None:
    try:
        result = subprocess.run(argv, capture_output=True, text=True, check=False, timeout=COMMAND_TIMEOUT_S)  # noqa: S603
    except subprocess.TimeoutExpired as error:
        raise OSError(0, f"{argv[0]} took longer than {COMMAND_TIMEOUT_S:g} s") from error
    if result.returncode:
        raise OSError(result.returncode, " ".join(result.stderr.split()) or f"{argv[0]} failed")


@cache
def _libc() -> ctypes.CDLL:
    return ctypes.CDLL(None, use_errno=True)


def _check(path: Path, result: int) -> int:
    if result < 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number), str(path))
    return result
