"""Starts a gateway's sshd without the gateway's privileges, in mount and PID namespaces of its own.

The agent runs `main` with ``python -I -S``, so the program uses only the standard library. The steps are:

1. create the namespaces, and print ``apart`` and the process ID of the PID namespace's first process. If this process
   is killed, the kernel kills all processes of the namespace, and all connections end
2. read the specification, which is one line of JSON
3. replace /etc: the sshd's files are only in memory, and no account of the gateway is in /etc/passwd; hide the
   gateway's SSH configuration and temporary files
4. check the port, drop the privileges, and execute sshd, which keeps the process ID of step 1

As an unprivileged user, the sshd cannot change to another user. Its only capability is CAP_NET_BIND_SERVICE, for a port
below 1024. The sshd writes its log to the host's syslog.
"""

import ctypes
import os
import resource
import socket
import subprocess
import sys
from collections.abc import Collection
from pathlib import Path
from typing import Any

from virtcloud.agent.host_services.server_isolation import (
    NET_BIND_SERVICE,
    call,
    close_input,
    drop_privileges,
    read_specification,
)

CLONE_NEWNS, CLONE_NEWIPC, CLONE_NEWPID = 0x20000, 0x08000000, 0x20000000  # linux/sched.h
MS_RDONLY, MS_NOSUID, MS_NODEV, MS_NOEXEC, MS_REMOUNT, MS_BIND = 1, 2, 4, 8, 32, 4096  # linux/mount.h
MS_REC, MS_SLAVE = 16384, 1 << 19
ETC, HOST_ETC = Path("/etc"), ".virtcloud-host"
"""The sshd's folder /etc. At `HOST_ETC` in this folder, the host's /etc is mounted."""
FIRST_FREE_PORT = 1024
MODE, EXECUTABLE = 0o400, 0o500
LIMITS = {resource.RLIMIT_CORE: 0, resource.RLIMIT_NOFILE: 1024, resource.RLIMIT_FSIZE: 1 << 20}
"""Resource limits of sshd. The file size is not 0, because sshd writes each user's certificate to a file."""
NO_PENALTIES = ("-o", "PerSourcePenalties=no")
"""The option of OpenSSH 9.8 and later by which failed logins do not block the client's address (sshd_config(5)).

By default, these versions block an address for up to 10 minutes, for example after some logins with expired
certificates. Many users can share this address. Earlier versions refuse the option.
"""
_LIBC = ctypes.CDLL(None, use_errno=True)


def main() -> None:
    """Start sshd. Exit with code 1 and a message after an error."""
    try:
        _start()
    except OSError as error:
        sys.exit(error.strerror or str(error))


def _start() -> None:
    os.dup2(1, 2)
    call("create namespaces", _LIBC.unshare(CLONE_NEWNS | CLONE_NEWIPC | CLONE_NEWPID))
    if pid := os.fork():  # unshare(2): the first child process is the first process of the PID namespace
        os.write(1, f"apart {pid}\n".encode())
        os._exit(0)
    spec = read_specification()
    _mount_files(spec)
    _check_port(spec["port"], ipv6=spec["ipv6"])
    for limit, value in LIMITS.items():
        resource.setrlimit(limit, (value, value))
    os.chdir("/")
    drop_privileges(spec["uid"], spec["gid"], (NET_BIND_SERVICE,) if spec["port"] < FIRST_FREE_PORT else ())
    argv = _choose_arguments(spec["argv"])
    close_input()
    os.dup2(0, 1)
    os.dup2(0, 2)
    os.execve(argv[0], argv, {"PATH": "/usr/bin:/bin"})  # noqa: S606 - the agent names sshd


