"""What a provider edge must know beside itself: the transports it is on, and who else is on them. Pure."""

from collections.abc import Iterable, Iterator

from virtcloud.model.element import Edge
from virtcloud.model.topology import Attachment, Topology
from virtcloud.model.transport import Transport
from virtcloud.model.values import Name


def transports_at(topology: Topology, edge: Name) -> tuple[Transport, ...]:
    """Give the transports by which the edge's site is attached at it, in the topology's order."""
    names = {one.transport for one in topology.site_of[edge].attachments if one.port.element == edge}
    return tuple(one for one in topology.transports if one.name in names)


def peers_of(topology: Topology, edge: Name, transports: Iterable[Transport]) -> dict[str, tuple[str, ...]]:
    """Give, for each of these transports, the addresses by which its other edges are known, in the topology's order.

    An edge without such an address is no peer of anybody.
    """
    return {one.name: tuple(_loopbacks(topology, one.name, edge)) for one in transports}


def _loopbacks(topology: Topology, transport: Name, edge: Name) -> Iterator[str]:
    for other in _edges_on(topology, transport):
        if other.name != edge and other.loopback is not None:
            yield str(other.loopback)


def _edges_on(topology: Topology, transport: Name) -> list[Edge]:
    ends = {one.port.element for one in _attachments(topology) if one.transport == transport}
    return [edge for site in topology.sites for edge in site.edges if edge.name in ends]


def _attachments(topology: Topology) -> Iterator[Attachment]:
    for site in topology.sites:
        yield from site.attachments
