"""The arrangement of a site: the positions of devices, hosts, links and attachments. Pure."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Final

from sbf_service.console.drawing.scene import assign_lanes
from sbf_service.console.troubles import Level
from virtcloud.model.element import Device, Edge
from virtcloud.model.topology import Topology
from virtcloud.model.topology_document import Attachment, Site
from virtcloud.model.values import Name, PortName, PortRef

ROW: Final = 26
HEADER: Final = 26
DEVICE: Final = 154
LINK: Final = 38
END: Final = 122
LANE: Final = 12
PADDING: Final = 14
TITLE: Final = 34
GAP: Final = 18
PathOf = Callable[[str, Name], str | None]
"""A function that returns the URL path of the page of a site (``"site"``) or element (``"element"``) with this name."""


@dataclass(frozen=True, slots=True)
class MapContents:
    """The contents of a drawing.

    ``lit`` are the ports of the highlighted path, if any. If ``only`` is set, the drawing shows only these elements.
    """

    topology: Topology
    sites: tuple[Site, ...]
    levels: Mapping[Name, Level]
    lit: frozenset[PortRef]
    path_of: PathOf
    only: frozenset[Name] | None = None
    transport: Name | None = None
    """The only transport to draw.

    With None, a drawing of some elements (``only``) has no transport, and any other drawing has all transports of
    ``sites``.
    """
    site_levels: Mapping[Name, Level] = field(default_factory=dict)
    """The levels of sites' own troubles, such as an empty pool."""

    def shows(self, element: Name) -> bool:
        """Return whether the drawing shows an element."""
        return self.only is None or element in self.only

    def is_lit(self, *ports: PortRef) -> bool:
        """Return whether all these ports carry the drawn cluster."""
        return bool(self.lit) and all(port in self.lit for port in ports)


@dataclass(slots=True)
class Column:
    """The devices of one site, with rows for their ports. A row has at most one port at each side.

    ``left``: the ports to other devices of the site and to transports. ``right``: the links to hosts and gateways, and
    to devices of other sites.
    """

    site: Site
    devices: tuple[Device, ...]
    left: dict[Name, list[PortName]] = field(default_factory=dict)
    right: dict[Name, list[tuple[PortRef, PortRef]]] = field(default_factory=dict)
    tops: dict[Name, float] = field(default_factory=dict)
    links: list[tuple[PortRef, PortRef]] = field(default_factory=list)
    attachments: list[tuple[Attachment, PortRef]] = field(default_factory=list)
    lanes: int = 0
    height: float = 0

    @property
    def gutter(self) -> float:
        """The width of the area of the lanes, at the left of the devices."""
        return PADDING + self.lanes * LANE + 8

    @property
    def width(self) -> float:
        """The width of the site's frame."""
        has_ends = any(self.right.values())
        return self.gutter + DEVICE + (LINK + END if has_ends else 0) + PADDING

    def row(self, port: PortRef) -> float:
        """Return the vertical position of a port that is drawn at the left side of its device."""
        index = self.left[port.element].index(port.port)
        return self.tops[port.element] + HEADER + index * ROW + ROW / 2


def arrange_site(contents: MapContents, site: Site) -> Column:
    """Return the devices of a site with the rows of their ports and the lanes of their links."""
    devices = tuple(device for device in _order_devices(contents.topology, site) if contents.shows(device.name))
    column, names = Column(site, devices), {device.name for device in devices}
    for device in devices:
        column.left[device.name], column.right[device.name] = [], []
        for port in device.ports:
            end = PortRef.of(device.name, port)
            peer = contents.topology.peers.get(end)
            if peer is None or not contents.shows(peer.element):
                continue
            if peer.element in names:
                column.left[device.name].append(port)
                if (peer, end) not in column.links:
                    column.links.append((end, peer))
            else:
                column.right[device.name].append((end, peer))
    for attachment in site.attachments:
        _add_attachment(contents, column, attachment, names)
    _place_devices(column)
    return column


def _add_attachment(contents: MapContents, column: Column, attachment: Attachment, names: set[Name]) -> None:
    port = attachment.port
    if port.element not in names or attachment.transport not in list_transports(contents):
        return
    device = contents.topology.elements[port.element]
    if isinstance(device, Edge):  # the attachment names the port to the switch; the core port leads to the transport
        port = PortRef.of(device.name, device.core_port or PortName("core"))
    if port.port not in column.left[port.element]:
        column.left[port.element].insert(0, port.port)
    column.attachments.append((attachment, port))


def _order_devices(topology: Topology, site: Site) -> list[Device]:
    found: list[Device] = list(site.edges)
    starts = [attachment.port.element for attachment in site.attachments]
    known = {device.name: device for device in site.devices}
    queue = [known[name] for name in dict.fromkeys(starts) if name in known] + list(site.switches)
    seen = {device.name for device in found}
    while queue:
        device = queue.pop(0)
        if device.name not in seen:
            seen.add(device.name)
            found.append(device)
        peers = (topology.peers.get(PortRef.of(device.name, port)) for port in device.ports)
        nearest = [known[peer.element] for peer in peers if peer and peer.element in known]
        queue = [other for other in nearest if other.name not in seen] + queue
    return found


def _place_devices(column: Column) -> None:
    y = float(TITLE)
    for device in column.devices:
        column.tops[device.name] = y
        y += HEADER + count_rows(column, device.name) * ROW + 4 + GAP / 2
    column.height = y + PADDING / 2
    column.lanes = max((lane.number + 1 for lane in assign_lanes(list_spans(column))), default=0)


def count_rows(column: Column, device: Name) -> int:
    """Return the number of rows of a device."""
    return max(1, len(column.left[device]), len(column.right[device]))


def list_spans(column: Column) -> list[tuple[float, float]]:
    """Return the spans (start, end) of all lines: links between devices, then links to transports."""
    links = [(column.row(a), column.row(b)) for a, b in column.links]
    return links + [(-1000.0, column.row(port)) for _, port in column.attachments]


def list_transports(contents: MapContents) -> list[Name]:
    """Return the transports that the drawing shows, in the order of the topology."""
    used = {attachment.transport for site in contents.sites for attachment in site.attachments}
    chosen = used if contents.transport is None else used & {contents.transport}
    if contents.only is not None and contents.transport is None:
        chosen = set()
    return [transport.name for transport in contents.topology.transports if transport.name in chosen]
