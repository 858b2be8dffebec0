"""A relay's process, seen from the agent.

The way from a job's script to its cluster: the job's port on the bridge, and the relay behind it, made and removed.

The relay (:mod:`virtcloud.agent.jobport_relay`) lives in a network namespace of its own, at the far end of a veth pair
whose near end is a port of the bridge, marked as ours. The port is what holds it all: without it the relay ends, and
who removes the cluster's segment removes the port. So nothing stays of an agent that is killed at whatever moment, and
a job's connections stay when an agent is only started again.
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
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, suppress
from hashlib import sha256
from ipaddress import ip_interface
from pathlib import Path
from typing import Any, Protocol

from virtcloud.agent import log
from virtcloud.agent.job_access import relay_program
from virtcloud.agent.job_access.access import AddressProber, JobAccess, find_free_addresses, guest_subnets
from virtcloud.agent.job_access.relay_program import DEVICE
from virtcloud.agent.network import names
from virtcloud.agent.network.interfaces import KernelInterface
from virtcloud.model.errors import Refused

RELAY_START_S = 20.0
RELAY_QUERY_S = 2.0


class RelayProcess:
    """A relay while it is started. It is nobody's child, and outlives the agent."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        """Talk through the pipes of ``process``, which ends as soon as it has a child."""
        self._pipes = process
        self.pid = 0

    def meet(self) -> None:
        """Wait until it has a namespace and a process of its own; raises Refused."""
        word, _, pid = self._said().partition(" ")
        if word != "apart" or not pid.isdigit():
            raise Refused(f"the relay of a job was to say 'apart', and said {word + pid!r}; the agent's log has more")
        self.pid = int(pid)

    def be(self, wanted: Mapping[str, Any]) -> None:
        """Tell it what to be, and wait until it is; raises Refused with what it said instead."""
        if self._pipes.stdin is not None:
            self._pipes.stdin.write(json.dumps(wanted) + "\n")
            self._pipes.stdin.flush()
        said = self._said()
        if said != "ready":
            raise Refused(f"the relay of a job cannot start: {said or 'it ended'}")

    def kill(self) -> None:
        """End it, if it is there."""
        if self.pid:
            with suppress(ProcessLookupError):
                os.kill(self.pid, signal.SIGKILL)

    def _said(self) -> str:
        stdout = self._pipes.stdout
        if stdout is None:
            return ""
        ready = select.poll()
        ready.register(stdout, select.POLLIN)
        return stdout.readline().strip() if ready.poll(RELAY_START_S * 1000) else f"nothing in {RELAY_START_S:.0f} s"


@contextmanager
def start_relay() -> Iterator[RelayProcess]:
    """Start a relay; one that is not what it was to be in the end is killed, and its namespace goes with it."""
    argv = [sys.executable, "-I", "-S", relay_program.__file__]
    try:
        process = subprocess.Popen(  # noqa: S603 - our own file
            argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, cwd="/", start_new_session=True
        )
    except OSError as error:
        raise Refused(f"cannot start the relay of a job: {error.strerror}") from error
    made = RelayProcess(process)
    with process:
        try:
            yield made
        except BaseException:
            made.kill()
            raise


def query_relay(path: Path, line: str) -> str | None:
    """Ask the relay that listens at ``path``; None when nobody does."""
    with socket.socket(socket.AF_UNIX) as link:
        link.settimeout(RELAY_QUERY_S)
        try:
            link.connect(str(path))
            link.sendall(f"{line}\n".encode())
            return link.recv(4096).decode(errors="replace").strip()
        except OSError:
            return None


def find_listener_pid(path: Path) -> int | None:
    """Give the process that listens at ``path``; None when nobody does."""
    with socket.socket(socket.AF_UNIX) as link:
        try:
            link.connect(str(path))
            found: int = struct.unpack("3i", link.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12))[0]
        except OSError:
            return None
    return found


RELAY_END_S, POLL_S = 3.0, 0.02


class JobPortKernel(Protocol):
    """What a job's port needs of the kernel."""

    def links(self) -> list[KernelInterface]:
        """Give all interfaces."""

    def add_pair(self, name: str, peer: str, process: int, mtu: int) -> int:
        """Create a veth pair, its ``peer`` in the network namespace of a process; give the index of ``name``."""

    def change(self, index: int, **values: Any) -> None:  # noqa: ANN401 - netlink's attributes
        """Change ``name``, ``alias``, ``master`` or ``up``."""

    def hush(self, index: int, name: str) -> None:
        """Keep the host itself from speaking on an interface."""

    def delete(self, index: int) -> None:
        """Delete an interface; one that is gone already is no error."""


OpenKernel = Callable[[], AbstractContextManager[JobPortKernel]]
OpenProber = Callable[[str], AbstractContextManager[AddressProber]]


class NoFreeAddress(Refused):
    """A cluster's subnets have no address for this host: the job runs all the same, without a way to its guests."""

    slug = "no-free-address"  # one of its own: by its slug SBF's client finds the class of an answer

    def __init__(self, subnets: Iterable[str]) -> None:
        """Name the subnets."""
        super().__init__(f"{' and '.join(subnets)}: no address is free for this host; leave one at the subnet's end")


