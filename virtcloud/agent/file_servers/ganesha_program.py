"""Starts NFS-Ganesha in a gateway's namespace for a network, with the network owner's rights and a new root directory.

The agent runs `main` with ``python -I -S``, so the program uses only the standard library. The steps are:

1. print ``apart`` and the process ID, and read the specification, which is one line of JSON
2. join the network namespace; without following symbolic links, open each export's folder or image file
3. mount a root directory that contains the exported folders, /usr (read-only) and few other files
4. change to the owner's IDs, keep one capability, and execute Ganesha, which keeps the process ID of step 1

The capability is CAP_DAC_READ_SEARCH, for opening files by their handles (open_by_handle_at(2)). When the process ends,
the kernel removes the mounts, because no other process is in the mount namespace.
"""

import ctypes
import os
import resource
import shutil
import subprocess
import sys
from collections.abc import Mapping, Sequence
from contextlib import suppress
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

MOUNT_INFO = Path("/proc/self/mountinfo")
CLONE_NEWNS = 0x00020000  # linux/sched.h
MS_RDONLY, MS_NOSUID, MS_NODEV, MS_NOEXEC, MS_REMOUNT = 1, 2, 4, 8, 32  # linux/mount.h
MS_BIND, MS_MOVE, MS_REC, MS_PRIVATE, MS_SLAVE = 4096, 8192, 1 << 14, 1 << 18, 1 << 19
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
FILE_FLAGS = os.O_RDWR | os.O_NOFOLLOW | os.O_CLOEXEC
PARENT_MODE, OWN_MODE = 0o755, 0o600
IMAGE_SUFFIX = ".ext4"
SEARCH_PATH = "/usr/sbin:/sbin:/usr/bin:/bin"
FILES = ("ld.so.cache", "netconfig")
LINKS = ("bin", "sbin", "lib", "lib64")
DEVICES = ("null", "urandom")
_LIBC = ctypes.CDLL(None, use_errno=True)


def main() -> None:
    """Start the server. Exit with code 1 and a message after an error."""
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
    _mount("", "/", "", MS_REC | MS_SLAVE)  # a file system that the host unmounts is unmounted here too
    folders = {export["name"]: open_export(export, spec["uid"], spec["gid"]) for export in spec["exports"]}
    _build_root(Path(spec["root"]), spec, folders)
    os.nice(NICENESS)
    for limit, value in LIMITS.items():
        resource.setrlimit(limit, (value, value))
    drop_privileges(spec["uid"], spec["gid"], (DAC_READ_SEARCH,))
    close_input()
    os.execve(spec["argv"][0], spec["argv"], {"MALLOC_ARENA_MAX": "2"})  # noqa: S606 - the agent chose the program


def open_export(export: Mapping[str, Any], uid: int, gid: int) -> int:
    """Open the folder of an export, or the image file that contains the export. Create a missing image file.

    Follow no symbolic link, because the owner could use a link to redirect the server to another folder. Raise
    ValueError if the path contains a symbolic link or cannot be opened, or if the image file cannot be created.

    With a forged handle, a client can open any file in the file system of an exported folder. Therefore raise
    ValueError if a folder is not the root of a file system. Also raise ValueError if a writable folder does not belong
    to the owner.
    """
    path = Path(export["folder"])
    try:
        parent = _open_parent(path, create=bool(export["size_mb"]))
        try:
            if export["size_mb"]:
                return _open_image(parent, f"{path.name}{IMAGE_SUFFIX}", export["size_mb"], (uid, gid))
            descriptor = os.open(path.name, FOLDER_FLAGS, dir_fd=parent)
        finally:
            os.close(parent)
    except OSError as error:
        raise ValueError(
            f"export {export['name']}: cannot open {path} (symbolic links are not followed): {error}"
        ) from error
    if find_mounted_root(descriptor) != (b"/", os.fsencode(path)):
        raise ValueError(
            f"export {export['name']}: expected {path} to be the root of a file system, got a folder of a larger file "
            "system, whose other files clients could reach too: mount a file system there, or set size_mb"
        )
    if not export["read_only"] and os.fstat(descriptor).st_uid != uid:
        raise ValueError(
            f"export {export['name']}: expected {path} to belong to user ID {uid}, got {os.fstat(descriptor).st_uid}: "
            "correct the owner of the folder"
        )
    return descriptor


def _open_parent(path: Path, *, create: bool) -> int:
    """Open the parent folder of ``path`` without following symbolic links.

    If ``create`` is true, create missing folders, and raise PermissionError if a folder above the parent folder does
    not belong to root.
    """
    descriptor = os.open("/", FOLDER_FLAGS)
    for part in path.parts[1:-1]:
        try:
            if create:
                _check_owned_by_root(descriptor, part)
                with suppress(FileExistsError):
                    os.mkdir(part, PARENT_MODE, dir_fd=descriptor)
            inner = os.open(part, FOLDER_FLAGS, dir_fd=descriptor)
        finally:
            os.close(descriptor)
        descriptor = inner
    return descriptor


