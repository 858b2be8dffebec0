"""Creation and removal of jobs' relays: the processes by which a job's script connects to the guests of its cluster.

A relay process (`relay_program`) runs in a separate network namespace. A veth pair connects the namespace to the bridge
of the job's cluster. The pair's interface on the bridge is the job's *port*, which has the cluster's ownership alias.
Therefore the agent deletes the port together with the cluster's segment. The relay process then ends. A job's
connections survive a restart of the agent.
"""

import json
import threading
from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager
from hashlib import sha256
from ipaddress import ip_interface
from pathlib import Path
from typing import Any, Protocol

from virtcloud.agent import log
from virtcloud.agent.job_access import relay_program
from virtcloud.agent.job_access.access import JobAccess, find_free_addresses, guest_subnets
from virtcloud.agent.job_access.relay_processes import find_listener_pid, query_relay, start_relay, wait_for_end
from virtcloud.agent.network import names
from virtcloud.agent.network.address_probe import OpenProber
from virtcloud.agent.network.interfaces import KernelInterface
from virtcloud.model.errors import Refused
from virtcloud.model.guest_spec import Guest


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
        """Delete an interface. Do nothing if the interface is absent."""


OpenKernel = Callable[[], AbstractContextManager[JobPortKernel]]


class NoFreeAddress(Refused):
    """No subnet of a cluster has a free address for a relay. The job runs without access to its guests."""

    slug = "no-free-address"  # SBF's client finds an error's class by its slug

    def __init__(self, subnets: Iterable[str]) -> None:
        """Create the error. ``subnets`` are the subnets without a free address."""
        super().__init__(
            f"{' and '.join(subnets)}: expected a free address for this host, found none: do not give guests the "
            "last addresses of the subnet"
        )


