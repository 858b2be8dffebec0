"""The checks of a topology. ``tests/unit/model/test_topology.py`` has an example of each fault."""

from collections.abc import Iterator
from collections.abc import Set as AbstractSet
from itertools import combinations
from typing import Final

from virtcloud.model.element import Edge, Element, ElementKind, Gateway, find_duplicates, kind_of
from virtcloud.model.errors import BadInput
from virtcloud.model.topology_document import Link, Site, TopologyDocument
from virtcloud.model.transport import Transport
from virtcloud.model.values import PortRef

Path = tuple[str | int, ...]

ACCESS_LINK_ENDS: Final = ({ElementKind.HOST, ElementKind.SWITCH}, {ElementKind.GATEWAY, ElementKind.SWITCH})
"""The kinds of elements that an access link may connect."""


def find_topology_faults(topology: TopologyDocument) -> Iterator[BadInput]:
    """Yield the faults of a topology. Names are checked first, because all other checks assume valid names.

    A caller must stop at the first fault: later checks can raise errors or yield wrong faults.
    """
    yield from _name_faults(topology)
    yield from _port_faults(topology)
    yield from _transport_faults(topology)
    yield from _attachment_faults(topology)
    yield from _link_faults(topology)
    yield from _unlinked_faults(topology)


def _name_faults(topology: TopologyDocument) -> Iterator[BadInput]:
    names = [element.name for site in topology.sites for element in site.elements]
    names += [transport.name for transport in topology.transports]
    for name in find_duplicates(names):
        yield BadInput(f"expected each element and transport to have its own name, got {name} twice", ("sites",))
    for index, site in enumerate(topology.sites):
        for name in find_duplicates([destination.name for destination in site.destinations]):
            message = f"site {site.name}: expected each destination to have its own name, got {name} twice"
            yield BadInput(message, ("sites", index, "destinations"))
        for gateway in site.gateways:
            if gateway.outside is not None and gateway.outside.interface in gateway.ports:
                message = (
                    f"gateway {gateway.name}: expected, as link to the outside, an interface that is not one of the "
                    f"gateway's managed ports, got {gateway.outside.interface}"
                )
                yield BadInput(message, ("sites", index, "gateways"))
    for name in find_duplicates([site.name for site in topology.sites]):
        yield BadInput(f"expected each site to have its own name, got {name} twice", ("sites",))


def _port_faults(topology: TopologyDocument) -> Iterator[BadInput]:
    ports = {f"{element.name}:{port}" for element in topology.elements.values() for port in element.ports}
    if _uses_each_port_once(topology, ports):
        return
    used: set[PortRef] = set()
    for end, path in _port_uses(topology):
        if end not in ports:
            yield _describe_unknown_port(topology, end, path)
        elif path[0] == "sites" and isinstance(topology.elements[end.element], Edge):
            continue  # an edge's attachment port also has a link to a switch
        if end in used:
            yield BadInput(f"port {end}: expected at most one link on a port, got two", path)
        used.add(end)


def _uses_each_port_once(topology: TopologyDocument, ports: AbstractSet[str]) -> bool:
    """Return whether all ports in use are in ``ports``, and no port has two uses.

    This check is several times faster than the search for the faulty port. A port of an edge may have an attachment and
    a link.
    """
    uses = [attachment.port for site in topology.sites for attachment in site.attachments]
    uses += [link.a for link in topology.links]
    uses += [link.b for link in topology.links]
    used = set(uses)
    return len(used) == len(uses) and used <= ports


def _describe_unknown_port(topology: TopologyDocument, end: PortRef, path: Path) -> BadInput:
    element = topology.elements.get(end.element)
    if element is None:
        return BadInput(f"port {end}: expected an element of this topology, got {end.element}", path)
    known = ", ".join(element.ports)
    return BadInput(f"port {end}: expected a port of {end.element} ({known}), got {end.port}", path)


def _port_uses(topology: TopologyDocument) -> Iterator[tuple[PortRef, Path]]:
    for site_index, site in enumerate(topology.sites):
        for index, attachment in enumerate(site.attachments):
            yield attachment.port, ("sites", site_index, "attachments", index, "port")
    for index, link in enumerate(topology.links):
        yield link.a, ("links", index, "a")
        yield link.b, ("links", index, "b")


