"""Control groups that limit containers: processors, memory, and processes (cgroups(7), version 2).

libvirt creates a control group for each container. The container's root user could change the limits of this group.
Therefore the agent sets the limits on a parent group that belongs to the host's root:
``/sys/fs/cgroup/virtcloud.partition/<domain>.partition``.

On hosts with systemd-machined, libvirt creates the group in a scope of systemd, and limits processors and memory. On
such hosts, the agent sets only the limit of processes, after the container's start. If root in the container reboots
the container, libvirt creates a new scope without this limit, and the agent sets the limit again.
"""

import re
import subprocess
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Protocol

from virtcloud.agent import log
from virtcloud.agent.files import describe_os_error, refuse_os_errors
from virtcloud.agent.own_processes import read_start_time
from virtcloud.model.errors import Refused
from virtcloud.model.wanted import GuestWanted

CGROUPS, SYSTEMD, LIBVIRT_LXC = Path("/sys/fs/cgroup"), Path("/run/systemd/system"), Path("/run/libvirt/lxc")
PARTITION: Final = "virtcloud.partition"
CPU_PERIOD_US: Final = 100_000
COMMAND_TIMEOUT_S = 30.0
KILL_TIMEOUT_S, KILL_POLL_S = 5.0, 0.02


@dataclass(frozen=True, slots=True)
class ContainerLimits:
    """The limits of a container: processors, memory in MiB (swap is not used), and processes including threads."""

    cpus: int
    memory_mb: int
    pids: int

    def files(self) -> dict[str, str]:
        """Return the contents of the control group's files by file name."""
        return {
            "cpu.max": f"{self.cpus * CPU_PERIOD_US} {CPU_PERIOD_US}",
            "memory.max": str(self.memory_mb << 20),
            "memory.swap.max": "0",
            "pids.max": str(self.pids),
        }


def choose_limits(guest: GuestWanted, max_pids: int) -> ContainerLimits:
    """Return the limits of a container. Raise Refused if the spec wants more than ``max_pids`` processes."""
    pids = (guest.limits.pids if guest.limits else None) or max_pids
    if pids > max_pids:
        raise Refused(
            f"guest {guest.name}: wants up to {pids} processes, but this host permits {max_pids} (pids under [guests] "
            "in the settings of this host's agent)"
        )
    return ContainerLimits(guest.cpus, guest.memory_mb, pids)


class ContainerGroups(Protocol):
    """The operations on control groups that guests need."""

    def ensure(self, domain: str, limits: ContainerLimits) -> str | None:
        """Create a guest's parent group, and return the group's name for libvirt, or None if no parent group is used.

        Kill processes of a former container in the group.
        """

    def limit_started(self, domain: str, pids: int, former: str) -> str:
        """Set the limit of processes if the host can set this limit only after the guest's start. Log a failure.

        ``former`` is the result of the previous call, or "". The result identifies the start of the container after
        which the limit was set.
        """

    def ensure_none(self, domain: str) -> None:
        """Kill the processes in a guest's parent group, and remove the group."""


class ControlGroups:
    """The control groups of this host."""

    def __init__(self) -> None:
        """Create an object without failures."""
        self._failures: dict[str, str] = {}
        """The last failure of `limit_started` by domain."""

    def ensure(self, domain: str, limits: ContainerLimits) -> str | None:
        """Create a guest's parent group, set the group's limits, and return the group's name for libvirt.

        Return None without a change if systemd manages the groups, or the host has no control groups of version 2.
        Otherwise, first kill the processes in an existing group, which remain if libvirt's process of the former
        container was killed. Raise Refused if the group cannot be created. If a limit cannot be set, log a warning.
        """
        if SYSTEMD.exists() or not (CGROUPS / "cgroup.controllers").exists():
            return None
        group = _path(domain)
        with refuse_os_errors(f"create the control group {group}"):
            _kill_processes(group)
            group.mkdir(parents=True, exist_ok=True)
            for parent in (CGROUPS, group.parent):
                _enable_controllers(parent)
        for name, value in limits.files().items():
            try:
                (group / name).write_text(value)
            except OSError as error:
                log.warning("limit_not_set", domain=domain, limit=name, error=describe_os_error(error))
        return f"/{PARTITION}/{group.name}"

    def limit_started(self, domain: str, pids: int, former: str) -> str:
        """If systemd manages the container's group, limit the container's number of processes.

        Return the ID and start time of the container's libvirt process, or ``former`` after a failure. Do nothing if
        ``former`` identifies the running process. Log only a failure that differs from the previous failure.
        """
        if not SYSTEMD.exists():
            return former
        try:
            pid = int((LIBVIRT_LXC / f"{domain}.pid").read_text())
            started = f"{pid} {read_start_time(pid)}"
            if started != former:
                _limit_scope(pid, pids)
        except (OSError, ValueError, subprocess.SubprocessError, Refused) as error:
            if self._failures.get(domain) != str(error):
                log.warning("limit_not_set", domain=domain, limit="pids", error=error)
            self._failures[domain] = str(error)
            return former
        self._failures.pop(domain, None)
        return started

    def ensure_none(self, domain: str) -> None:
        """Kill the processes in a guest's parent group, and remove the group with all groups in it.

        Raise OSError if a group cannot be removed.
        """
        self._failures.pop(domain, None)
        group = _path(domain)
        if group.exists():
            _kill_processes(group)
            inner = sorted((path for path in group.rglob("*") if path.is_dir()), reverse=True)
            for path in (*inner, group):
                path.rmdir()


def find_scope(text: str) -> str:
    """Return the scope of systemd in the content of a file ``/proc/PID/cgroup``. Pure.

    With control groups of version 1, the file has a line for each controller. Raise ValueError if the file contains no
    scope, or if two lines contain different scopes.
    """
    scopes: list[str] = sorted(set(re.findall(r"/([^/\n]+\.scope)", text)))
    if len(scopes) != 1:
        raise ValueError(
            f"expected the container in one scope of systemd, found {', '.join(scopes) or 'no scope'}; check that "
            "systemd-machined runs (systemctl status systemd-machined), or boot with control groups of version 2: "
            "systemd.unified_cgroup_hierarchy=1"
        )
    return scopes[0]


def _limit_scope(pid: int, pids: int) -> None:
    scope = find_scope(Path(f"/proc/{pid}/cgroup").read_text())
    argv = ["systemctl", "set-property", "--runtime", "--", scope, f"TasksMax={pids}"]
    subprocess.run(argv, check=True, capture_output=True, timeout=COMMAND_TIMEOUT_S)  # noqa: S603 - no shell


def _path(domain: str) -> Path:
    return CGROUPS / PARTITION / f"{domain}.partition"


def _kill_processes(group: Path) -> None:
    """Kill all processes in a group and the groups below it. Wait for their end, at most `KILL_TIMEOUT_S`.

    Do nothing if the group is missing, or the kernel lacks ``cgroup.kill`` (before Linux 5.14).
    """
    if not (group / "cgroup.kill").exists():
        return
    (group / "cgroup.kill").write_text("1")
    deadline = time.monotonic() + KILL_TIMEOUT_S
    while "populated 1" in (group / "cgroup.events").read_text() and time.monotonic() < deadline:
        time.sleep(KILL_POLL_S)


def _enable_controllers(group: Path) -> None:
    wanted = {"cpu", "memory", "pids"} & set((group / "cgroup.controllers").read_text().split())
    missing = wanted - set((group / "cgroup.subtree_control").read_text().split())
    if missing:
        (group / "cgroup.subtree_control").write_text(" ".join(f"+{controller}" for controller in sorted(missing)))
