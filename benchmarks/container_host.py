"""A host for containers, in namespaces of this machine's kernel.

The host has its own libvirtd, network, mounts and control groups.
"""

import os
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

ROOT = Path(__file__).parents[1]
CGROUPS = Path("/sys/fs/cgroup")
GROUP = "virtcloud-bench"
CONTROLLERS = ("cpu", "cpuacct", "cpuset", "memory", "devices", "freezer", "blkio", "pids")
MOST_SHARES = "262144"
"""The highest ``cpu.shares`` of a control group. With this value, other programs hardly delay this host."""
EMPTY_FOLDERS = ("/run", "/etc/libvirt", "/var/lib/libvirt", "/var/log/libvirt", "/var/cache/libvirt")
DRIVER = Path("/usr/lib/x86_64-linux-gnu/libvirt/connection-driver/libvirt_driver_lxc.so")
LIBVIRTD, SOCKET = "/usr/sbin/libvirtd", Path("/run/libvirt/libvirt-sock")
OPEN_FILES = 8192
"""The limit of open files, as in libvirtd's systemd unit.

A container's first process closes as many descriptors as the limit allows. A higher limit would delay each start.
"""
START_S = 60.0


class NoContainerHost(Exception):
    """The benchmark cannot run on this machine. The message is the reason."""


def run_in_namespaces(module: str) -> str:
    """Run ``python -m MODULE`` in new namespaces and control groups. Return the output of the module.

    Raise NoContainerHost if this machine cannot run containers.
    """
    if os.geteuid():
        raise NoContainerHost("the benchmark needs root's rights: run the benchmark with sudo")
    if not DRIVER.exists() or not Path(LIBVIRTD).exists():
        raise NoContainerHost("the benchmark needs libvirtd's LXC driver: apt-get install libvirt-daemon-driver-lxc")
    if not (CGROUPS / "devices").exists():
        raise NoContainerHost("the benchmark needs control groups of version 1 (cgroups v1) on this machine")
    with _control_groups() as files:
        enter = f'for file in {" ".join(map(str, files))}; do echo $$ >"$file"; done; exec unshare -mnC "$@"'
        argv = ("sh", "-c", enter, "sh", sys.executable, "-m", module)
        done = subprocess.run(argv, cwd=ROOT, stdout=subprocess.PIPE, text=True, check=True)  # noqa: S603 - no input
    return done.stdout


@contextmanager
def _control_groups() -> Iterator[list[Path]]:
    """Create a control group in each hierarchy. Delete the groups after the context.

    Yield the paths of the groups' files ``cgroup.procs``. A process that writes its ID to such a file joins the group.
    """
    groups = [CGROUPS / name / GROUP for name in (*CONTROLLERS, "systemd") if (CGROUPS / name).exists()]
    for group in groups:
        group.mkdir(exist_ok=True)
    for name in ("cpuset.cpus", "cpuset.mems"):
        (CGROUPS / "cpuset" / GROUP / name).write_text((CGROUPS / "cpuset" / name).read_text())
    (CGROUPS / "cpu" / GROUP / "cpu.shares").write_text(MOST_SHARES)
    try:
        yield [group / "cgroup.procs" for group in groups]
    finally:
        for group in groups:
            for inner in sorted(group.rglob("*/"), reverse=True):
                inner.rmdir()
            group.rmdir()


@contextmanager
def libvirt_of_containers() -> Iterator[None]:
    """Run libvirtd within the context. The calling process must be in new namespaces (`run_in_namespaces`)."""
    _run("mount", "--make-rprivate", "/")
    for folder in EMPTY_FOLDERS:
        Path(folder).mkdir(parents=True, exist_ok=True)
        _run("mount", "-t", "tmpfs", "none", folder)
    _mount_control_groups(Path("/run/control-groups"))
    drivers = Path("/run/libvirt-drivers")
    for path in (drivers, Path("/run/lock"), SOCKET.parent, Path("/var/log/libvirt/lxc")):
        path.mkdir(parents=True)
    shutil.copy(DRIVER, drivers)
    config = Path("/etc/libvirt/libvirtd.conf")
    config.write_text('auth_unix_rw = "none"\nauth_unix_ro = "none"\nmdns_adv = 0\n')
    _run("ip", "link", "set", "lo", "up")
    environment = {**os.environ, "LIBVIRT_DRIVER_DIR": str(drivers)}
    argv = ["prlimit", f"--nofile={OPEN_FILES}", LIBVIRTD, "--config", str(config)]
    daemon = subprocess.Popen(argv, env=environment, stderr=subprocess.DEVNULL)  # noqa: S603
    try:
        deadline = time.monotonic() + START_S
        while not SOCKET.exists() and time.monotonic() < deadline:
            time.sleep(0.1)
        yield
    finally:
        daemon.terminate()
        daemon.wait()


def read_processor_s() -> float:
    """Return the processor time in seconds of all processes of this host."""
    return int((CGROUPS / "cpuacct/cpuacct.usage").read_text()) / 1e9


def _mount_control_groups(new: Path) -> None:
    """Mount the hierarchies of control groups with this host's group as their root (cgroup_namespaces(7))."""
    for name in (*CONTROLLERS, "systemd"):
        (new / name).mkdir(parents=True)
        _run(
            "mount", "-t", "cgroup", "-o", name if name != "systemd" else "none,name=systemd", "cgroup", str(new / name)
        )
    _run("umount", "--recursive", "--lazy", str(CGROUPS))
    _run("mount", "--rbind", str(new), str(CGROUPS))


def _run(*argv: str) -> None:
    subprocess.run(argv, check=True)  # noqa: S603 - no input
