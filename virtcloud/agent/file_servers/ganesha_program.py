"""Starts NFS-Ganesha in the gateway's namespace of a network, with the rights of the owner and a root of its own.

The agent runs `main` with ``python -I -S``. The program uses only the standard library. It performs these steps:

1. print ``apart`` and the process ID, and read the specification, which is one line of JSON
2. join the network namespace, and open the exported folders, without symbolic links, which owners could make
3. build a root that contains the exported folders, /usr (read-only) and little else
4. change to the owner's IDs, keep one capability, and execute Ganesha, which keeps the process ID

The capability is CAP_DAC_READ_SEARCH, by which the server opens files by their handles (open_by_handle_at(2)). Mounts
end with the process, because its mount namespace has no name.
"""

import ctypes
import os
import resource
import stat
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from virtcloud.agent.host_services.server_isolation import (
    call,
    close_input,
    drop_privileges,
    fork_from_agent,
    join_network_namespace,
    read_specification,
)

CLONE_NEWNS = 0x00020000  # linux/sched.h
MS_RDONLY, MS_NOSUID, MS_NODEV, MS_NOEXEC, MS_REMOUNT = 1, 2, 4, 8, 32  # linux/mount.h
MS_BIND, MS_MOVE, MS_REC, MS_PRIVATE = 4096, 8192, 1 << 14, 1 << 18
DAC_READ_SEARCH = 2  # linux/capability.h
MIB = 1 << 20
LIMITS = {
    resource.RLIMIT_CORE: 0,
    resource.RLIMIT_NOFILE: 4096,
    resource.RLIMIT_STACK: MIB,
    resource.RLIMIT_DATA: 512 * MIB,
}
NICENESS = 5
FOLDER_FLAGS = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
PARENT_MODE, OWN_MODE = 0o755, 0o700
FILES = ("ld.so.cache", "netconfig")
LINKS = ("bin", "sbin", "lib", "lib64")
DEVICES = ("null", "urandom")
_LIBC = ctypes.CDLL(None, use_errno=True)


def main() -> None:
    """Start the server. Exit if the agent ended before it sent the specification, or print the error of a step."""
    try:
        _start()
    except (OSError, ValueError) as error:
        sys.exit(str(error))


def _start() -> None:
    os.dup2(1, 2)
    fork_from_agent()
    spec = read_specification()
    join_network_namespace(spec["namespace"])
    call("create a mount namespace", _LIBC.unshare(CLONE_NEWNS))
    _mount("", "/", "", MS_REC | MS_PRIVATE)
    folders = {export["name"]: open_folder(export, spec["uid"], spec["gid"]) for export in spec["exports"]}
    _build_root(Path(spec["root"]), spec, folders)
    os.nice(NICENESS)
    for limit, value in LIMITS.items():
        resource.setrlimit(limit, (value, value))
    drop_privileges(spec["uid"], spec["gid"], (DAC_READ_SEARCH,))
    close_input()
    os.execve(spec["argv"][0], spec["argv"], {"MALLOC_ARENA_MAX": "2"})  # noqa: S606 - the agent names Ganesha


def open_folder(export: Mapping[str, Any], uid: int, gid: int) -> int:
    """Open an exported folder, and create it if the export says so. Raise ValueError if the owner may not have it.

    No component of the path may be a symbolic link: an owner could lead the server to another folder.
    """
    path = export["folder"]
    descriptor = os.open("/", FOLDER_FLAGS)
    parts = path.strip("/").split("/")
    for number, part in enumerate(parts, 1):
        try:
            inner = _open_component(descriptor, part, export, (uid, gid) if number == len(parts) else None)
        except OSError as error:
            raise ValueError(f"export {export['name']}: cannot open {path} ({part}): {error.strerror}") from error
        finally:
            os.close(descriptor)
        descriptor = inner
    if not export["read_only"] and os.fstat(descriptor).st_uid != uid:
        raise ValueError(
            f"export {export['name']}: expected {path} to belong to user ID {uid}, got {os.fstat(descriptor).st_uid}: "
            "correct the owner of the folder"
        )
    return descriptor


