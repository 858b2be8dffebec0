"""Mount namespaces of tests, and a file server that never answers."""

import ctypes
import os
import select
import struct
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Final, TypeVar

T = TypeVar("T")
CLONE_NEWNS: Final = 0x20000
MS_REC, MS_PRIVATE = 0x4000, 0x40000
MNT_DETACH: Final = 2
FUSE_MAJOR, FUSE_MINOR = 7, 31
REQUEST_BYTES = 1 << 17
POLL_MS = 50
RELEASE_S: Final = 10.0
REQUEST_HEADER, ANSWER_HEADER = struct.Struct("=IIQ"), struct.Struct("=IiQ")
INIT_ANSWER = struct.pack("=IIIIHHIIHHII6I", FUSE_MAJOR, FUSE_MINOR, 0, 0, 16, 12, 1 << 16, 1, 32, *(0,) * 9)
"""The answer to FUSE's first request (struct fuse_init_out in linux/fuse.h)."""


def run_with_own_mounts(work: Callable[[], T]) -> T:
    with ThreadPoolExecutor(1, initializer=unshare_mounts) as thread:
        return thread.submit(work).result()


def unshare_mounts() -> None:
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.unshare(CLONE_NEWNS) or libc.mount(None, b"/", None, ctypes.c_ulong(MS_REC | MS_PRIVATE), None):
        raise OSError(ctypes.get_errno(), "cannot create a mount namespace")


def is_disk_released(folder: Path, start: Callable[[], object]) -> bool:
    """Mount a disk, call ``start``, and unmount the disk. Return whether the kernel then releases the disk.

    The mount is propagated to other mount namespaces, as on a host with systemd. The kernel does not release a disk
    that another mount namespace has mounted. Call this function only in a separate mount namespace.
    """
    image, disks = folder / "image", folder / "disks"
    image.touch()
    os.truncate(image, 8 << 20)
    disks.mkdir()
    _run("mke2fs", "-q", "-F", image)
    _run("mount", "-t", "tmpfs", "--make-shared", "disks", disks)
    _run("mount", "-o", "loop,X-mount.mkdir", image, disks / "disk")
    start()
    _run("umount", disks / "disk")
    deadline = time.monotonic() + RELEASE_S
    while is_used := bool(_run("losetup", "-j", image)):
        if time.monotonic() > deadline:
            break
        time.sleep(0.02)
    _run("umount", disks)
    return not is_used


def _run(*command: str | Path) -> bytes:
    return subprocess.run(command, check=True, stdout=subprocess.PIPE).stdout  # noqa: S603 - util-linux


@contextmanager
def dead_file_server(folder: Path) -> Iterator[ExitStack]:
    """Mount a file system (FUSE) on ``folder``. The file system's server receives requests and never answers.

    A process that accesses the folder hangs: not even SIGKILL ends it before the file system is closed. Enter the
    contexts of such processes into the yielded stack, which is closed after the file system. Call this function only in
    a separate mount namespace.
    """
    libc, closing = ctypes.CDLL(None, use_errno=True), threading.Event()
    server = os.open("/dev/fuse", os.O_RDWR)
    reader = threading.Thread(target=_read_requests, args=(server, closing))
    processes = ExitStack()
    try:
        options = f"fd={server},rootmode=40755,user_id=0,group_id=0,allow_other".encode()
        if libc.mount(b"dead", os.fsencode(folder), b"fuse", ctypes.c_ulong(0), options):
            raise OSError(ctypes.get_errno(), "cannot mount a file system in user space")
        _, _, first = REQUEST_HEADER.unpack_from(os.read(server, REQUEST_BYTES))
        os.write(server, ANSWER_HEADER.pack(ANSWER_HEADER.size + len(INIT_ANSWER), 0, first) + INIT_ANSWER)
        reader.start()
        try:
            yield processes
        finally:
            closing.set()
            reader.join()
    finally:
        os.close(server)  # makes the kernel answer all requests with an error
        libc.umount2(os.fsencode(folder), MNT_DETACH)
        processes.close()


def _read_requests(server: int, closing: threading.Event) -> None:
    """Receive requests. A process that waits for the answer to a received request cannot be killed."""
    requests = select.poll()
    requests.register(server, select.POLLIN)
    while not closing.is_set():
        if requests.poll(POLL_MS):
            os.read(server, REQUEST_BYTES)
