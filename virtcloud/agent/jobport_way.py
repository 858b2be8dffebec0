"""The way from a job's script to its cluster: the job's port on the bridge, and the relay behind it, made and removed.

The relay (:mod:`virtcloud.agent.jobport_relay`) lives in a network namespace of its own, at the far end of a veth pair
whose near end is a port of the bridge, marked as ours. The port is what holds it all: without it the relay ends, and
who removes the cluster's segment removes the port. So nothing stays of an agent that is killed at whatever moment, and
a job's connections stay when an agent is only started again.
"""

import json
import os
import signal
import threading
import time
from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager, suppress
from hashlib import sha256
from ipaddress import ip_interface
from pathlib import Path
from typing import Any, Protocol

from virtcloud.agent import log, names
from virtcloud.agent.jobport import Opening
from virtcloud.agent.jobport_address import Asking, free_addresses, subnets
from virtcloud.agent.jobport_relay import DEVICE
from virtcloud.agent.jobport_spawn import pid_behind, spawned, tell
from virtcloud.agent.ports import Link
from virtcloud.model.errors import Refused

END_S, POLL_S = 3.0, 0.02


class PortKernel(Protocol):
    """What a job's port needs of the kernel."""

    def links(self) -> list[Link]:
        """Give all interfaces."""

    def add_pair(self, name: str, peer: str, process: int, mtu: int) -> int:
        """Create a veth pair, its ``peer`` in the network namespace of a process; give the index of ``name``."""

    def change(self, index: int, **values: Any) -> None:  # noqa: ANN401 - netlink's attributes
        """Change ``name``, ``alias``, ``master`` or ``up``."""

    def hush(self, index: int, name: str) -> None:
        """Keep the host itself from speaking on an interface."""

    def delete(self, index: int) -> None:
        """Delete an interface; one that is gone already is no error."""


Kernels = Callable[[], AbstractContextManager[PortKernel]]
Ears = Callable[[str], AbstractContextManager[Asking]]


class NoFreeAddress(Refused):
    """A cluster's subnets have no address for this host: the job runs all the same, without a way to its guests."""

    slug = "no-free-address"  # one of its own: by its slug SBF's client finds the class of an answer

    def __init__(self, subnets: Iterable[str]) -> None:
        """Name the subnets."""
        super().__init__(f"{' and '.join(subnets)}: no address is free for this host; leave one at the subnet's end")


class Ways:
    """The ways of all jobs on this machine. Everything may be repeated."""

    def __init__(self, kernels: Kernels, root: Path, ears: Ears) -> None:
        """Keep the relays' sockets in ``root``, a folder that is root's; a kernel and an ear are open for one call."""
        self._kernels = kernels
        self._root = root
        self._ears = ears
        self._lock = threading.Lock()

    def ensure(self, opening: Opening, uid: int) -> Path:
        """Make the way of a job for the user ``uid``; gives the socket where its relay listens.

        Raises NoFreeAddress, or Refused when the bridge is missing or the kernel says no.
        """
        with self._lock, self._kernels() as kernel:
            bridge = _bridge(opening, kernel.links())
            wanted = _wanted(opening, uid, self.socket(opening.key), bridge)
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
        return self._root / f".relay-{names.file_of(key)}"

    def _stands(self, kernel: PortKernel, opening: Opening, bridge: Link, about: str) -> bool:
        name = names.job_port(opening.key, opening.vlan)
        port = next((one for one in kernel.links() if one.name == name), None)
        if port is None or tell(self.socket(opening.key), "about") != f"ok {about}":
            return False
        kernel.change(port.index, master=bridge.index)
        kernel.change(port.index, up=True)
        return True

    def _make(self, kernel: PortKernel, opening: Opening, bridge: Link, wanted: dict[str, Any]) -> None:
        self._root.mkdir(parents=True, exist_ok=True)
        with spawned() as relay:  # it starts while others are asked for their addresses
            wanted["addresses"] = self._free(opening, bridge)
            relay.meet()
            _plug(kernel, opening, bridge, relay.pid)
            relay.be(wanted)
        log.info("job_port_made", cluster=opening.key, vlan=opening.vlan, addresses=", ".join(wanted["addresses"]))

    def _free(self, opening: Opening, bridge: Link) -> list[str]:
        with self._ears(bridge.name) as ear:
            found = free_addresses(ear, opening)
        if not found:
            raise NoFreeAddress(str(one) for one in subnets(opening.guests))
        return found

    def _ensure_none(self, kernel: PortKernel, key: str) -> None:
        path = self.socket(key)
        process = pid_behind(path)
        for link in kernel.links():
            if names.is_port_of_job(link.name, key) and names.marked(link.alias):
                kernel.delete(link.index)
                log.info("job_port_removed", cluster=key, port=link.name)
        _await_end(path, process)
        path.unlink(missing_ok=True)


def _plug(kernel: PortKernel, opening: Opening, bridge: Link, process: int) -> None:
    """Make the pair; it has its name and its mark before it is a port of the bridge."""
    fresh, name = names.unmarked_job_port(opening.vlan), names.job_port(opening.key, opening.vlan)
    for link in (one for one in kernel.links() if one.name == fresh):
        kernel.delete(link.index)
    index = kernel.add_pair(fresh, DEVICE, process, bridge.mtu)
    kernel.change(index, name=name, alias=names.mark(names.marked(bridge.alias) or ""))
    kernel.hush(index, name)
    kernel.change(index, master=bridge.index)
    kernel.change(index, up=True)


def _bridge(opening: Opening, links: Iterable[Link]) -> Link:
    name = names.bridge(opening.vlan)
    found = next((one for one in links if one.name == name and names.marked(one.alias)), None)
    if found is None:
        raise Refused(f"cluster {opening.key}: no bridge {name} of virtcloud is on this machine for the job's port")
    return found


def _wanted(opening: Opening, uid: int, path: Path, bridge: Link) -> dict[str, Any]:
    """Give what a relay is told; ``about`` tells one that is still right from one that is not."""
    wanted: dict[str, Any] = {
        "uid": uid,
        "socket": str(path),
        "hosts": {one.name: str(ip_interface(one.addresses[0]).ip) for one in opening.guests if one.addresses},
        "subnets": [str(one) for one in subnets(opening.guests)],
    }
    known = json.dumps([wanted, bridge.alias, bridge.name], sort_keys=True)
    return {**wanted, "about": sha256(known.encode()).hexdigest()}


def _await_end(path: Path, process: int | None) -> None:
    """Wait until nobody listens there; end a relay that does not."""
    ends = time.monotonic() + END_S
    while process is not None and pid_behind(path) == process:
        if time.monotonic() > ends:
            with suppress(ProcessLookupError):
                os.kill(process, signal.SIGKILL)
        time.sleep(POLL_S)
