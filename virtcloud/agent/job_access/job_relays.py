"""Creation and removal of jobs' relays. A relay is a process with a port on the bridge of the job's cluster.

The relay process (`relay_program`) runs in a separate network namespace. A veth pair connects the namespace to the
bridge. The port on the bridge has the cluster's ownership alias, so the port is removed together with the cluster's
segment. The relay process ends when the port is removed. So the relay ends together with the segment, even if the
agent was killed and started again. A job's connections survive a restart of the agent.
"""

import json
import os
import select
import signal
import socket
import struct
import subprocess
import sys
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, suppress
from hashlib import sha256
from ipaddress import ip_interface
from pathlib import Path
from typing import Any, Protocol

from virtcloud.agent import log
from virtcloud.agent.job_access import relay_program
from virtcloud.agent.job_access.access import JobAccess, find_free_addresses, guest_subnets
from virtcloud.agent.network import names
from virtcloud.agent.network.address_probe import OpenProber
from virtcloud.agent.network.interfaces import KernelInterface
from virtcloud.model.errors import Refused

RELAY_START_S = 20.0
RELAY_QUERY_S = 2.0
RELAY_END_S, RELAY_KILL_S = 3.0, 3.0
"""In seconds: the time limits for a relay's start, its answer, its end, and its end after SIGKILL."""


class JobPortKernel(Protocol):
    """The operations of the kernel that a job's port needs."""

    def list_interfaces(self) -> list[KernelInterface]:
        """Return all interfaces."""

    def add_veth_pair(self, name: str, peer: str, process: int, mtu: int) -> int:
        """Create a veth pair with ``peer`` in the network namespace of a process. Return the index of ``name``."""

    def change(self, index: int, **values: Any) -> None:  # noqa: ANN401 - netlink's attributes
        """Change ``name``, ``alias``, ``master`` or ``up`` of an interface."""

    def disable_host_ip(self, index: int, name: str) -> None:
        """Stop the host's IP stack from using an interface."""

    def delete(self, index: int) -> None:
        """Delete an interface. An absent interface is success."""


OpenKernel = Callable[[], AbstractContextManager[JobPortKernel]]


class NoFreeAddress(Refused):
    """A cluster's subnets have no free address for this host. The job runs without access to its guests."""

    slug = "no-free-address"  # SBF's client finds an error's class by its slug, so each class needs a different slug

    def __init__(self, subnets: Iterable[str]) -> None:
        """Create the error for these subnets."""
        super().__init__(
            f"{' and '.join(subnets)}: no address is free for this host; do not use the last addresses of the subnet"
        )


class JobRelays:
    """The relays of all jobs on this host. All methods are idempotent."""

    def __init__(self, open_kernel: OpenKernel, root: Path, open_prober: OpenProber) -> None:
        """Create sockets in the folder ``root``, which belongs to the user root."""
        self._open_kernel = open_kernel
        self._root = root
        self._open_prober = open_prober
        self._lock = threading.Lock()

    def ensure(self, access: JobAccess, uid: int) -> Path:
        """Create a job's relay for the user ``uid``. Return the path of the relay's socket.

        Raise NoFreeAddress when no subnet has a free address. Raise Refused when the bridge is missing or the kernel
        refuses a change.
        """
        with self._lock, self._open_kernel() as kernel:
            bridge = find_bridge(access.vlan, access.key, kernel.list_interfaces(), access.network)
            spec = _relay_spec(access, uid, self.socket_path(access.key), bridge)
            if not self._is_current(kernel, access, bridge, spec["about"]):
                self._ensure_none(kernel, access.key)
                self._create(kernel, access, bridge, spec)
        return self.socket_path(access.key)

    def ensure_none(self, key: str) -> None:
        """Remove a job's relay. An absent relay is success."""
        with self._lock, self._open_kernel() as kernel:
            self._ensure_none(kernel, key)

    def socket_path(self, key: str) -> Path:
        """Return the path of a relay's socket. No job's folder has this name, because keys do not begin with a dot."""
        return self._root / f".relay-{names.file_name(key)}"

    def _is_current(self, kernel: JobPortKernel, access: JobAccess, bridge: KernelInterface, digest: str) -> bool:
        """Return whether a relay runs that has the specification with this digest.

        If such a relay runs, attach its port to the bridge.
        """
        name = names.job_port_name(access.key, access.vlan)
        port = next((interface for interface in kernel.list_interfaces() if interface.name == name), None)
        if port is None or query_relay(self.socket_path(access.key), "about") != f"ok {digest}":
            return False
        kernel.change(port.index, master=bridge.index)
        kernel.change(port.index, up=True)
        return True

    def _create(self, kernel: JobPortKernel, access: JobAccess, bridge: KernelInterface, spec: dict[str, Any]) -> None:
        self._root.mkdir(parents=True, exist_ok=True)
        with start_relay() as relay:  # the process starts while addresses are probed
            spec["addresses"] = self._find_free_addresses(access, bridge)
            relay.wait_for_namespace()
            _attach_port(kernel, access, bridge, relay.pid)
            relay.configure(spec)
        log.info("relay_created", cluster=access.key, vlan=access.vlan, addresses=", ".join(spec["addresses"]))

    def _find_free_addresses(self, access: JobAccess, bridge: KernelInterface) -> list[str]:
        with self._open_prober(bridge.name) as prober:
            addresses = find_free_addresses(prober, access)
        if not addresses:
            raise NoFreeAddress(str(subnet) for subnet in guest_subnets(access.guests))
        return addresses

    def _ensure_none(self, kernel: JobPortKernel, key: str) -> None:
        path = self.socket_path(key)
        process = find_listener_pid(path)
        for interface in kernel.list_interfaces():
            if names.is_job_port(interface.name, key) and names.cluster_of_alias(interface.alias):
                kernel.delete(interface.index)
                log.info("relay_removed", cluster=key, port=interface.name)
        _wait_for_end(path, process)
        path.unlink(missing_ok=True)


