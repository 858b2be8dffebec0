"""The network namespaces of a gateway: one for each network in which the gateway has addresses.

A veth pair connects the namespace to the network's bridge. The pair's end on the bridge has the ownership alias of the
cluster that created the network.
"""

import threading
from collections.abc import Callable, Iterable, Sequence
from contextlib import AbstractContextManager, ExitStack, suppress
from pathlib import Path
from typing import Any, Final, Protocol

from virtcloud.agent import log
from virtcloud.agent.gateway.namespace_config import (
    DEVICE,
    PORT,
    make_namespace_config,
    make_routing,
)
from virtcloud.agent.gateway.namespace_difference import (
    BuildNamespace,
    NamespaceStep,
    ObservedNamespace,
    find_gateway_ports,
    find_links,
)
from virtcloud.agent.gateway.namespace_files import NamespaceFiles
from virtcloud.agent.gateway.namespace_requests import read_states, run_program
from virtcloud.agent.gateway.outside_links import OUTSIDE, ListAdmitted, admit_none, find_link_addresses, has_link
from virtcloud.agent.network import names
from virtcloud.agent.network.interfaces import KernelInterface
from virtcloud.model.errors import NotFound, Refused, Unsafe
from virtcloud.model.gateway_access import derive_gateway_mac
from virtcloud.model.wanted import Segment

ETHERNET_MTU: Final = 1500


class NamespaceKernel(Protocol):
    """The operations of the kernel that the ports of namespaces need."""

    def list_interfaces(self) -> list[KernelInterface]:
        """Return all interfaces."""

    def add_namespace_veth(self, name: str, peer: str, descriptor: int, mtu: int, mac: str | None = None) -> int:
        """Create a veth pair from ``name`` to ``peer``, which is in an open namespace. Return the index of ``name``."""

    def set_up_link(self, index: int, name: str, addresses: tuple[str, ...]) -> None:
        """Set the addresses of the gateway's end of a link, set this end up, and enable its IPv4 forwarding."""

    def change(self, index: int, **values: Any) -> None:  # noqa: ANN401 - netlink's attributes
        """Change ``name``, ``alias``, ``mtu``, ``master`` or ``up`` of an interface."""

    def disable_host_ip(self, index: int, name: str) -> None:
        """Stop the host's IP stack from using an interface."""

    def delete(self, index: int) -> None:
        """Delete an interface. Do nothing if the interface is absent."""


