"""The lab's links, and the commands (ip, bridge, tc) that create them on each node. Pure.

Links connect elements with each other, and sites with the cores of transports. A core is a node that represents the
provider's network. The core of an EVPN fabric is a router, and every other core is a bridge. If a transport uses
service VLANs, an edge's port towards the core is the edge's ``core_port``. In an EVPN fabric, an edge's port towards
the core has the transport's name, and the edges reach each other at their loopback addresses.
"""

from collections.abc import Collection, Iterator
from dataclasses import dataclass
from ipaddress import IPv4Address

from virtcloud.lab import addressing
from virtcloud.lab.fabric.plan import VethPair
from virtcloud.model.element import Device, Edge, Element, Switch
from virtcloud.model.topology import Topology
from virtcloud.model.topology_document import Attachment, Site
from virtcloud.model.transport import Transport, TransportKind

TRUNK_MTU = 1508  # a full frame with a customer's and a provider's tag (IEEE 802.1ad)
FABRIC_MTU = 1600  # a guest's full frame with its header, and the 50 bytes of VXLAN (RFC 7348)
BRIDGE_OPTIONS = "vlan_filtering 1 vlan_default_pvid 0 mcast_snooping 0"
ROUTER_SYSCTLS = {"net.ipv4.ip_forward": "1"}

CommandLines = tuple[str, ...]


@dataclass(frozen=True, slots=True)
class CoreWire:
    """The link of an attachment: from a node's port to the port ``core_port`` of the transport's core.

    ``addresses`` contains the IP addresses of the core's port and of the edge's port. Only EVPN fabrics use these
    addresses.
    """

    site: Site
    attachment: Attachment
    transport: Transport
    port: str
    core_port: str
    addresses: tuple[IPv4Address, IPv4Address]

    @property
    def node(self) -> str:
        """The name of the attached switch or edge."""
        return self.attachment.port.element


def core_wires(topology: Topology) -> Iterator[CoreWire]:
    """Yield the link of each attachment.

    A core's port has the name of the attached site, such as ``brno``. Further ports for the same site are ``brno-2``,
    ``brno-3`` and so on.
    """
    count = 0
    for site in topology.sites:
        transports: list[str] = []
        for attachment in site.attachments:
            transports.append(attachment.transport)
            transport = topology.transport(attachment.transport)
            number = transports.count(attachment.transport)
            core_port = site.name if number == 1 else f"{site.name[:12]}-{number}"
            port = _edge_port(topology, attachment, transport)
            yield CoreWire(site, attachment, transport, port, core_port, addressing.fabric_addresses(count))
            count += 1


def _edge_port(topology: Topology, attachment: Attachment, transport: Transport) -> str:
    element = topology.elements.get(attachment.port.element)
    if not isinstance(element, Edge):
        return attachment.port.port
    return transport.name if is_fabric(transport) else str(element.core_port)


def is_fabric(transport: Transport) -> bool:
    """Return whether a transport is an EVPN fabric, whose edges use IP and BGP."""
    return transport.kind is TransportKind.EVPN


def bridge_lines(ports: tuple[str, ...], protocol: str = "") -> CommandLines:
    """Return the commands for a VLAN-aware bridge whose ports are in no VLAN yet."""
    return (
        f"link add br0 mtu {TRUNK_MTU} type bridge {BRIDGE_OPTIONS}{protocol}",
        "link set br0 up",
        *(f"link set {port} master br0 up" for port in ports),
    )


def core_lines(transport: Transport, topology: Topology) -> tuple[CommandLines, CommandLines]:
    """Return the commands of ``ip``, and the commands of ``bridge``, for a transport's core.

    A core that is a bridge is itself a tagged member of all VLANs of the transport, so that a capture on its interface
    contains the frames with their tags.
    """
    ends = [wire for wire in core_wires(topology) if wire.transport == transport]
    if is_fabric(transport):
        return tuple(line for wire in ends for line in _router_lines(topology, wire)), ()
    ports = tuple(wire.core_port for wire in ends)
    if transport.kind is TransportKind.DIRECT:
        return bridge_lines(ports), _vlan_lines(ports, "1-4094")
    lines = bridge_lines(ports, " vlan_protocol 802.1ad")
    if transport.s_tags:
        return lines, _vlan_lines(ports, str(transport.s_tags))
    members = tuple(f"vlan add dev {port} vid {transport.s_tag} pvid untagged" for port in ports)
    return lines, (*members, f"vlan add dev br0 vid {transport.s_tag} self")