class JobRelays:
    """The ways of all jobs on this machine. Everything may be repeated."""

    def __init__(self, kernels: OpenKernel, root: Path, ears: OpenProber) -> None:
        """Keep the relays' sockets in ``root``, a folder that is root's; a kernel and an ear are open for one call."""
        self._kernels = kernels
        self._root = root
        self._ears = ears
        self._lock = threading.Lock()

    def ensure(self, opening: JobAccess, uid: int) -> Path:
        """Make the way of a job for the user ``uid``; gives the socket where its relay listens.

        Raises NoFreeAddress, or Refused when the bridge is missing or the kernel says no.
        """
        with self._lock, self._kernels() as kernel:
            bridge = _find_bridge(opening, kernel.links())
            wanted = _relay_spec(opening, uid, self.socket(opening.key), bridge)
            if not self._stands(kernel, opening, bridge, wanted["about"]):
                self._ensure_none(kernel, opening.key)
                self._make(kernel, opening, bridge, wanted)
        return self.socket(opening.key)

    def ensure_none(self, key: str) -> None:
        """Remove the way of a job; nothing there is success."""
        with self._lock, self._kernels() as kernel:
            self._ensure_none(kernel, key)

    def socket(self, key: str) -> Path:
        """Say where a job's relay listens. No key of a cluster begins with a dot."""
        return self._root / f".relay-{names.file_name(key)}"

    def _stands(self, kernel: JobPortKernel, opening: JobAccess, bridge: KernelInterface, about: str) -> bool:
        name = names.job_port_name(opening.key, opening.vlan)
        port = next((one for one in kernel.links() if one.name == name), None)
        if port is None or query_relay(self.socket(opening.key), "about") != f"ok {about}":
            return False
        kernel.change(port.index, master=bridge.index)
        kernel.change(port.index, up=True)
        return True

    def _make(self, kernel: JobPortKernel, opening: JobAccess, bridge: KernelInterface, wanted: dict[str, Any]) -> None:
        self._root.mkdir(parents=True, exist_ok=True)
        with start_relay() as relay:  # it starts while others are asked for their addresses
            wanted["addresses"] = self._free(opening, bridge)
            relay.meet()
            _attach_port(kernel, opening, bridge, relay.pid)
            relay.be(wanted)
        log.info("job_port_made", cluster=opening.key, vlan=opening.vlan, addresses=", ".join(wanted["addresses"]))

    def _free(self, opening: JobAccess, bridge: KernelInterface) -> list[str]:
        with self._ears(bridge.name) as ear:
            found = find_free_addresses(ear, opening)
        if not found:
            raise NoFreeAddress(str(one) for one in guest_subnets(opening.guests))
        return found

    def _ensure_none(self, kernel: JobPortKernel, key: str) -> None:
        path = self.socket(key)
        process = find_listener_pid(path)
        for link in kernel.links():
            if names.is_job_port(link.name, key) and names.cluster_of_alias(link.alias):
                kernel.delete(link.index)
                log.info("job_port_removed", cluster=key, port=link.name)
        _wait_for_end(path, process)
        path.unlink(missing_ok=True)


def _attach_port(kernel: JobPortKernel, opening: JobAccess, bridge: KernelInterface, process: int) -> None:
    """Make the pair; it has its name and its mark before it is a port of the bridge."""
    fresh, name = names.temporary_job_port_name(opening.vlan), names.job_port_name(opening.key, opening.vlan)
    for link in (one for one in kernel.links() if one.name == fresh):
        kernel.delete(link.index)
    index = kernel.add_pair(fresh, DEVICE, process, bridge.mtu)
    kernel.change(index, name=name, alias=names.ownership_alias(names.cluster_of_alias(bridge.alias) or ""))
    kernel.hush(index, name)
    kernel.change(index, master=bridge.index)
    kernel.change(index, up=True)


def _find_bridge(opening: JobAccess, links: Iterable[KernelInterface]) -> KernelInterface:
    name = names.bridge_name(opening.vlan)
    found = next((one for one in links if one.name == name and names.cluster_of_alias(one.alias)), None)
    if found is None:
        raise Refused(f"cluster {opening.key}: no bridge {name} of virtcloud is on this machine for the job's port")
    return found


def _relay_spec(opening: JobAccess, uid: int, path: Path, bridge: KernelInterface) -> dict[str, Any]:
    """Give what a relay is told; ``about`` tells one that is still right from one that is not."""
    wanted: dict[str, Any] = {
        "uid": uid,
        "socket": str(path),
        "hosts": {one.name: str(ip_interface(one.addresses[0]).ip) for one in opening.guests if one.addresses},
        "subnets": [str(one) for one in guest_subnets(opening.guests)],
    }
    known = json.dumps([wanted, bridge.alias, bridge.name], sort_keys=True)
    return {**wanted, "about": sha256(known.encode()).hexdigest()}


def _wait_for_end(path: Path, process: int | None) -> None:
    """Wait until nobody listens there; end a relay that does not."""
    ends = time.monotonic() + RELAY_END_S
    while process is not None and find_listener_pid(path) == process:
        if time.monotonic() > ends:
            with suppress(ProcessLookupError):
                os.kill(process, signal.SIGKILL)
        time.sleep(POLL_S)
