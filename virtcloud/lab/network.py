"""PURE. A topology's cables and what ip, bridge and tc are told on each node."""

from collections.abc import Collection
from dataclasses import dataclass

from virtcloud.lab import backbone, names
from virtcloud.lab.fabric.plan import Cable
from virtcloud.model.element import Device, Edge, Element, Switch
from virtcloud.model.topology import Topology

HOST_MTU = 1500
BOND = "mode 802.3ad miimon 100 lacp_rate fast"


@dataclass(frozen=True, slots=True)
class Wire:
    """Two ports joined, with one-way latency in ms and bandwidth in Mbit/s (0 and None: none that we add)."""

    node: str
    port: str
    peer_node: str
    peer_port: str
    latency_ms: float
    bandwidth_mbit: float | None


def wires(topology: Topology) -> list[Wire]:
    """Give all wires between nodes: the topology's links, then each attachment to its transport's core.

    A link between aggregates is as many wires, each of the link's latency and bandwidth.
    """
    links = [
        Wire(link.a.element, a, link.b.element, b, link.latency_ms, link.bandwidth_mbit)
        for link in topology.links
        for a, b in zip(*(topology.element(end.element).members(end.port) for end in link.ends), strict=True)
    ]
    return links + [_core_wire(one) for one in backbone.core_wires(topology)]


def _core_wire(one: backbone.CoreWire) -> Wire:
    shape = one.attachment
    return Wire(one.node, one.port, one.transport.name, one.core_port, shape.latency_ms, shape.bandwidth_mbit)


def cables(topology: Topology) -> list[Cable]:
    """Give the cables of all wires; a port that is joined to nothing gets a cable that ends in the air."""

    def cable(one: Wire) -> Cable:
        mtus = mtu(topology, one.node, one.port), mtu(topology, one.peer_node, one.peer_port)
        return Cable(one.node, one.port, mtus[0], one.peer_node, one.peer_port, mtus[1])

    joined = [cable(one) for one in wires(topology)]
    used = {(one.node, one.port) for one in joined} | {(one.peer_node, one.peer_port) for one in joined}
    ends = [(name, end) for name, one in topology.elements.items() for port in one.ports for end in one.members(port)]
    free = [end for end in ends if end not in used]
    return joined + [
        Cable(name, port, mtu(topology, name, port), "", f"x{number}", backbone.TRUNK_MTU)
        for number, (name, port) in enumerate(free)
    ]


def mtu(topology: Topology, node: str, port: str) -> int:
    """Give a port's MTU: devices and cores have room for tags, EVPN fabrics for VXLAN, hosts are as hosts are."""
    element = topology.elements.get(node)  # type: ignore[call-overload]
    fabrics = {one.name for one in topology.transports if backbone.is_fabric(one)}
    if node in fabrics or (isinstance(element, Edge) and port in fabrics):
        return backbone.FABRIC_MTU
    return backbone.TRUNK_MTU if element is None or isinstance(element, Device) else HOST_MTU


def switch_lines(switch: Switch) -> tuple[str, ...]:
    """Make a VLAN-aware bridge whose ports carry no VLAN yet."""
    return (*_bond_lines(switch, backbone.TRUNK_MTU), *backbone.bridge_lines(tuple(map(str, switch.ports))))


def peers_of(topology: Topology, nodes: Collection[str], node: str) -> tuple[str, ...]:
    """Give the ports of ``node`` that are joined to one of ``nodes``."""
    joined = [(one.node, one.port, one.peer_node) for one in wires(topology)]
    joined += [(one.peer_node, one.peer_port, one.node) for one in wires(topology)]
    return tuple(port for name, port, peer in joined if name == node and peer in nodes)


def _bond_lines(element: Element, mtu: int) -> tuple[str, ...]:
    """Make link aggregates (802.3ad) out of cables that are still down."""
    bonds = tuple(f"link add {port} mtu {mtu} type bond {BOND}" for port in element.aggregates)
    members = [(member, port) for port, members in element.aggregates.items() for member in members]
    return (*bonds, *(f"link set {member} master {port}" for member, port in members))


def plain_lines(element: Element) -> tuple[str, ...]:
    """Take a host's or a gateway's ports up."""
    return (*_bond_lines(element, HOST_MTU), *(f"link set {port} up" for port in element.ports))


def shaping_lines(topology: Topology, node: str) -> tuple[str, ...]:
    """Delay and limit what ``node`` sends; each end of a wire does so for its own direction."""
    ends = [(one.node, one.port, one) for one in wires(topology)]
    ends += [(one.peer_node, one.peer_port, one) for one in wires(topology)]
    return tuple(
        f"qdisc add dev {port} root netem limit 10000{_netem(one)}"
        for name, port, one in ends
        if name == node and (one.latency_ms or one.bandwidth_mbit)
    )


def _netem(wire: Wire) -> str:
    delay = f" delay {wire.latency_ms:g}ms" if wire.latency_ms else ""
    return delay + (f" rate {wire.bandwidth_mbit:g}mbit" if wire.bandwidth_mbit else "")


def management_lines(number: int) -> tuple[str, ...]:
    """Set up a node's management interface and its loopback."""
    address = f"{names.management_address(number)}/{names.PREFIX}"
    return ("link set lo up", f"addr add {address} dev mgmt0", "link set mgmt0 up")


def outside_lines(number: int, port: str) -> tuple[str, ...]:
    """Set up a node's interface to the network outside."""
    return (f"addr add {names.outside_address(number)}/{names.PREFIX} dev {port}", f"link set {port} up")