def find_bridge(
    vlan: int, key: str, interfaces: Iterable[KernelInterface], network: str | None = None
) -> KernelInterface:
    """Return the bridge of a VLAN. Raise Refused if the host has no such bridge of virtcloud. Pure.

    ``key`` is the key of the cluster in the message. With ``network``, raise Refused if the bridge belongs to another
    cluster's network: the VLAN ID may have passed to another cluster while the agent did not run.
    """
    name = names.bridge_name(vlan)
    bridge = next((interface for interface in interfaces if interface.name == name), None)
    owner = names.cluster_of_alias(bridge.alias) if bridge else None
    if bridge is None or owner is None:
        raise Refused(f"cluster {key}: expected bridge {name} of virtcloud, found none on this host")
    if network not in {None, owner}:
        raise Refused(
            f"cluster {key}: expected bridge {name} of network {network}, but the bridge belongs to cluster {owner}"
        )
    return bridge


def _relay_spec(access: JobAccess, uid: int, path: Path, bridge: KernelInterface) -> dict[str, Any]:
    """Return the specification of a relay. The key ``about`` contains a digest of the specification."""
    spec: dict[str, Any] = {
        "uid": uid,
        "socket": str(path),
        "hosts": {guest.name: str(ip_interface(guest.addresses[0]).ip) for guest in access.guests if guest.addresses},
        "subnets": [str(subnet) for subnet in guest_subnets(access.guests)],
    }
    digested = json.dumps([spec, bridge.alias, bridge.name], sort_keys=True)
    return {**spec, "about": sha256(digested.encode()).hexdigest()}


def _attach_port(kernel: JobPortKernel, access: JobAccess, bridge: KernelInterface, process: int) -> None:
    """Create the veth pair and set the port's name and alias. Then attach the port to the bridge."""
    temporary, name = names.temporary_job_port_name(access.vlan), names.job_port_name(access.key, access.vlan)
    for interface in kernel.list_interfaces():
        if interface.name == temporary:
            kernel.delete(interface.index)
    index = kernel.add_veth_pair(temporary, relay_program.DEVICE, process, bridge.mtu)
    kernel.change(index, name=name, alias=names.ownership_alias(names.cluster_of_alias(bridge.alias) or ""))
    kernel.disable_host_ip(index, name)
    kernel.change(index, master=bridge.index)
    kernel.change(index, up=True)