def _transport_faults(topology: TopologyDocument) -> Iterator[BadInput]:
    """Yield a fault for each pair of transports on which two clusters could get the same service ID.

    Such transports are of the same kind and have common service IDs, and at least one of the two is configured at
    provider edges.
    """
    for (_, transport), (index, other) in combinations(enumerate(topology.transports), 2):
        both = transport.find_common_service_ids(other)
        if both and transport.kind is other.kind and (transport.on_edges or other.on_edges):
            yield BadInput(
                f"transports {transport.name} and {other.name} of kind {transport.kind}: expected different service "
                f"IDs, got {both} in both",
                ("transports", index),
            )


def _attachment_faults(topology: TopologyDocument) -> Iterator[BadInput]:
    known = {transport.name: transport for transport in topology.transports}
    for site_index, site in enumerate(topology.sites):
        for index, attachment in enumerate(site.attachments):
            path = ("sites", site_index, "attachments", index)
            transport = known.get(attachment.transport)
            if transport is None:
                expected = ", ".join(sorted(known)) or "none is defined"
                message = f"site {site.name}: expected a known transport ({expected}), got {attachment.transport}"
                yield BadInput(message, (*path, "transport"))
            else:
                yield from _attachment_port_faults(topology, site, attachment.port, transport, (*path, "port"))


def _attachment_port_faults(
    topology: TopologyDocument, site: Site, port: PortRef, transport: Transport, path: Path
) -> Iterator[BadInput]:
    kind, allowed = ("edges", site.edges) if transport.on_edges else ("switches", site.switches)
    if port.element not in {element.name for element in allowed}:
        reason = f" (transport {transport.name} is configured at provider edges)" if transport.on_edges else ""
        yield BadInput(f"site {site.name}: expected a port of one of its {kind}{reason}, got {port}", path)
        return
    peer = topology.peers.get(port)
    if transport.on_edges and (peer is None or peer.element not in {switch.name for switch in site.switches}):
        yield BadInput(f"port {port}: expected a link to a switch of {site.name}, got {peer or 'none'}", path)


def _link_faults(topology: TopologyDocument) -> Iterator[BadInput]:
    elements, cables = topology.elements, dict(_count_cables(topology))
    for index, link in enumerate(topology.links):
        a, b = cables.get(link.a, 1), cables.get(link.b, 1)
        if a != b:
            message = f"link {link.a} to {link.b}: expected the same number of cables at both ends, got {a} and {b}"
            yield BadInput(message, ("links", index))
        if link.access:
            ends = elements[link.a.element], elements[link.b.element]
            yield from _access_link_faults(link, ends, ("links", index, "access"))


def _count_cables(topology: TopologyDocument) -> Iterator[tuple[PortRef, int]]:
    """Yield the interface of each link aggregate, with the number of its member ports."""
    for element in topology.elements.values():
        for port, members in element.aggregates.items():
            yield PortRef.of(element.name, port), len(members)


def _access_link_faults(link: Link, elements: tuple[Element, Element], path: Path) -> Iterator[BadInput]:
    message = f"access link {link.a} to {link.b}: expected"
    if {kind_of(element) for element in elements} not in ACCESS_LINK_ENDS:
        yield BadInput(f"{message} a host or gateway at one end, a switch at the other", path)
    for gateway in elements:
        for key in ("vpn", "nfs"):
            if isinstance(gateway, Gateway) and getattr(gateway, key) is not None:
                yield BadInput(f"{message} a tagged link, because {gateway.name} has `{key}`", path)


def _unlinked_faults(topology: TopologyDocument) -> Iterator[BadInput]:
    peers = topology.peers
    for site_index, site in enumerate(topology.sites):
        switches = {switch.name for switch in site.switches}
        for field in ("hosts", "gateways"):
            for index, element in enumerate(getattr(site, field)):
                ends = (peers.get(PortRef.of(element.name, port)) for port in element.ports)
                if switches.isdisjoint([end.element for end in ends if end is not None]):
                    yield BadInput(
                        f"{kind_of(element)} {element.name} has no link to a switch: expected a link from one of its "
                        f"ports ({', '.join(element.ports)}) to a port of a switch at {site.name}",
                        ("sites", site_index, field, index),
                    )