def _vlan_lines(ports: CommandLines, vlan_ids: str) -> CommandLines:
    return (*(f"vlan add dev {port} vid {vlan_ids}" for port in ports), f"vlan add dev br0 vid {vlan_ids} self")


def _router_lines(topology: Topology, wire: CoreWire) -> CommandLines:
    core_address, edge_address = wire.addresses
    return (
        f"addr add {core_address}/31 dev {wire.core_port}",
        f"link set {wire.core_port} up",
        f"route add {loopback(topology, wire)}/32 via {edge_address}",
    )


def edge_lines(edge: Edge, topology: Topology) -> CommandLines:
    """Return the commands that create an edge's bridge and its ports to customers and cores, but no circuits."""
    wires = [wire for wire in core_wires(topology) if wire.node == edge.name]
    lines = bridge_lines(tuple(str(port) for port in edge.ports))
    if any(is_fabric(wire.transport) for wire in wires):
        lines += (f"addr add {edge.loopback}/32 dev lo",)
    return lines + tuple(line for wire in wires for line in _core_port_lines(topology, wire))


def _core_port_lines(topology: Topology, wire: CoreWire) -> CommandLines:
    if not is_fabric(wire.transport):
        return (f"link set {wire.port} up",)
    core_address, edge_address = wire.addresses
    peers = tuple(f"route add {peer}/32 via {core_address}" for peer in peer_loopbacks(topology, wire))
    return (f"addr add {edge_address}/31 dev {wire.port}", f"link set {wire.port} up", *peers)


def peer_loopbacks(topology: Topology, wire: CoreWire) -> CommandLines:
    """Return the loopback addresses of the other edges on the transport of this link."""
    others = (other for other in core_wires(topology) if other.transport == wire.transport and other.node != wire.node)
    return tuple(loopback(topology, other) for other in others)


def loopback(topology: Topology, wire: CoreWire) -> str:
    """Return the loopback address of the edge at this link, or "" if a switch is at this link."""
    edge = topology.element(wire.node)
    return str(edge.loopback) if isinstance(edge, Edge) else ""


HOST_MTU = 1500
BOND_OPTIONS = "mode 802.3ad miimon 100 lacp_rate fast"


@dataclass(frozen=True, slots=True)
class NodeLink:
    """A link between two nodes. One-way latency is in ms (0: no delay), bandwidth in Mbit/s (None: no limit)."""

    node: str
    port: str
    peer_node: str
    peer_port: str
    latency_ms: float
    bandwidth_mbit: float | None


def node_links(topology: Topology) -> list[NodeLink]:
    """Return all links between nodes: first the topology's links, then the links to the cores of transports.

    For a link between aggregates, return a link for each pair of member ports, with the same latency and bandwidth.
    """
    links = [
        NodeLink(link.a.element, a, link.b.element, b, link.latency_ms, link.bandwidth_mbit)
        for link in topology.links
        for a, b in zip(*(topology.element(end.element).members(end.port) for end in link.ends), strict=True)
    ]
    return links + [_core_link(wire) for wire in core_wires(topology)]


def _core_link(wire: CoreWire) -> NodeLink:
    attachment = wire.attachment
    return NodeLink(
        wire.node, wire.port, wire.transport.name, wire.core_port, attachment.latency_ms, attachment.bandwidth_mbit
    )


