"""PURE. What is between the sites: each transport's core, and provider edges where it is made at them.

An edge's port towards a core is its ``core_port`` where service VLANs are made on one. In an EVPN fabric it bears the
name of the transport: the core is then a plain router, an edge's address there is its loopback.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from ipaddress import IPv4Address

from virtcloud.lab import names
from virtcloud.model.element import Edge
from virtcloud.model.topology import Attachment, Site, Topology
from virtcloud.model.transport import Transport, TransportKind

TRUNK_MTU = 1508  # room for a customer's and a provider's tag behind a full frame (IEEE 802.1ad)
FABRIC_MTU = 1600  # VXLAN puts 50 bytes around a frame (RFC 7348): a full one of a guest, with its header, stays whole
BRIDGE = "vlan_filtering 1 vlan_default_pvid 0 mcast_snooping 0"
ROUTER = {"net.ipv4.ip_forward": "1"}

Lines = tuple[str, ...]


@dataclass(frozen=True, slots=True)
class CoreWire:
    """An attachment as the lab builds it: from a node's port to the port ``core_port`` of the transport's core.

    ``addresses`` are those of both ends in an EVPN fabric: the core's, the edge's.
    """

    site: Site
    attachment: Attachment
    transport: Transport
    port: str
    core_port: str
    addresses: tuple[IPv4Address, IPv4Address]

    @property
    def node(self) -> str:
        """The switch or the edge."""
        return self.attachment.port.element


def core_wires(topology: Topology) -> Iterator[CoreWire]:
    """Give all attachments; ports of cores bear their sites' names, numbered from a site's second one on."""
    count = 0
    for site in topology.sites:
        seen: list[str] = []
        for one in site.attachments:
            seen.append(one.transport)
            transport = topology.transport(one.transport)
            number = seen.count(one.transport)
            core_port = site.name if number == 1 else f"{site.name[:12]}-{number}"
            port = _port(topology, one, transport)
            yield CoreWire(site, one, transport, port, core_port, names.fabric_addresses(count))
            count += 1


def _port(topology: Topology, attachment: Attachment, transport: Transport) -> str:
    element = topology.elements.get(attachment.port.element)
    if not isinstance(element, Edge):
        return attachment.port.port
    return transport.name if is_fabric(transport) else str(element.core_port)


def is_fabric(transport: Transport) -> bool:
    """Say whether edges talk IP and BGP there."""
    return transport.kind is TransportKind.EVPN


def bridge_lines(ports: tuple[str, ...], protocol: str = "") -> Lines:
    """Make a VLAN-aware bridge whose ports carry no VLAN yet."""
    return (
        f"link add br0 mtu {TRUNK_MTU} type bridge {BRIDGE}{protocol}",
        "link set br0 up",
        *(f"link set {port} master br0 up" for port in ports),
    )


def core_lines(transport: Transport, topology: Topology) -> tuple[Lines, Lines]:
    """Make a transport's core (ip lines, bridge lines).

    A core that is a bridge is a tagged member itself, so that a capture on it sees frames as they travel.
    """
    ends = [one for one in core_wires(topology) if one.transport == transport]
    if is_fabric(transport):
        return tuple(line for one in ends for line in _router_lines(topology, one)), ()
    ports = tuple(one.core_port for one in ends)
    if transport.kind is TransportKind.DIRECT:
        return bridge_lines(ports), _passed(ports, "1-4094")
    lines = bridge_lines(ports, " vlan_protocol 802.1ad")
    if transport.s_tags:
        return lines, _passed(ports, str(transport.s_tags))
    members = tuple(f"vlan add dev {port} vid {transport.s_tag} pvid untagged" for port in ports)
    return lines, (*members, f"vlan add dev br0 vid {transport.s_tag} self")


def _passed(ports: Lines, numbers: str) -> Lines:
    return (*(f"vlan add dev {port} vid {numbers}" for port in ports), f"vlan add dev br0 vid {numbers} self")


def _router_lines(topology: Topology, one: CoreWire) -> Lines:
    ours, theirs = one.addresses
    return (
        f"addr add {ours}/31 dev {one.core_port}",
        f"link set {one.core_port} up",
        f"route add {loopback(topology, one)}/32 via {theirs}",
    )


def edge_lines(edge: Edge, topology: Topology) -> Lines:
    """Make a provider edge that carries nothing yet: its bridge with the ports to customers, its ways to each core."""
    ours = [one for one in core_wires(topology) if one.node == edge.name]
    lines = bridge_lines(tuple(str(port) for port in edge.ports))
    if any(is_fabric(one.transport) for one in ours):
        lines += (f"addr add {edge.loopback}/32 dev lo",)
    return lines + tuple(line for one in ours for line in _way_lines(topology, one))


def _way_lines(topology: Topology, one: CoreWire) -> Lines:
    if not is_fabric(one.transport):
        return (f"link set {one.port} up",)
    theirs, ours = one.addresses
    peers = tuple(f"route add {peer}/32 via {theirs}" for peer in peers_of(topology, one))
    return (f"addr add {ours}/31 dev {one.port}", f"link set {one.port} up", *peers)


def peers_of(topology: Topology, one: CoreWire) -> Lines:
    """Give the loopbacks of the other edges on the same transport."""
    others = (other for other in core_wires(topology) if other.transport == one.transport and other.node != one.node)
    return tuple(loopback(topology, other) for other in others)


def loopback(topology: Topology, one: CoreWire) -> str:
    """Give the loopback of the edge that a wire ends at."""
    edge = topology.element(one.node)
    return str(edge.loopback) if isinstance(edge, Edge) else ""