class ClusterNamespaces:
    """The namespaces of this gateway. All operations are idempotent."""

    def __init__(
        self,
        kernel: NamespaceKernel,
        folder: Path,
        list_admitted: ListAdmitted = admit_none,
        list_addresses: Callable[[], frozenset[str]] = frozenset,
    ) -> None:
        """Create an object that mounts namespaces at files in ``folder``.

        ``list_admitted`` returns the addresses of a destination's FQDNs.
        """
        self._list_addresses = list_addresses
        self._addresses: frozenset[str] | None = None
        """The gateway's own addresses at the last call of `receive`, or None before `receive` has read the addresses.

        The namespaces drop packets to these addresses.
        """
        self._is_written = True
        """Whether all namespaces have accepted `_addresses`."""
        self._kernel = kernel
        self._files = NamespaceFiles(folder)
        self._list_admitted = list_admitted
        self._sets_lock = threading.Lock()
        """A thread holds this lock while it reads the addresses of FQDNs and writes them to the namespaces."""

    def open_namespace(self, cluster: str) -> AbstractContextManager[int]:
        """Return a context manager that opens the namespace of a network (`NamespaceFiles.open`). Thread-safe."""
        return self._files.open(cluster)

    def read(self, interfaces: Sequence[KernelInterface]) -> tuple[ObservedNamespace, ...]:
        """Return the namespace of each network that has a namespace file, a port or a link."""
        ports, links = find_gateway_ports(interfaces), find_links(interfaces)
        files = self._files.list_clusters()
        states: dict[str, Any] = {}
        with ExitStack() as stack:
            opened = {}
            for cluster in sorted(files):
                with suppress(NotFound):
                    opened[cluster] = stack.enter_context(self.open_namespace(cluster))
            states = read_states(opened) if opened else {}
        return tuple(
            ObservedNamespace(cluster, states.get(cluster), ports.get(cluster, {}), links.get(cluster, {}))
            for cluster in sorted(files | ports.keys() | links.keys())
        )

    def apply(self, step: NamespaceStep) -> None:
        """Apply one step. Raise Refused if the step fails, and Unsafe if a foreign interface has the needed name."""
        if isinstance(step, BuildNamespace):
            self.ensure_namespace(step.segment)
        else:
            self.ensure_no_namespace(step.cluster)

    def ensure_namespace(self, segment: Segment) -> None:
        """Create the namespace of a network, or correct its faults.

        Raise Refused if the network has no bridge, or the namespace cannot be created or configured. Raise Unsafe if a
        foreign interface has the name of the port or link.
        """
        interfaces = {interface.name: interface for interface in self._kernel.list_interfaces()}
        bridge = interfaces.get(names.bridge_name(segment.vlan))
        if bridge is None or names.cluster_of_alias(bridge.alias) != segment.id:
            raise Refused(f"expected bridge {names.bridge_name(segment.vlan)} of cluster {segment.key}, found none")
        self._files.ensure(segment.id)
        with self.open_namespace(segment.id) as descriptor:
            (state,) = run_program([{"descriptor": descriptor, "sysctls": []}])
            inside = state.get("interfaces", {})
            port = self._ensure_port(segment, bridge, interfaces, descriptor, is_inside=PORT in inside)
            self._ensure_link(segment, interfaces, descriptor, is_inside=OUTSIDE in inside)
            with self._sets_lock:
                gateway = self._list_addresses()
                specification = make_namespace_config(segment, self._list_admitted, gateway).as_specification()
                (answer,) = run_program([{**specification, "descriptor": descriptor, "mtu": bridge.mtu}])
            if "error" in answer:
                raise Refused(f"cannot configure the network namespace of cluster {segment.key}: {answer['error']}")
            if "connections" in answer:
                log.warning("published_connections_not_removed", cluster=segment.id, error=answer["connections"])
            self._kernel.change(port, up=True)
            announced = {"descriptor": descriptor, "device": DEVICE, "announced": specification["addresses"][DEVICE]}
            (answer,) = run_program([announced])
            if "error" in answer:
                log.warning("addresses_not_announced", cluster=segment.id, error=answer["error"])

    def receive(self, segments: Sequence[Segment]) -> None:
        """Write the gateway's changed own addresses to the namespaces that have a link to the outside (`has_link`).

        Log errors; the next call tries again.
        """
        if not any(segment.router is not None for segment in segments):
            return
        try:
            found = self._list_addresses()
            linked = [segment for segment in segments if has_link(segment)]
            if found != self._addresses:
                self._addresses, self._is_written = found, False
            if not self._is_written:
                self._is_written = self._correct(linked)
        except Refused as error:
            log.warning("addresses_not_applied", error=error)

    def correct_sets(self, segments: Sequence[Segment]) -> None:
        """Write the current addresses of FQDNs to the packet filters in the networks' namespaces. Thread-safe.

        Raise Refused if `namespace_program` fails. If this program cannot change a namespace, only log the error. Do
        nothing before `receive` has read the gateway's own addresses: a filter without these addresses would allow
        guests to reach the gateway.
        """
        self._correct(
            segment for segment in segments if segment.router is not None and segment.router.named_destinations
        )

    def _correct(self, segments: Iterable[Segment]) -> bool:
        """Return whether every namespace accepted the addresses."""
        with ExitStack() as stack, self._sets_lock:
            # Read within the lock, so that no thread overwrites newer addresses with older addresses.
            gateway = self._addresses
            if gateway is None:
                return False
            requests = {}
            for segment in segments:
                with suppress(NotFound):
                    descriptor = stack.enter_context(self.open_namespace(segment.id))
                    sets = make_routing(segment, self._list_admitted, gateway).address_sets
                    listed = {name: [one.version, sorted(one.addresses)] for name, one in sets.items()}
                    requests[segment.key] = {"descriptor": descriptor, "sets": listed}
            answers = run_program(list(requests.values())) if requests else []
        for key, answer in zip(requests, answers, strict=True):
            if "error" in answer:
                log.warning("addresses_not_applied", cluster=key, error=answer["error"])
        return not any("error" in answer for answer in answers)

    def ensure_no_namespace(self, cluster: str) -> None:
        """Remove a network's namespace, its port and its link to the outside. The namespace may be absent."""
        for interface in self._kernel.list_interfaces():
            parsers = names.vlan_of_gateway_port, names.vlan_of_outside_link
            is_own = any(parse(interface.name) is not None for parse in parsers)
            if is_own and names.cluster_of_alias(interface.alias) == cluster:
                self._kernel.delete(interface.index)
        self._files.ensure_none(cluster)

    def _ensure_port(
        self,
        segment: Segment,
        bridge: KernelInterface,
        interfaces: dict[str, KernelInterface],
        descriptor: int,
        *,
        is_inside: bool,
    ) -> int:
        """Return the index of the port's end on the bridge."""
        name, temporary = names.gateway_port_name(segment.vlan), names.temporary_gateway_port_name(segment.vlan)
        port = interfaces.get(name)
        owner = names.cluster_of_alias(port.alias) if port is not None else None
        if port is not None and owner is None:
            raise _make_foreign_error(name, segment)
        if port is not None and owner == segment.id and is_inside:
            index = port.index
        else:
            for former in filter(None, (port, interfaces.get(temporary))):
                self._kernel.delete(former.index)
            mac = derive_gateway_mac(segment.id, segment.gateway_addresses[0])
            index = self._kernel.add_namespace_veth(temporary, PORT, descriptor, bridge.mtu, mac)
            self._kernel.change(index, name=name, alias=names.ownership_alias(segment.id))  # before it joins the bridge
        self._kernel.disable_host_ip(index, name)
        self._kernel.change(index, master=bridge.index, mtu=bridge.mtu)
        return index

    def _ensure_link(
        self, segment: Segment, interfaces: dict[str, KernelInterface], descriptor: int, *, is_inside: bool
    ) -> None:
        for interface in interfaces.values():
            is_link = names.vlan_of_outside_link(interface.name) is not None
            is_former = not has_link(segment) or not is_inside
            if is_link and is_former and names.cluster_of_alias(interface.alias) == segment.id:
                self._kernel.delete(interface.index)
        if not has_link(segment):
            return
        link = interfaces.get(name := names.outside_link_name(segment.vlan))
        if link is not None and names.cluster_of_alias(link.alias) != segment.id:
            raise _make_foreign_error(name, segment)
        if link is not None and is_inside:
            index = link.index
        else:
            if (temporary := names.temporary_gateway_port_name(segment.vlan)) in interfaces:
                self._kernel.delete(interfaces[temporary].index)
            index = self._kernel.add_namespace_veth(temporary, OUTSIDE, descriptor, ETHERNET_MTU)
            self._kernel.change(index, name=name, alias=names.ownership_alias(segment.id))
        self._kernel.set_up_link(index, name, find_link_addresses(segment.vlan).gateway)


def _make_foreign_error(name: str, segment: Segment) -> Unsafe:
    return Unsafe(f"the interface {name} belongs to no network of VLAN {segment.vlan}: remove or rename it")
