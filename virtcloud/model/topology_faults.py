"""What makes a topology impossible, each with where it stands; ``tests/unit/model/test_topology.py`` has them all."""

from collections.abc import Iterator
from itertools import combinations
from typing import TYPE_CHECKING

from virtcloud.model.element import Edge, ElementKind, kind_of, repeated
from virtcloud.model.errors import BadInput
from virtcloud.model.transport import Transport
from virtcloud.model.values import PortRef

if TYPE_CHECKING:
    from virtcloud.model.topology import Site, Topology

Path = tuple[str | int, ...]


def faults(topology: "Topology") -> Iterator[BadInput]:
    """Give what makes a topology impossible; names come first, since all else relies on them."""
    yield from _name_faults(topology)
    yield from _port_faults(topology)
    yield from _transport_faults(topology)
    yield from _attachment_faults(topology)
    yield from _link_faults(topology)
    yield from _unlinked(topology)


def _name_faults(topology: "Topology") -> Iterator[BadInput]:
    names = [element.name for site in topology.sites for element in site.elements]
    names += [transport.name for transport in topology.transports]
    for name in repeated(names):
        yield BadInput(f"expected each element and transport to have its own name, got {name} twice", ("sites",))
    for name in repeated([site.name for site in topology.sites]):
        yield BadInput(f"expected each site to have its own name, got {name} twice", ("sites",))


def _port_faults(topology: "Topology") -> Iterator[BadInput]:
    used: set[PortRef] = set()
    for end, path in _ends(topology):
        element = topology.elements.get(end.element)
        if element is None:
            yield BadInput(f"port {end}: expected an element of this topology, got {end.element}", path)
        elif end.port not in element.ports:
            known = ", ".join(element.ports)
            yield BadInput(f"port {end}: expected a port of {end.element} ({known}), got {end.port}", path)
        elif path[0] == "sites" and isinstance(element, Edge):
            continue  # an edge is attached by its other side: this port has its link to a switch
        if end in used:
            yield BadInput(f"port {end}: expected at most one link on a port, got two", path)
        used.add(end)


def _ends(topology: "Topology") -> Iterator[tuple[PortRef, Path]]:
    """Give every use of a port with where it stands."""
    for s, site in enumerate(topology.sites):
        for a, attachment in enumerate(site.attachments):
            yield attachment.port, ("sites", s, "attachments", a, "port")
    for index, link in enumerate(topology.links):
        yield link.a, ("links", index, "a")
        yield link.b, ("links", index, "b")


def _transport_faults(topology: "Topology") -> Iterator[BadInput]:
    """Say which transports would put two clusters into one service at an edge: their backbones may be one."""
    numbered = [(index, one) for index, one in enumerate(topology.transports) if one.numbers]
    for (_, one), (index, other) in combinations(numbered, 2):
        first, last = max(one.numbers[0], other.numbers[0]), min(one.numbers[-1], other.numbers[-1])
        if one.kind is other.kind and first <= last and (one.on_edges or other.on_edges):
            both = f"{first}-{last}" if first < last else str(first)
            yield BadInput(
                f"transports {one.name} and {other.name} of kind {one.kind}: expected each service number in one of "
                f"them, got {both} in both",
                ("transports", index),
            )


def _attachment_faults(topology: "Topology") -> Iterator[BadInput]:
    known = {transport.name: transport for transport in topology.transports}
    for s, site in enumerate(topology.sites):
        for a, attachment in enumerate(site.attachments):
            path = ("sites", s, "attachments", a)
            transport = known.get(attachment.transport)
            if transport is None:
                expected = ", ".join(sorted(known)) or "none is defined"
                message = f"site {site.name}: expected a known transport ({expected}), got {attachment.transport}"
                yield BadInput(message, (*path, "transport"))
            else:
                yield from _attached_wrongly(topology, site, attachment.port, transport, (*path, "port"))


def _attached_wrongly(
    topology: "Topology", site: "Site", port: PortRef, transport: Transport, path: Path
) -> Iterator[BadInput]:
    """Say what is wrong about the port of an attachment: whose it is, and for an edge's, what it is linked to."""
    wanted, allowed = ("edges", site.edges) if transport.on_edges else ("switches", site.switches)
    if port.element not in {one.name for one in allowed}:
        why = f"since transport {transport.name} is made at provider edges" if transport.on_edges else ""
        text = f"site {site.name}: expected a port of one of its {wanted}, got {port}"
        yield BadInput(f"{text}: {why}" if why else text, path)
        return
    peer = topology.peers.get(port)
    if transport.on_edges and (peer is None or peer.element not in {one.name for one in site.switches}):
        yield BadInput(f"port {port}: expected a link to a switch of {site.name}, got {peer or 'none'}", path)


def _link_faults(topology: "Topology") -> Iterator[BadInput]:
    for index, link in enumerate(topology.links):
        a, b = (len(topology.element(end.element).members(end.port)) for end in link.ends)
        if a != b:
            message = f"link {link.a} to {link.b}: expected as many cables at both ends, got {a} and {b}"
            yield BadInput(message, ("links", index))
        kinds = {kind_of(topology.element(end.element)) for end in link.ends}
        if link.access and kinds not in (
            {ElementKind.HOST, ElementKind.SWITCH},
            {ElementKind.GATEWAY, ElementKind.SWITCH},
        ):
            message = f"access link {link.a} to {link.b}: expected a host or gateway at one end, a switch at the other"
            yield BadInput(message, ("links", index, "access"))


def _unlinked(topology: "Topology") -> Iterator[BadInput]:
    for s, site in enumerate(topology.sites):
        switches = {switch.name for switch in site.switches}
        for field in ("hosts", "gateways"):
            for index, element in enumerate(getattr(site, field)):
                ends = [PortRef(f"{element.name}:{port}") for port in element.ports]
                if not any(end in topology.peers and topology.peers[end].element in switches for end in ends):
                    yield BadInput(
                        f"{kind_of(element)} {element.name} is on no switch: expected a link from one of its ports "
                        f"({', '.join(element.ports)}) to a port of a switch at {site.name}",
                        ("sites", s, field, index),
                    )