def _mount_files(spec: dict[str, Any]) -> None:
    """Replace /etc, so that it contains the sshd's files in ``spec["folder"]`` and the files in ``spec["replaced"]``.

    Mounts of single files would not suffice: the kernel removes such a mount when the host replaces the file
    (rename(2)).
    """
    socket_folder = os.open(spec["socket_folder"], os.O_PATH | os.O_DIRECTORY)  # a later mount may hide this path
    _mount("none", "/", None, MS_REC | MS_SLAVE)  # a file system that the host unmounts is unmounted here too
    _mount("proc", "/proc", "proc", MS_NOSUID | MS_NODEV | MS_NOEXEC)
    for hidden in ("/tmp", "/var/tmp"):  # noqa: S108 - hidden, not used
        _mount("tmpfs", hidden, "tmpfs", MS_NOSUID | MS_NODEV | MS_NOEXEC, "mode=1777,size=4m")
    folder = Path(spec["folder"])
    _mount_etc({*(Path(path).name for path in spec["replaced"]), folder.name})
    (folder / spec["requests"]).mkdir(parents=True)
    for name, text in spec["files"].items():
        _write(folder / name, text, spec)
    for target, name in spec["replaced"].items():
        (folder / name).rename(target)
    _mount(f"/proc/self/fd/{socket_folder}", str(folder / spec["requests"]), None, MS_BIND)
    os.close(socket_folder)
    _mount("none", str(ETC), None, MS_REMOUNT | MS_RDONLY | MS_NOSUID | MS_NODEV)


def _mount_etc(omitted: Collection[str]) -> None:
    """Mount an empty file system on /etc, with links to the files of the host's /etc except ``omitted``.

    An omitted folder is also hidden in `HOST_ETC`. An omitted file is not hidden: sshd can still read it in `HOST_ETC`.
    """
    host = os.open(ETC, os.O_RDONLY | os.O_DIRECTORY)
    _mount("tmpfs", str(ETC), "tmpfs", MS_NOSUID | MS_NODEV, "mode=755,size=4m")
    (ETC / HOST_ETC).mkdir()
    _mount(f"/proc/self/fd/{host}", str(ETC / HOST_ETC), None, MS_BIND)
    os.close(host)
    for path in (ETC / HOST_ETC).iterdir():
        if path.name in omitted:
            if path.is_dir():
                _mount("tmpfs", str(path), "tmpfs", MS_RDONLY)
        else:  # a link of the host can be relative to /etc
            (ETC / path.name).symlink_to(path.readlink() if path.is_symlink() else f"{HOST_ETC}/{path.name}")


def _write(path: Path, text: str, spec: dict[str, Any]) -> None:
    path.write_text(text)
    if path.name in spec["replaced"].values():
        path.chmod(0o444)
        return
    os.chown(path, spec["uid"], spec["gid"])
    path.chmod(EXECUTABLE if path.name == spec["executable"] else MODE)


def _mount(source: str, target: str, kind: str | None, flags: int, options: str | None = None) -> None:
    texts = [None if text is None else text.encode() for text in (source, target, kind)]
    result = _LIBC.mount(*texts, ctypes.c_ulong(flags), None if options is None else options.encode())
    call(f"mount {target}", result)


def _choose_arguments(argv: list[str]) -> list[str]:
    """Return sshd with its arguments: ``argv``, and `NO_PENALTIES` if this sshd knows the option."""
    if not _find_fault(extended := [*argv, *NO_PENALTIES]):
        return extended
    if fault := _find_fault(argv):
        raise OSError(fault)
    return argv


def _find_fault(argv: list[str]) -> str:
    done = subprocess.run([argv[0], "-t", *argv[2:]], capture_output=True, text=True, check=False)  # noqa: S603 - sshd
    if done.returncode == 0:
        return ""
    return done.stderr.strip().replace("\r", "").replace("\n", "; ") or "sshd refuses its configuration"


def _check_port(port: int, *, ipv6: bool) -> None:
    """Raise OSError if another program uses the port. sshd would write this error only to the host's log."""
    with socket.socket(socket.AF_INET6 if ipv6 else socket.AF_INET) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # sshd sets this option too
        try:
            probe.bind(("", port))
            probe.listen()
        except OSError as error:
            raise OSError(error.errno, f"cannot use TCP port {port}: {error.strerror}") from error