class JobRelays:
    """The relays of this host's jobs. All methods are idempotent."""

    def __init__(self, open_kernel: OpenKernel, root: Path, open_prober: OpenProber) -> None:
        """Create an object whose relays have sockets in the folder ``root``, which belongs to user ID 0."""
        self._open_kernel = open_kernel
        self._root = root
        self._open_prober = open_prober
        self._lock = threading.Lock()

    def ensure(self, access: JobAccess, uid: int) -> Path:
        """Create a job's relay, to which the user ``uid`` can connect. Return the path of the relay's socket.

        Raise NoFreeAddress if no subnet has a free address. Raise Refused if the bridge is missing, the kernel refuses
        a change, or connections through an ended relay still exist (`is_lost`).
        """
        with self._lock, self._open_kernel() as kernel:
            bridge = find_bridge(access.vlan, access.key, kernel.list_interfaces(), access.network)
            spec = _relay_spec(access, uid, self.socket_path(access.key), bridge)
            if not self._is_current(kernel, access, bridge, spec["about"]):
                self._check_no_connections(kernel, access.key, bridge)
                self._ensure_none(kernel, access.key)
                self._create(kernel, access, bridge, spec)
        return self.socket_path(access.key)

    def ensure_none(self, key: str) -> None:
        """Remove a job's relay if it exists. Raise Refused if the process cannot be ended."""
        with self._lock, self._open_kernel() as kernel:
            self._ensure_none(kernel, key)

    def is_lost(self, key: str) -> bool:
        """Return whether a job's relay process has ended, and no connection through the relay is left.

        An open connection preserves the ended relay's namespace and port. If the relay were created again, the port and
        the connection would end. Raise Refused if the relay process runs, but accepts no connection.
        """
        if not self._has_ended(key):
            return False
        with self._lock, self._open_kernel() as kernel:
            return not any(names.is_port_of_job(interface.name, key) for interface in kernel.list_interfaces())

    def socket_path(self, key: str) -> Path:
        """Return the path of a relay's socket.

        The socket's name begins with a dot, unlike the names of jobs' folders.
        """
        return self._root / f".relay-{names.file_name(key)}"

    def _has_ended(self, key: str) -> bool:
        path = self.socket_path(key)
        return path.exists() and find_listener_pid(path) is None

    def _check_no_connections(self, kernel: JobPortKernel, key: str, bridge: KernelInterface) -> None:
        """Raise Refused if connections through an ended relay still use the relay's port on the bridge."""
        if self._has_ended(key) and any(
            names.is_port_of_job(interface.name, key) and interface.master == bridge.index
            for interface in kernel.list_interfaces()
        ):
            raise Refused(
                f"cluster {key}: the job's relay has ended, but connections through the relay still exist; the "
                "relay will be created again after the end of these connections"
            )

    def _is_current(self, kernel: JobPortKernel, access: JobAccess, bridge: KernelInterface, digest: str) -> bool:
        """Return whether the job's relay runs with the specification whose digest is ``digest``.

        If the relay runs with this specification, also attach the relay's port to the bridge.
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
        with start_relay() as relay:  # starts in the background while addresses are probed
            spec["addresses"] = self._find_free_addresses(access, bridge)
            spec["hosts"] = find_reachable_addresses(access.guests, spec["addresses"])
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
            if names.is_port_of_job(interface.name, key) and names.cluster_of_alias(interface.alias):
                kernel.delete(interface.index)
                log.info("relay_removed", cluster=key, port=interface.name)
        wait_for_end(path, process)
        path.unlink(missing_ok=True)


def find_bridge(
    vlan: int, key: str, interfaces: Iterable[KernelInterface], network: str | None = None
) -> KernelInterface:
    """Return the bridge of a VLAN. Raise Refused if the host has no bridge of virtcloud for this VLAN. Pure.

    Error messages name the cluster by ``key``. Also raise Refused if the bridge belongs to a network other than
    ``network``. The VLAN ID may have passed to another cluster while the agent was not running. If ``network`` is None,
    any network is accepted.
    """
    name = names.bridge_name(vlan)
    bridge = next((interface for interface in interfaces if interface.name == name), None)
    owner = names.cluster_of_alias(bridge.alias) if bridge else None
    if bridge is None or owner is None:
        raise Refused(f"cluster {key}: expected bridge {name} of virtcloud, found none on this host")
    if network not in {None, owner}:
        raise Refused(
            f"cluster {key}: expected bridge {name} of network {network}, but the bridge still belongs to cluster "
            f"{owner}: try again later"
        )
    return bridge


def find_reachable_addresses(guests: Iterable[Guest], relay_addresses: Iterable[str]) -> dict[str, str]:
    """Return an address of each guest that has addresses, by the guest's name. Pure.

    The address is the guest's first address in a subnet of ``relay_addresses``. If the guest has no such address, the
    address is the guest's first address.
    """
    subnets = {ip_interface(address).network for address in relay_addresses}
    listed = {guest.name: [ip_interface(address) for address in guest.addresses] for guest in guests if guest.addresses}
    return {
        name: str(next((address for address in addresses if address.network in subnets), addresses[0]).ip)
        for name, addresses in listed.items()
    }


def _relay_spec(access: JobAccess, uid: int, path: Path, bridge: KernelInterface) -> dict[str, Any]:
    """Return the specification of a relay.

    The value of ``about`` is a digest of the other values, and of the bridge's alias and name. The digest must not
    depend on the addresses that are free when the relay is created.
    """
    spec: dict[str, Any] = {
        "uid": uid,
        "socket": str(path),
        "hosts": find_reachable_addresses(access.guests, ()),
        "subnets": [str(subnet) for subnet in guest_subnets(access.guests)],
    }
    digested = json.dumps([spec, bridge.alias, bridge.name], sort_keys=True)
    return {**spec, "about": sha256(digested.encode()).hexdigest()}


def _attach_port(kernel: JobPortKernel, access: JobAccess, bridge: KernelInterface, process: int) -> None:
    """Create the veth pair to the network namespace of ``process``. Set the port's alias, then attach the port."""
    temporary, name = names.temporary_job_port_name(access.vlan), names.job_port_name(access.key, access.vlan)
    for interface in kernel.list_interfaces():
        if interface.name == temporary:
            kernel.delete(interface.index)
    index = kernel.add_veth_pair(temporary, relay_program.DEVICE, process, bridge.mtu)
    kernel.change(index, name=name, alias=names.ownership_alias(names.cluster_of_alias(bridge.alias) or ""))
    kernel.disable_host_ip(index, name)
    kernel.change(index, master=bridge.index)
    kernel.change(index, up=True)