class RelayProcess:
    """A relay process that is being started. It is no child process of the agent, so it survives the agent's end."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        """Use the pipes of ``process``. That process forks the relay process and then ends."""
        self._pipes = process
        self.pid = 0

    def wait_for_namespace(self) -> None:
        """Wait until the relay has reported its process ID and created its network namespace.

        Raise Refused if the relay fails or the time limit is exceeded.
        """
        line = self._read_line()
        status, _, pid = line.partition(" ")
        if status != "apart" or not pid.isdigit():
            raise Refused(
                f"cannot start the relay of a job: expected 'apart' and its process ID, got {line!r}; see the agent's "
                "log"
            )
        self.pid = int(pid)

    def configure(self, spec: Mapping[str, Any]) -> None:
        """Send the specification. Wait until the relay is ready. If the relay fails, raise Refused with its error."""
        if self._pipes.stdin is not None:
            self._pipes.stdin.write(json.dumps(spec) + "\n")
            self._pipes.stdin.flush()
        answer = self._read_line()
        if answer != "ready":
            raise Refused(f"cannot start the relay of a job: {answer or 'the process ended'}")

    def kill(self) -> None:
        """Kill the relay process if its process ID is known."""
        if self.pid:
            with suppress(ProcessLookupError):
                os.kill(self.pid, signal.SIGKILL)

    def _read_line(self) -> str:
        stdout = self._pipes.stdout
        if stdout is None:
            return ""
        ready = select.poll()
        ready.register(stdout, select.POLLIN)
        return (
            stdout.readline().strip() if ready.poll(RELAY_START_S * 1000) else f"no output within {RELAY_START_S:.0f} s"
        )


@contextmanager
def start_relay() -> Iterator[RelayProcess]:
    """Start a relay process. If the block raises an error, kill the process, so that its namespace disappears."""
    argv = [sys.executable, "-I", "-S", relay_program.__file__]
    try:
        process = subprocess.Popen(  # noqa: S603 - a file of this package
            argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, cwd="/", start_new_session=True
        )
    except OSError as error:
        raise Refused(f"cannot start the relay of a job: {error.strerror}") from error
    relay = RelayProcess(process)
    with process:
        try:
            yield relay
        except BaseException:
            relay.kill()
            raise


def query_relay(path: Path, line: str) -> str | None:
    """Send a line to the relay that listens at ``path``. Return the answer, or None if no relay answers."""
    with socket.socket(socket.AF_UNIX) as connection:
        connection.settimeout(RELAY_QUERY_S)
        try:
            connection.connect(str(path))
            connection.sendall(f"{line}\n".encode())
            return connection.recv(4096).decode(errors="replace").strip()
        except OSError:
            return None


def find_listener_pid(path: Path) -> int | None:
    """Return the process ID of the process that listens at ``path``, or None.

    Raise Refused if the process accepts no connection, for example because it was stopped.
    """
    with socket.socket(socket.AF_UNIX) as connection:
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, _time_value(RELAY_QUERY_S))
        try:
            connection.connect(str(path))
            pid: int = struct.unpack("3i", connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12))[0]
        except BlockingIOError as error:
            raise Refused(
                f"relay {path}: expected the process to accept a connection within {RELAY_QUERY_S:g} s; find the "
                f"process with: ss -xlp src {path}; the removal will be tried again"
            ) from error
        except OSError:
            return None
    return pid


def _time_value(seconds: float) -> bytes:
    """Return the value of a socket's time limit (struct timeval).

    With Python's ``settimeout``, a connection to a Unix socket fails at once if the listener's queue is full.
    """
    return struct.pack("ll", int(seconds), int(seconds % 1 * 1e6))


def _wait_for_end(path: Path, process: int | None) -> None:
    """Wait until the relay process has ended. If the time limit is exceeded, kill the process.

    Raise Refused if the process does not end then either, for example because the kernel waits for a device.
    """
    descriptor = None if process is None else _open_process(process)
    if descriptor is None:
        return
    try:
        if not _ends_within(descriptor, RELAY_END_S):
            signal.pidfd_send_signal(descriptor, signal.SIGKILL)
            if not _ends_within(descriptor, RELAY_KILL_S):
                raise Refused(
                    f"relay {path}: expected process {process} to end {RELAY_KILL_S:g} s after SIGKILL, but it still "
                    f"runs; find the reason with: cat /proc/{process}/status /proc/{process}/stack; the removal will "
                    "be tried again"
                )
    except ProcessLookupError:  # ended between the check and the signal
        return
    finally:
        os.close(descriptor)


def _open_process(process: int) -> int | None:
    try:
        return os.pidfd_open(process)
    except ProcessLookupError:
        return None


def _ends_within(descriptor: int, seconds: float) -> bool:
    """Return whether a process ends within this time. ``descriptor`` is the process's pidfd."""
    ended = select.poll()
    ended.register(descriptor, select.POLLIN)
    return bool(ended.poll(seconds * 1000))
