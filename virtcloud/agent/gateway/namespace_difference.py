"""The observed namespaces of a gateway, and the steps to the wanted namespaces. Pure."""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from ipaddress import ip_interface
from typing import Any

from virtcloud.agent.gateway.connected_routes import list_connected
from virtcloud.agent.gateway.namespace_config import DEVICE, PORT, NamespaceConfig, make_namespace_config
from virtcloud.agent.gateway.outside_links import has_link
from virtcloud.agent.network import names
from virtcloud.agent.network.interfaces import KernelInterface
from virtcloud.agent.segment_step import SegmentStep, format_faults
from virtcloud.model.wanted import Segment


@dataclass(frozen=True, slots=True)
class ObservedNamespace:
    """A gateway's namespace in a network.

    ``state`` is the state that `namespace_program` read, or None if there is no namespace. ``ports`` and ``links``
    contain the faults of each port on the network's bridges and of each link to the outside, by VLAN ID. A port or link
    without faults has an empty tuple.
    """

    cluster: str
    state: Mapping[str, Any] | None = None
    ports: Mapping[int, tuple[str, ...]] = field(default_factory=dict)
    links: Mapping[int, tuple[str, ...]] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class BuildNamespace(SegmentStep):
    """Create a gateway's namespace in a network, or correct its faults."""

    def __str__(self) -> str:
        """Describe the step."""
        addresses = " and ".join(self.segment.gateway_addresses)
        return f"offer {addresses} in VLAN {self.segment.vlan}{format_faults(self.faults)}"


@dataclass(frozen=True, slots=True)
class RemoveNamespace:
    """Remove a gateway's namespace in a network, with the namespace's port and link to the outside."""

    cluster: str

    def __str__(self) -> str:
        """Describe the step."""
        return "remove the gateway's network namespace"


NamespaceStep = BuildNamespace | RemoveNamespace


def find_unwanted_namespaces(
    segments: Iterable[Segment], observed: Iterable[ObservedNamespace]
) -> Iterator[RemoveNamespace]:
    """Yield the steps that remove the namespaces of networks in which the gateway should have no address."""
    wanted = {segment.id for segment in segments if segment.gateway_addresses}
    for namespace in observed:
        if namespace.cluster not in wanted:
            yield RemoveNamespace(namespace.cluster)


def find_namespace_changes(segment: Segment, observed: Iterable[ObservedNamespace]) -> Iterator[BuildNamespace]:
    """Yield the step that creates or corrects a network's namespace, if necessary."""
    if not segment.gateway_addresses:
        return
    namespace = next((one for one in observed if one.cluster == segment.id), None)
    if namespace is None:
        yield BuildNamespace(segment)
    elif faults := tuple(_find_faults(segment, namespace)):
        yield BuildNamespace(segment, faults)


def _find_faults(segment: Segment, observed: ObservedNamespace) -> Iterator[str]:
    port = names.gateway_port_name(segment.vlan)
    yield from observed.ports.get(segment.vlan, (f"{port} is missing",))
    if has_link(segment):
        yield from observed.links.get(segment.vlan, (f"{names.outside_link_name(segment.vlan)} is missing",))
    elif observed.links:
        yield "the namespace's link to the outside is not wanted"
    if observed.state is None:
        yield "the namespace is missing"
    elif error := observed.state.get("error"):
        yield str(error)
    else:
        yield from _find_state_faults(make_namespace_config(segment), observed.state)


def _find_state_faults(config: NamespaceConfig, state: Mapping[str, Any]) -> Iterator[str]:
    port = state["interfaces"].get(PORT)
    if port is None:
        yield f"{PORT} is missing"
    elif port["master"] != DEVICE or not port["up"]:
        yield f"{PORT} is down" if port["master"] == DEVICE else f"{PORT} is not on {DEVICE}"
    for device, addresses in config.addresses.items():
        faults = list(_find_interface_faults(device, addresses, state["interfaces"].get(device)))
        yield from faults
        lost = sorted(set(list_connected(device, addresses)).difference(state["connected"])) if not faults else ()
        yield from (f"the route to {route} is missing" for route in lost)
    for name, value in config.sysctls.items():
        if state["sysctls"].get(name, value) != value:  # a kernel without IPv6 has no sysctls of IPv6
            yield f"{name} is {state['sysctls'][name]}"
    for table in config.tables:
        yield from table.find_faults(state["tables"][table.family])
    if len(config.tables) == 1 and state["tables"]["inet"] is not None:
        yield "packets are forwarded"
    if sorted(config.routers) != state["routes"]:
        yield f"the default routes lead to {', '.join(state['routes']) or 'no router'}"


def _find_interface_faults(device: str, addresses: Iterable[str], found: Mapping[str, Any] | None) -> Iterator[str]:
    if found is None:
        yield f"{device} is missing"
        return
    if not found["up"]:
        yield f"{device} is down"
    if {ip_interface(text) for text in addresses} != {ip_interface(text) for text in found["addresses"]}:
        yield f"{device} has the addresses {', '.join(found['addresses']) or 'none'}"


def find_links(interfaces: Iterable[KernelInterface]) -> dict[str, dict[int, tuple[str, ...]]]:
    """Return the faults of each link ``vu<vlan>`` to the outside, by cluster ID and VLAN ID."""
    found: dict[str, dict[int, tuple[str, ...]]] = {}
    for link in interfaces:
        vlan, cluster = names.vlan_of_outside_link(link.name), names.cluster_of_alias(link.alias)
        if vlan is not None and cluster is not None:
            faults = [*(() if link.up else (f"{link.name} is down",))]
            faults += [] if link.addressed else [f"{link.name} has no address"]
            found.setdefault(cluster, {})[vlan] = tuple(faults)
    return found


def find_gateway_ports(interfaces: Iterable[KernelInterface]) -> dict[str, dict[int, tuple[str, ...]]]:
    """Return the faults of the gateway's ports on networks' bridges, by cluster ID and VLAN ID."""
    listed = list(interfaces)
    found: dict[str, dict[int, tuple[str, ...]]] = {}
    for port in listed:
        vlan, cluster = names.vlan_of_gateway_port(port.name), names.cluster_of_alias(port.alias)
        if vlan is not None and cluster is not None:
            found.setdefault(cluster, {})[vlan] = tuple(_find_port_faults(port, vlan, cluster, listed))
    return found


def _find_port_faults(
    port: KernelInterface, vlan: int, cluster: str, interfaces: Iterable[KernelInterface]
) -> Iterator[str]:
    bridge = next((one for one in interfaces if one.name == names.bridge_name(vlan)), None)
    if bridge is None or port.master != bridge.index or names.cluster_of_alias(bridge.alias) != cluster:
        yield f"{port.name} is not on {names.bridge_name(vlan)}"
    elif port.mtu != bridge.mtu:
        yield f"{port.name} has MTU {port.mtu}, expected {bridge.mtu}"
    if not port.up:
        yield f"{port.name} is down"
    if not port.host_ip_disabled:
        yield f"the host's IP stack uses {port.name}"