def cables(topology: Topology) -> list[VethPair]:
    """Return a veth pair for each link, and for each port without a link.

    The other end of a port without a link is in the network namespace of the fabric's process.
    """

    def cable(link: NodeLink) -> VethPair:
        mtus = mtu(topology, link.node, link.port), mtu(topology, link.peer_node, link.peer_port)
        return VethPair(link.node, link.port, mtus[0], link.peer_node, link.peer_port, mtus[1])

    pairs = [cable(link) for link in node_links(topology)]
    used = {(pair.node, pair.port) for pair in pairs} | {(pair.peer_node, pair.peer_port) for pair in pairs}
    elements = topology.elements.items()
    ends = [(name, end) for name, element in elements for port in element.ports for end in element.members(port)]
    unlinked = [end for end in ends if end not in used]
    return pairs + [
        VethPair(name, port, mtu(topology, name, port), "", f"x{number}", TRUNK_MTU)
        for number, (name, port) in enumerate(unlinked)
    ]


def mtu(topology: Topology, node: str, port: str) -> int:
    """Return a port's MTU in bytes.

    The MTU of devices and cores includes space for VLAN tags, or for VXLAN between the edges and the core of an EVPN
    fabric. Hosts and gateways have an MTU of 1500.
    """
    element = topology.elements.get(node)  # type: ignore[call-overload]
    fabrics = {transport.name for transport in topology.transports if is_fabric(transport)}
    if node in fabrics or (isinstance(element, Edge) and port in fabrics):
        return FABRIC_MTU
    return TRUNK_MTU if element is None or isinstance(element, Device) else HOST_MTU


def switch_lines(switch: Switch) -> tuple[str, ...]:
    """Return the commands that create a switch: a VLAN-aware bridge whose ports are in no VLAN yet."""
    return (*_bond_lines(switch, TRUNK_MTU), *bridge_lines(tuple(map(str, switch.ports))))


def ports_towards(topology: Topology, nodes: Collection[str], node: str) -> tuple[str, ...]:
    """Return the ports of ``node`` that are linked to one of ``nodes``."""
    ends = [(link.node, link.port, link.peer_node) for link in node_links(topology)]
    ends += [(link.peer_node, link.peer_port, link.node) for link in node_links(topology)]
    return tuple(port for name, port, peer in ends if name == node and peer in nodes)


def _bond_lines(element: Element, mtu: int) -> tuple[str, ...]:
    """Return the commands that create link aggregates (802.3ad). The member interfaces must still be down."""
    bonds = tuple(f"link add {port} mtu {mtu} type bond {BOND_OPTIONS}" for port in element.aggregates)
    members = [(member, port) for port, members in element.aggregates.items() for member in members]
    return (*bonds, *(f"link set {member} master {port}" for member, port in members))


def port_up_lines(element: Element) -> tuple[str, ...]:
    """Return the commands that bring up a host's or gateway's ports."""
    return (*_bond_lines(element, HOST_MTU), *(f"link set {port} up" for port in element.ports))


def shaping_lines(topology: Topology, node: str) -> tuple[str, ...]:
    """Return the commands that apply the links' latency and bandwidth to the frames that ``node`` sends."""
    ends = [(link.node, link.port, link) for link in node_links(topology)]
    ends += [(link.peer_node, link.peer_port, link) for link in node_links(topology)]
    return tuple(
        f"qdisc add dev {port} root netem limit 10000{_netem(link)}"
        for name, port, link in ends
        if name == node and (link.latency_ms or link.bandwidth_mbit)
    )


def _netem(link: NodeLink) -> str:
    delay = f" delay {link.latency_ms:g}ms" if link.latency_ms else ""
    return delay + (f" rate {link.bandwidth_mbit:g}mbit" if link.bandwidth_mbit else "")


def management_lines(number: int) -> tuple[str, ...]:
    """Return the commands for a node's management interface and loopback."""
    address = f"{addressing.management_address(number)}/{addressing.PREFIX}"
    return ("link set lo up", f"addr add {address} dev mgmt0", "link set mgmt0 up")


def outside_lines(number: int, port: str) -> tuple[str, ...]:
    """Return the commands for a node's interface to the lab's external network."""
    return (f"addr add {addressing.outside_address(number)}/{addressing.PREFIX} dev {port}", f"link set {port} up")