def _open_component(parent: int, name: str, export: Mapping[str, Any], owner: tuple[int, int] | None) -> int:
    """Open a folder in ``parent``. ``owner`` has the IDs of the last folder's owner; other folders belong to root."""
    try:
        if stat.S_ISLNK(os.stat(name, dir_fd=parent, follow_symlinks=False).st_mode):
            raise ValueError(f"export {export['name']}: expected no symbolic link in {export['folder']}, got {name}")
        return os.open(name, FOLDER_FLAGS, dir_fd=parent)
    except FileNotFoundError:
        if not export["create"]:
            raise
    if os.fstat(parent).st_uid != 0:
        raise ValueError(f"export {export['name']}: expected root to own the folder above {name}, to create it there")
    os.mkdir(name, OWN_MODE if owner else PARENT_MODE, dir_fd=parent)
    descriptor = os.open(name, FOLDER_FLAGS, dir_fd=parent)
    if owner:
        os.fchown(descriptor, *owner)
    return descriptor


def _build_root(root: Path, spec: Mapping[str, Any], folders: Mapping[str, int]) -> None:
    """Mount the root of the server on a folder, and make it this process's root."""
    _mount("tmpfs", root, "tmpfs", MS_NOSUID | MS_NODEV, "size=256k,mode=755")
    for name in ("usr", "etc", "proc", "dev", "exports", "tmp", "run", "recovery"):
        (root / name).mkdir()
    for name in LINKS:
        if Path("/", name).is_symlink():
            (root / name).symlink_to(f"usr/{name}")
        elif Path("/", name).is_dir():
            (root / name).mkdir()
            _bind(Path("/", name), root / name, MS_RDONLY | MS_NOSUID | MS_NODEV)
    _bind(Path("/usr"), root / "usr", MS_RDONLY | MS_NOSUID | MS_NODEV)
    for name in FILES:
        if Path("/etc", name).exists():
            (root / "etc" / name).write_bytes(Path("/etc", name).read_bytes())
    (root / "etc/mtab").symlink_to("../proc/self/mounts")
    (root / "etc/hosts").write_text("127.0.0.1 localhost\n")
    (root / spec["config"].lstrip("/")).write_text(spec["text"])
    for name in DEVICES:
        (root / "dev" / name).touch()
        _bind(Path("/dev", name), root / "dev" / name, MS_NOSUID | MS_NOEXEC)
    for name, descriptor in folders.items():
        (root / "exports" / name).mkdir()
        flags = MS_RDONLY if name in spec["read_only"] else 0
        _bind(Path(f"/proc/self/fd/{descriptor}"), root / "exports" / name, flags | MS_NOSUID | MS_NODEV | MS_NOEXEC)
        os.close(descriptor)
    private = f"mode=700,uid={spec['uid']},gid={spec['gid']}"
    for name in ("tmp", "recovery"):
        options = f"size=1m,nr_inodes=4096,{private}"
        _mount("tmpfs", root / name, "tmpfs", MS_NOSUID | MS_NODEV | MS_NOEXEC, options)
    _mount("proc", root / "proc", "proc", MS_NOSUID | MS_NODEV | MS_NOEXEC, "subset=pid,hidepid=2")
    _mount("", root, "", MS_REMOUNT | MS_BIND | MS_RDONLY | MS_NOSUID | MS_NODEV)
    os.chdir(root)
    _mount(".", "/", "", MS_MOVE)
    os.chroot(".")
    os.chdir("/")


def _bind(source: Path, target: Path, flags: int) -> None:
    """Bind a file or folder, without the mounts in it. The second call sets the flags, which the first one ignores."""
    _mount(source, target, "", MS_BIND)
    _mount("", target, "", MS_REMOUNT | MS_BIND | flags)


def _mount(source: str | Path, target: str | Path, kind: str, flags: int, options: str = "") -> None:
    words: Sequence[bytes] = [os.fsencode(word) for word in (source, target, kind)]
    result = _LIBC.mount(*words, ctypes.c_ulong(flags), options.encode())
    call(f"mount {source or 'with other flags'} on {target}", result)
