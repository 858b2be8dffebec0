"""PURE. A topology's cables and what ip, bridge and tc are told on each node."""

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass

from virtcloud.lab import names
from virtcloud.lab.fabric.plan import Cable
from virtcloud.model.topology import Attachment, Element, Site, Switch, Topology
from virtcloud.model.transport import Transport

HOST_MTU = 1500
TRUNK_MTU = 1508  # room for a customer's and a provider's tag behind a full frame (IEEE 802.1ad)
BRIDGE = "vlan_filtering 1 vlan_default_pvid 0 mcast_snooping 0"


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
    """Give all wires between nodes: the topology's links, then each attachment to its transport's core."""
    links = [
        Wire(link.a.element, link.a.port, link.b.element, link.b.port, link.latency_ms, link.bandwidth_mbit)
        for link in topology.links
    ]
    return links + [
        Wire(one.port.element, one.port.port, one.transport, core_port, one.latency_ms, one.bandwidth_mbit)
        for core_port, one in attachments(topology)
    ]


def attachments(topology: Topology) -> Iterator[tuple[str, Attachment]]:
    """Give each attachment with its port on the core: the site's name, numbered from its second one on."""
    for site in topology.sites:
        seen: Counter[str] = Counter()
        for attachment in site.attachments:
            seen[attachment.transport] += 1
            yield _core_port(site, seen[attachment.transport]), attachment


def _core_port(site: Site, number: int) -> str:
    return site.name if number == 1 else f"{site.name[:12]}-{number}"


def cables(topology: Topology) -> list[Cable]:
    """Give the cables of all wires; a port that is joined to nothing gets a cable that ends in the air."""
    joined = [
        Cable(one.node, one.port, mtu(topology, one.node), one.peer_node, one.peer_port, mtu(topology, one.peer_node))
        for one in wires(topology)
    ]
    used = {(one.node, one.port) for one in joined} | {(one.peer_node, one.peer_port) for one in joined}
    free = [(name, port) for name, one in topology.elements.items() for port in one.ports if (name, port) not in used]
    return joined + [
        Cable(name, port, mtu(topology, name), "", f"x{number}", TRUNK_MTU) for number, (name, port) in enumerate(free)
    ]


def mtu(topology: Topology, node: str) -> int:
    """Give the MTU of a node's ports: switches and cores have room for tags, hosts are as hosts are."""
    return HOST_MTU if node in topology.elements and not isinstance(topology.element(node), Switch) else TRUNK_MTU


def switch_lines(ports: tuple[str, ...]) -> tuple[str, ...]:
    """Make a VLAN-aware bridge whose ports carry no VLAN yet."""
    return (f"link add br0 mtu {TRUNK_MTU} type bridge {BRIDGE}", "link set br0 up", *_members(ports))


def core_lines(transport: Transport, topology: Topology) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Make a provider core (ip lines, bridge lines): all that a site sends travels in the transport's service VLAN.

    The bridge itself is a tagged member, so that a capture on it sees frames as they travel, with both tags.
    """
    ports = tuple(port for port, one in attachments(topology) if one.transport == transport.name)
    lines = (
        f"link add br0 mtu {TRUNK_MTU} type bridge {BRIDGE} vlan_protocol 802.1ad",
        "link set br0 up",
        *_members(ports),
    )
    members = tuple(f"vlan add dev {port} vid {transport.s_tag} pvid untagged" for port in ports)
    return lines, (*members, f"vlan add dev br0 vid {transport.s_tag} self")


def _members(ports: tuple[str, ...]) -> tuple[str, ...]:
    return tuple(f"link set {port} master br0 up" for port in ports)


def plain_lines(element: Element) -> tuple[str, ...]:
    """Take a host's or a gateway's ports up."""
    return tuple(f"link set {port} up" for port in element.ports)


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
