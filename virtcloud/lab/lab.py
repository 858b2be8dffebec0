"""The lab's Python API: starts a lab, runs programs on its nodes, controls its services, and takes the lab down."""

import errno
import socket
import subprocess
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Self

from virtcloud.lab import (
    addressing,
    control_client,
    debian_image,
    guest_kernel,
    lab_kernel,
    node_services,
    prerequisites,
)
from virtcloud.lab.addressing import with_addresses
from virtcloud.lab.errors import LabFailed, LabIsDown, LabIsUp, UnknownInLab
from virtcloud.lab.fabric.events import LabEvent, Watcher
from virtcloud.lab.lab_file import LabFile, read_lab_file
from virtcloud.lab.launch import launch, terminate_as_interrupt
from virtcloud.lab.launch_files import LabOptions
from virtcloud.lab.state import LAB_FILE, LabState, find_remains, remove_remains
from virtcloud.model.element import Hypervisor
from virtcloud.model.topology import Topology


@dataclass(frozen=True, slots=True)
class ServiceHandle:
    """A service of a node. Each method is idempotent and returns when its effect is complete.

    Each method raises UnknownInLab if the lab has no such node, or if the node has no such service.
    """

    state: LabState
    node: str
    name: str

    def start(self) -> None:
        """Start the service and wait until it is ready. Raise LabFailed if the service is not ready in time."""
        self._do("start")

    def stop(self) -> None:
        """Stop the service (SIGTERM)."""
        self._do("stop")

    def kill(self) -> None:
        """Kill the service, as a crash would (SIGKILL)."""
        self._do("kill")

    def _do(self, action: str) -> None:
        control_client.check_node_exists(self.state, self.node, self.name)
        control_client.send_request(self.state, {"do": action, "node": self.node, "service": self.name})


@dataclass(frozen=True, slots=True)
class Lab:
    """A running lab."""

    state: LabState

    @classmethod
    def up(
        cls,
        lab: LabFile,
        options: LabOptions | None = None,
        watch: Watcher | None = None,
        state: LabState | None = None,
    ) -> Self:
        """Start a lab and wait until all services run.

        Raise LabImpossible if the machine lacks a prerequisite. Raise LabIsUp if a lab is running already. Raise
        LabFailed if the start fails. After an error or an interrupt, remove everything that this call has created,
        except images and kernels in the cache.
        """
        options, watch, state = options or LabOptions(), watch or (lambda _: None), state or LabState.of_machine()
        prerequisites.check_prerequisites(lab)
        kernel = lab_kernel.choose_kernel(options.kernel)
        with _lock_start(state):
            _check_no_lab_is_up(state)
            if Hypervisor.QEMU in lab.hypervisors:
                guest_kernel.fetch_guest_kernel(watch)
            for image in lab.images:
                debian_image.ensure_debian_root(debian_image.LAB_IMAGES[image], watch)
            _remove_stale_lab(state, watch)
            with _remove_on_error(state):
                launch(lab, state, options, kernel, watch)
        return cls(state)

    @classmethod
    def running(cls, state: LabState | None = None) -> Self:
        """Return the running lab. Raise LabIsDown if no lab is running."""
        state = state or LabState.of_machine()
        if state.pid() is None:
            raise LabIsDown("no lab is up; start one with: virtcloud lab up")
        return cls(state)

    def down(self) -> None:
        """Stop and remove the lab. Raise LabFailed if a part of the lab remains."""
        take_down(self.state)

    def run(
        self,
        node: str,
        argv: Sequence[str],
        *,
        stdin: str = "",
        timeout_s: float | None = 60.0,
        check: bool = False,
    ) -> subprocess.CompletedProcess[str]:
        """Run a program on a node. If ``check`` is true, an exit code other than 0 raises LabFailed.

        Raise UnknownInLab if the lab has no such node. Raise LabFailed if the program prints nothing for ``timeout_s``
        seconds (None: no limit) and does not end.
        """
        completed = control_client.run_program(self.state, node, argv, stdin.encode(), timeout_s)
        text = subprocess.CompletedProcess(
            completed.args,
            completed.returncode,
            completed.stdout.decode(errors="replace"),
            completed.stderr.decode(errors="replace"),
        )
        if check and completed.returncode:
            raise LabFailed(
                f"{node}: {' '.join(argv)} ended with exit code {completed.returncode}: {text.stderr.strip()}"
            )
        return text

    def power_off(self, node: str) -> None:
        """Simulate a power failure of a host or a gateway. Only the node's disk remains. Idempotent.

        Raise UnknownInLab if the node is neither a host nor a gateway of the lab.
        """
        self._power(node, "off")

    def power_on(self, node: str) -> None:
        """Boot a host or a gateway that is powered off, and wait until its services run. Idempotent.

        If the node's disk contains a boot script, run the script. Raise LabFailed if the script fails. Raise
        UnknownInLab if the node is neither a host nor a gateway of the lab.
        """
        self._power(node, "on")
        self.run(node, ["sh", "-c", node_services.RUN_BOOT_SCRIPT], check=True)

    def _power(self, node: str, power: str) -> None:
        control_client.check_node_exists(self.state, node)
        switchable = node_services.elements_with_agents(self.topology)
        if node not in switchable:
            raise UnknownInLab(
                f"node {node} has no power switch; the hosts and gateways have one: {', '.join(switchable)}"
            )
        control_client.send_request(self.state, {"do": "power", "node": node, "power": power})

    def service(self, node: str, name: str) -> ServiceHandle:
        """Return the handle of a service, such as ``libvirtd`` of a host, or ``sbf`` of the node ``station``."""
        return ServiceHandle(self.state, node, name)

    @property
    def file(self) -> LabFile:
        """The lab file from which the lab was built."""
        return read_lab_file(self.state.folder / LAB_FILE)

    @property
    def topology(self) -> Topology:
        """The topology that SBF uses, with the devices' management addresses."""
        return with_addresses(self.file.topology)

    def status(self) -> dict[str, Any]:
        """Return a dict with the keys ``name``, ``kernel``, ``bare``, ``sbf``, ``socket`` and ``nodes``.

        ``nodes`` contains the state of each service of each node.
        """
        about = {key: value for key, value in self.state.metadata.items() if key != "token"}
        url = None if about.get("bare") else f"http://{addressing.STATION_ADDRESS}:{addressing.SBF_PORT}"
        answer = control_client.send_request(self.state, {"do": "status", "node": addressing.STATION})
        return {**about, "sbf": url, "socket": url and str(self.state.sbf_socket), **answer}

    def all_services_run(self) -> bool:
        """Return whether all services of all nodes run."""
        services = [state for node in self.status()["nodes"].values() for state in node["services"].values()]
        return all(state == "running" for state in services)

    @property
    def sbf_socket(self) -> str:
        """The path of SBF's socket on the machine."""
        return str(self.state.sbf_socket)


