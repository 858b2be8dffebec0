"""User-mode Linux: boots the kernel on the file tree of the machine, and mounts the file systems that a lab needs.

The fabric mounts a separate file system over each folder to which a lab writes, because a lab must not write to the
machine's files.
"""

import contextlib
import os
import socket
import subprocess
import threading
from pathlib import Path

from virtcloud.lab.fabric import syscalls
from virtcloud.lab.fabric.events import EventLog
from virtcloud.lab.fabric.plan import FabricSettings

COVERED = ("/run", "/tmp", "/var/tmp", "/var/log", "/var/lib/libvirt")  # noqa: S108 - the lab mounts other file systems over these folders
MODULES = ("8021q", "bridge", "veth", "tun", "fuse", "sch_netem", "nf_tables", "nft_limit", "loop")
HOTPLUG = Path("/proc/sys/kernel/hotplug")
"""The file with the path of the program that the kernel starts for each device event. The lab disables this program."""
MODPROBE = Path("/run/modprobe")
# A script that replaces modprobe. `_load_modules` runs the script, and later the kernel runs the script when it needs
# another module. The script mounts the modules at /usr/lib. busybox is linked statically, so it does not need the
# libraries in /usr/lib. For a missing interface NAME, the kernel requests the module netdev-NAME, and after an error
# the module NAME. Agents and libvirt ask for hundreds of such names. Therefore the script succeeds immediately, except
# for the names that have a module.
MODPROBE_TEXT = """#!/bin/busybox sh
case "$3" in
  netdev-tunl0 | netdev-sit0 | netdev-erspan0 | netdev-gre* | netdev-ip*) ;;
  netdev-*) exit 0 ;;
esac
exec /bin/busybox unshare -m /bin/busybox sh -c \
'/bin/busybox mount --bind {modules} /usr/lib && exec /bin/busybox modprobe "$@"' modprobe "$@"
"""


def mount_file_systems(state: str, modules: str, visible_folders: tuple[str, ...]) -> None:
    """Mount the file systems that programs need, load kernel modules, and set the host name.

    The folders ``state`` and ``visible_folders`` still show the machine's files afterwards. ``modules`` is the folder
    that contains ``modules/RELEASE`` of this kernel.
    """
    open_folders = [(os.open(folder, os.O_PATH), folder) for folder in visible_folders]
    for folder in (folder for folder in COVERED if Path(folder).is_dir()):
        syscalls.mount("tmpfs", folder, "tmpfs", 0, "mode=1777" if folder.endswith("tmp") else "mode=755")
    syscalls.mount("proc", "/proc", "proc")
    HOTPLUG.write_text("\n")
    for descriptor, folder in open_folders:
        syscalls.bind(f"/proc/self/fd/{descriptor}", folder)
        os.close(descriptor)
    Path(state).mkdir(parents=True, exist_ok=True)
    syscalls.mount("none", state, "hostfs", 0, state)
    syscalls.mount("sysfs", "/sys", "sysfs")
    syscalls.mount("cgroup2", "/sys/fs/cgroup", "cgroup2")
    _mount_devices()
    _load_modules(modules)
    socket.sethostname("fabric")


def _mount_devices() -> None:
    with contextlib.suppress(OSError):  # some kernels have already mounted /dev
        syscalls.mount("devtmpfs", "/dev", "devtmpfs")
    for name in ("pts", "shm"):
        Path("/dev", name).mkdir(exist_ok=True)
    syscalls.mount("devpts", "/dev/pts", "devpts", 0, "ptmxmode=666")
    syscalls.mount("tmpfs", "/dev/shm", "tmpfs", 0, "mode=1777")  # noqa: S108 - a mount point


def _load_modules(modules: str) -> None:
    MODPROBE.write_text(MODPROBE_TEXT.format(modules=modules))
    MODPROBE.chmod(0o755)
    Path("/proc/sys/kernel/modprobe").write_text(str(MODPROBE))
    subprocess.run([MODPROBE, "-a", *MODULES], check=True, capture_output=True)  # noqa: S603 - the script that this function wrote


def boot_kernel(settings: FabricSettings) -> subprocess.Popen[bytes]:
    """Boot User-mode Linux and return its process. The kernel's console is written to ``console.log``."""
    environment = {"PATH": "/usr/sbin:/usr/bin:/sbin:/bin", "HOME": settings.state, "TMPDIR": "/dev/shm"}  # noqa: S108
    if settings.preload:
        environment["LD_PRELOAD"] = settings.preload
    with Path(settings.state, "console.log").open("ab") as console:
        subprocess.run(["ip", "tuntap", "add", "dev", "kernel0", "mode", "tap"], check=True)  # noqa: S607
        return subprocess.Popen(  # noqa: S603 - the launcher created the command
            settings.kernel,
            stdin=subprocess.DEVNULL,
            stdout=console,
            stderr=console,
            env=environment,
            start_new_session=True,
        )


def report_end(kernel: subprocess.Popen[bytes], events: EventLog) -> None:
    """Start a thread that writes an event when the kernel's process ends."""

    def wait() -> None:
        kernel.wait()
        events.write("kernel", "failed", "the User-mode Linux kernel ended; the end of its output is in console.log")

    threading.Thread(target=wait, daemon=True).start()


def power_off() -> None:
    """Power off this kernel."""
    subprocess.run(["/bin/busybox", "poweroff", "-f"], check=False)
