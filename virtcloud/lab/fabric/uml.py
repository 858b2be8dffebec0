"""Makes a User-mode Linux kernel that just booted on the machine's own file tree into a place for a lab.

The tree is the machine's: whatever would be written to must first be covered.
"""

import contextlib
import os
import socket
import subprocess
from pathlib import Path

from virtcloud.lab.fabric import syscalls

COVERED = ("/run", "/tmp", "/var/tmp", "/var/log", "/var/lib/libvirt")  # noqa: S108 - they are mounted over
MODULES = ("8021q", "bridge", "veth", "tun", "fuse", "sch_netem", "nf_tables")
MODPROBE = Path("/run/modprobe")
# The kernel's own calls for modules come here as well. Only busybox is static enough to live without /usr/lib.
MODPROBE_TEXT = """#!/bin/busybox sh
exec /bin/busybox unshare -m /bin/busybox sh -c \
'/bin/busybox mount --bind /usr/lib/uml /usr/lib && exec /bin/busybox modprobe "$@"' modprobe "$@"
"""


def set_up_machine(state: str, kept: tuple[str, ...]) -> None:
    """Mount what a running system needs; keep ``state`` and every folder of ``kept`` visible."""
    open_folders = [(os.open(one, os.O_PATH), one) for one in kept]
    for place in (one for one in COVERED if Path(one).is_dir()):
        syscalls.mount("tmpfs", place, "tmpfs", 0, "mode=1777" if place.endswith("tmp") else "mode=755")
    syscalls.mount("proc", "/proc", "proc")
    for descriptor, place in open_folders:
        syscalls.bind(f"/proc/self/fd/{descriptor}", place)
        os.close(descriptor)
    Path(state).mkdir(parents=True, exist_ok=True)
    syscalls.mount("none", state, "hostfs", 0, state)
    syscalls.mount("sysfs", "/sys", "sysfs")
    syscalls.mount("cgroup2", "/sys/fs/cgroup", "cgroup2")
    _devices()
    _modules()
    socket.sethostname("fabric")


def _devices() -> None:
    with contextlib.suppress(OSError):  # mounted by the kernel where it is so configured
        syscalls.mount("devtmpfs", "/dev", "devtmpfs")
    for name in ("pts", "shm"):
        Path("/dev", name).mkdir(exist_ok=True)
    syscalls.mount("devpts", "/dev/pts", "devpts", 0, "ptmxmode=666")
    syscalls.mount("tmpfs", "/dev/shm", "tmpfs", 0, "mode=1777")  # noqa: S108 - it is a mount point


def _modules() -> None:
    MODPROBE.write_text(MODPROBE_TEXT)
    MODPROBE.chmod(0o755)
    Path("/proc/sys/kernel/modprobe").write_text(str(MODPROBE))
    subprocess.run([MODPROBE, "-a", *MODULES], check=True, capture_output=True)  # noqa: S603 - written just above