def _check_owned_by_root(folder: int, name: str) -> None:
    if os.fstat(folder).st_uid != 0:
        raise PermissionError(f"expected the folder above {name} to belong to root")


def _open_image(parent: int, name: str, size_mb: int, owner: tuple[int, int]) -> int:
    _check_owned_by_root(parent, name)
    with suppress(FileNotFoundError):
        return os.open(name, FILE_FLAGS, dir_fd=parent)
    new = f".{name}.new"
    with suppress(FileNotFoundError):
        os.unlink(new, dir_fd=parent)
    descriptor = os.open(new, FILE_FLAGS | os.O_CREAT | os.O_EXCL, OWN_MODE, dir_fd=parent)
    os.ftruncate(descriptor, size_mb * MIB)
    root_owner = f"root_owner={owner[0]}:{owner[1]}"
    run_program(
        "mke2fs", "-q", "-F", "-t", "ext4", "-m", "0", "-E", root_owner, f"/proc/self/fd/{descriptor}", fd=descriptor
    )
    os.rename(new, name, src_dir_fd=parent, dst_dir_fd=parent)
    return descriptor


def run_program(*command: str, fd: int) -> None:
    """Run a program, which inherits the descriptor ``fd``. If the program fails, raise OSError with its message."""
    program = shutil.which(command[0], path=SEARCH_PATH)
    if program is None:
        raise FileNotFoundError(f"the program {command[0]} is missing")
    done = subprocess.run([program, *command[1:]], pass_fds=[fd], capture_output=True, text=True, check=False)  # noqa: S603 - mke2fs, mount
    if done.returncode:
        raise OSError(f"{command[0]}: {done.stderr.strip()}")


def find_mounted_root(descriptor: int) -> tuple[bytes, bytes]:
    """Return two paths of the mount that contains an open folder.

    The first path is the mount's root within the mounted file system. The second path is the mount point. If the kernel
    does not list the mount, both paths are empty. Source: proc(5), /proc/PID/mountinfo.
    """
    info = Path(f"/proc/self/fdinfo/{descriptor}").read_bytes()
    number = next(line.split()[1] for line in info.splitlines() if line.startswith(b"mnt_id:"))
    for line in MOUNT_INFO.read_bytes().split(b"\n"):
        fields = line.split(b" ")
        if fields[0] == number:
            return fields[3], fields[4]
    return b"", b""


def _build_root(root: Path, spec: Mapping[str, Any], folders: Mapping[str, int]) -> None:
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
        _mount_export(descriptor, root / "exports" / name, MS_RDONLY if name in spec["read_only"] else 0)
        os.close(descriptor)
    private = f"mode=700,uid={spec['uid']},gid={spec['gid']}"
    for name in ("tmp", "recovery"):
        options = f"size=1m,nr_inodes=4096,{private}"
        _mount("tmpfs", root / name, "tmpfs", MS_NOSUID | MS_NODEV | MS_NOEXEC, options)
    _mount("proc", root / "proc", "proc", MS_NOSUID | MS_NODEV | MS_NOEXEC, "subset=pid,hidepid=2")
    _mount("", root, "", MS_REMOUNT | MS_BIND | MS_RDONLY | MS_NOSUID | MS_NODEV)
    _mount("", root, "", MS_REC | MS_PRIVATE)  # later mounts of the host do not appear in the root directory
    os.chdir(root)
    _mount(".", "/", "", MS_MOVE)
    os.chroot(".")
    os.chdir("/")


def _mount_export(descriptor: int, target: Path, flags: int) -> None:
    source = Path(f"/proc/self/fd/{descriptor}")
    if source.is_dir():
        _bind(source, target, flags | MS_NOSUID | MS_NODEV | MS_NOEXEC)
        return
    options = f"loop,nosuid,nodev,noexec{',ro' if flags & MS_RDONLY else ''}"
    run_program("mount", "-t", "ext4", "-o", options, str(source.resolve()), str(target), fd=descriptor)


def _bind(source: Path, target: Path, flags: int) -> None:
    """Bind-mount ``source`` at ``target``, without the mounts below ``source``.

    A second call of mount(2) sets ``flags``: the kernel ignores them in the call that creates a bind mount.
    """
    _mount(source, target, "", MS_BIND)
    _mount("", target, "", MS_REMOUNT | MS_BIND | flags)


def _mount(source: str | Path, target: str | Path, kind: str, flags: int, options: str = "") -> None:
    words: Sequence[bytes] = [os.fsencode(word) for word in (source, target, kind)]
    result = _LIBC.mount(*words, ctypes.c_ulong(flags), options.encode())
    call(f"mount {source or 'with other flags'} on {target}", result)
