"""System calls that Python 3.11 lacks: unshare, setns, mount, prctl. The functions raise OSError on failure."""

import ctypes
import os
from pathlib import Path
from typing import Final

NEWNS: Final = 0x00020000
NEWCGROUP: Final = 0x02000000
NEWUTS: Final = 0x04000000
NEWIPC: Final = 0x08000000
NEWPID: Final = 0x20000000
NEWNET: Final = 0x40000000

MS_BIND: Final = 0x1000
MS_REC: Final = 0x4000
MS_PRIVATE: Final = 0x40000
PR_SET_CHILD_SUBREAPER: Final = 36

_libc = ctypes.CDLL(None, use_errno=True)


def _check(result: int, call: str) -> None:
    if result < 0:
        number = ctypes.get_errno()
        raise OSError(number, f"{call}: {os.strerror(number)}")


def unshare(flags: int) -> None:
    """Move this process into new namespaces. A new PID namespace affects only later children of this process."""
    _check(_libc.unshare(flags), "unshare")


def setns(path: str) -> None:
    """Move this process into the namespace at ``path``. A PID namespace affects only later children of this process."""
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        _check(_libc.setns(descriptor, 0), f"setns {path}")
    finally:
        os.close(descriptor)


def fork_into_new_pid_namespace() -> int:
    """Fork. The child is the first process of a new PID namespace. Return the child's process ID, or 0 in the child."""
    unshare(NEWPID)
    return _fork_and_restore()


def fork_into_pid_namespace_of(process: int) -> int:
    """Fork. The child is in the PID namespace of ``process``. Return the child's process ID, or 0 in the child."""
    setns(f"/proc/{process}/ns/pid")
    return _fork_and_restore()


def _fork_and_restore() -> int:
    pid = os.fork()
    if pid:
        setns("/proc/self/ns/pid")
    return pid


def mount(source: str, target: str, kind: str | None, flags: int = 0, data: str | None = None) -> None:
    """Mount a file system. ``data`` contains the options of the file system type."""
    result = _libc.mount(
        source.encode(),
        target.encode(),
        kind.encode() if kind else None,
        ctypes.c_ulong(flags),
        data.encode() if data else None,
    )
    _check(result, f"mount {kind or source} on {target}")


def mount_private() -> None:
    """Make all mounts of this mount namespace private, so that later mounts do not appear in other namespaces."""
    mount("none", "/", None, MS_REC | MS_PRIVATE)


def bind(source: str, target: str) -> None:
    """Bind-mount ``source`` at ``target``. Create the target if it is missing."""
    path = Path(target)
    if not path.exists():
        path.parent.mkdir(parents=True, exist_ok=True)
        if Path(source).is_dir():
            path.mkdir()
        else:
            path.touch()
    mount(source, target, None, MS_BIND)


def adopt_orphans() -> None:
    """Make this process the parent of every orphaned descendant (PR_SET_CHILD_SUBREAPER)."""
    _check(_libc.prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0), "prctl")
