"""The observed servers of a host (DHCP, DNS and metadata), and the steps to the wanted servers. Pure."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Final

from virtcloud.agent.host_services.dnsmasq_config import render_dnsmasq
from virtcloud.agent.host_services.metadata_documents import hash_metadata
from virtcloud.agent.network import names
from virtcloud.agent.network.interfaces import KernelInterface
from virtcloud.agent.segment_step import SegmentStep, format_faults
from virtcloud.model.cluster import HostService
from virtcloud.model.errors import Refused
from virtcloud.model.message_text import count_of
from virtcloud.model.wanted import Segment

SERVICE_NAMES: Final[dict[HostService, str]] = {"dhcp": "DHCP", "dns": "DNS", "metadata": "metadata"}


@dataclass(frozen=True, slots=True)
class ObservedServer:
    """The server of a cluster's guests on this host.

    ``config`` and ``names`` are the digests of the files that the server has read. ``metadata`` is the digest of the
    documents of the server's metadata service, or "" if the server has no metadata service. ``vlan`` is None if the
    server has neither a readable record nor a port.
    """

    cluster: str
    vlan: int | None
    config: str = ""
    names: str = ""
    faults: tuple[str, ...] = ()
    metadata: str = ""


@dataclass(frozen=True, slots=True)
class ServeGuests(SegmentStep):
    """Start the server of a segment's guests, or correct the server's faults, settings, names and metadata."""

    def __str__(self) -> str:
        """Describe the step."""
        services = " and ".join(SERVICE_NAMES[service] for service in self.segment.host_services)
        return f"serve {services} to {count_of(len(self.segment.guests), 'guest')}{format_faults(self.faults)}"


@dataclass(frozen=True, slots=True)
class StopServing:
    """Remove the server of a cluster's guests: its process, network namespace and files."""

    cluster: str
    vlan: int | None

    def __str__(self) -> str:
        """Describe the step."""
        if self.vlan is None:
            return "remove the files of a server for guests"
        return f"stop the server for guests in VLAN {self.vlan}"


def has_server(segment: Segment) -> bool:
    """Return whether this host must run a server for a segment."""
    return bool(segment.host_services and segment.guests)


def find_unwanted_servers(segments: Iterable[Segment], observed: Iterable[ObservedServer]) -> Iterator[StopServing]:
    """Yield a step that removes the server, for each observed server whose segment is not wanted or needs no server."""
    served = [segment for segment in segments if has_server(segment)]
    wanted = {(segment.id, vlan) for segment in served for vlan in (segment.vlan, None)}
    for server in observed:
        if (server.cluster, server.vlan) not in wanted:
            yield StopServing(server.cluster, server.vlan)


def find_server_changes(segment: Segment, observed: Iterable[ObservedServer]) -> Iterator[ServeGuests]:
    """Yield the step that starts or corrects the server of a segment, if the segment needs a server."""
    if not has_server(segment):
        return
    found = (server for server in observed if (server.cluster, server.vlan) == (segment.id, segment.vlan))
    server = next(found, None)
    if server is None:
        yield ServeGuests(segment)
    elif faults := (*server.faults, *_describe_outdated(server, segment)):
        yield ServeGuests(segment, faults)


def _describe_outdated(server: ObservedServer, segment: Segment) -> Iterator[str]:
    files = render_dnsmasq(segment)
    if server.config != files.config_digest:
        yield "other settings"
    if server.names != files.names_digest:
        yield "other names"
    if server.metadata != hash_metadata(segment):
        yield "other metadata"


def find_bridge(segment: Segment, interfaces: Iterable[KernelInterface]) -> KernelInterface:
    """Return the bridge of a segment. Raise Refused if this host has no such bridge."""
    for interface in interfaces:
        if interface.name == names.bridge_name(segment.vlan) and names.cluster_of_alias(interface.alias) == segment.id:
            return interface
    raise Refused(
        f"expected bridge {names.bridge_name(segment.vlan)} of cluster {segment.key}, found none on this host"
    )


def find_port(cluster: str, vlan: int, interfaces: Iterable[KernelInterface]) -> KernelInterface | None:
    """Return the bridge port of a cluster's server, or None. The port may be detached from the bridge."""
    named = (interface for interface in interfaces if interface.name == names.server_port_name(vlan))
    return next((port for port in named if names.cluster_of_alias(port.alias) == cluster), None)


def find_port_faults(cluster: str, vlan: int, interfaces: Iterable[KernelInterface]) -> Iterator[str]:
    """Yield the faults of the server's port, and a fault for each uplink port that is not isolated.

    If the server's port is missing, yield only this fault.
    """
    by_name = {interface.name: interface for interface in interfaces}
    name, bridge = names.server_port_name(vlan), by_name.get(names.bridge_name(vlan))
    port = by_name.get(name)
    if port is None or names.cluster_of_alias(port.alias) != cluster:
        yield f"{name} is missing"
        return
    if bridge is None or port.master != bridge.index:
        yield f"{name} is not on {names.bridge_name(vlan)}"
    if not port.up:
        yield f"{name} is down"
    uplinks = [] if bridge is None else list_uplink_ports(bridge, by_name.values())
    for interface in (port, *uplinks):
        if not interface.isolated:
            yield f"{interface.name} is not isolated"


def list_uplink_ports(bridge: KernelInterface, interfaces: Iterable[KernelInterface]) -> list[KernelInterface]:
    """Return the ports that connect a bridge to the site's network: the tagged interface, or an untagged uplink.

    Omit foreign ports.
    """
    cluster, uplink = names.cluster_of_alias(bridge.alias), names.uplink_of_alias(bridge.alias)
    return [
        interface
        for interface in interfaces
        if interface.master == bridge.index
        and names.vlan_of_job_port(interface.name) is None
        and names.vlan_of_server_port(interface.name) is None
        and names.vlan_of_vpn_port(interface.name) is None
        and names.vlan_of_gateway_port(interface.name) is None
        and (interface.name == uplink or (uplink is None and names.cluster_of_alias(interface.alias) == cluster))
    ]