def take_down(state: LabState) -> list[str]:
    """Remove everything that a lab has left on the machine. Return descriptions of what was removed.

    Raise LabFailed if a part remains.
    """
    remains = find_remains(state)
    remaining = remove_remains(state) if remains else []
    if remaining:
        raise LabFailed(f"the lab was stopped, but could not be removed completely: {', '.join(remaining)}")
    return remains


@contextmanager
def _lock_start(state: LabState) -> Iterator[None]:
    """Within the context, prevent other processes from starting a lab with the same folder.

    The lock is the name of a socket, so the kernel releases the lock when this process ends.
    """
    with socket.socket(socket.AF_UNIX) as lock:
        try:
            lock.bind(f"\0virtcloud-lab-{state.cgroup.name}")
        except OSError as error:
            raise LabIsUp("another process is starting a lab; wait until that lab is up") from error
        yield


def _check_no_lab_is_up(state: LabState) -> None:
    if state.pid() is not None or state.launcher() is not None:
        name = state.metadata.get("name", "unknown")
        raise LabIsUp(f"lab {name} is up already; stop it first with: virtcloud lab down")


def _remove_stale_lab(state: LabState, watch: Watcher) -> None:
    remains = take_down(state)
    if remains:
        text = f"removed the remains of a lab that ended unexpectedly: {', '.join(remains)}"
        watch(LabEvent("remains", "note", text))


@contextmanager
def _remove_on_error(state: LabState) -> Iterator[None]:
    with terminate_as_interrupt():
        try:
            yield
        except OSError as error:
            remove_remains(state)
            raise LabFailed(_format_os_error(error)) from error
        except BaseException:
            remove_remains(state)
            raise


def _format_os_error(error: OSError) -> str:
    name = error.filename2 or error.filename  # if a copy failed, `filename2` is the target of the copy
    prefix = f"{name}: " if name else ""
    disk_is_full = error.errno in {errno.ENOSPC, errno.EDQUOT}
    remedy = "; free space there, or set VIRTCLOUD_LAB_STATE to a folder with free space" if disk_is_full else ""
    return f"the lab could not be started and was removed: {prefix}{error.strerror or error}{remedy}"
