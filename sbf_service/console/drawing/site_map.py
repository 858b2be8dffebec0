"""The drawing of sites with their switches, hosts and links. Pure.

Above each row of sites, each transport is a horizontal line. A site is a frame. In the frame, provider edges and
switches are boxes in one column. Hosts and gateways are at the right of their switch, each at the height of its port,
so links to hosts never cross. Links between switches, and links to transports, are in lanes at the left of the column.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from sbf_service.console.drawing.scene import Box, Label, Line, Scene, SceneBuilder, assign_lanes, shorten
from sbf_service.console.troubles import Level, find_worst
from virtcloud.model.element import Device, Edge, kind_of
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
BUS: Final = 24
SPINE: Final = 10
MAX_WIDTH: Final = 1240

PathOf = Callable[[str, Name], str | None]
"""Returns the page of a thing: ``site`` or ``element``, and its name."""


@dataclass(frozen=True, slots=True)
class MapContents:
    """What a drawing shows: sites, the levels of elements, and the ports that carry a cluster.

    If ``only`` is set, the drawing shows only these elements. Elements without a level have no mark.
    """

    topology: Topology
    sites: tuple[Site, ...]
    levels: Mapping[Name, Level]
    lit: frozenset[PortRef]
    path_of: PathOf
    only: frozenset[Name] | None = None
    transport: Name | None = None
    """The transport that carries the cluster; None draws all transports."""

    def shows(self, element: Name) -> bool:
        """Return whether the drawing shows an element."""
        return self.only is None or element in self.only

    def is_lit(self, *ports: PortRef) -> bool:
        """Return whether all these ports carry the cluster."""
        return bool(self.lit) and all(port in self.lit for port in ports)


@dataclass(slots=True)
class _Column:
    """The devices of one site, with their rows. ``left`` are ports towards devices and transports."""

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
        """The width of the lanes."""
        return PADDING + self.lanes * LANE + 8

    @property
    def width(self) -> float:
        """The width of the frame."""
        has_ends = any(self.right.values())
        return self.gutter + DEVICE + (LINK + END if has_ends else 0) + PADDING

    def row(self, port: PortRef) -> float:
        """Return the height of a port at the left of its device."""
        index = self.left[port.element].index(port.port)
        return self.tops[port.element] + HEADER + index * ROW + ROW / 2


@dataclass(frozen=True, slots=True)
class _Row:
    """A row of sites: the shapes, the heights of the transports, and the places where links meet transports."""

    scene: SceneBuilder
    buses: Mapping[Name, float]
    ends: dict[Name, list[tuple[float, float, bool]]]


def draw_sites(contents: MapContents) -> Scene:
    """Return the drawing of sites."""
    columns = [_arrange_site(contents, site) for site in contents.sites]
    transports = _list_transports(contents)
    scene, left = SceneBuilder(), SPINE * (len(transports) + 1)
    x, y, width = float(left), 0.0, 0.0
    row: list[tuple[_Column, float]] = []
    rows: list[list[tuple[_Column, float]]] = []
    for column in columns:
        if row and x + column.width > MAX_WIDTH:
            rows.append(row)
            x, row = float(left), []
        row.append((column, x))
        x += column.width + GAP
        width = max(width, x)
    rows.append(row)
    ends: dict[Name, list[tuple[float, float, bool]]] = {name: [] for name in transports}
    for row in rows:
        buses = {name: y + 14 + index * BUS for index, name in enumerate(transports)}
        y += 14 + len(transports) * BUS + (10 if transports else 0)
        height = max((column.height for column, _ in row), default=0)
        for column, start in row:
            _draw_column(contents, _Row(scene, buses, ends), column, (start, y))
        _draw_buses(contents, scene, buses, ends, (left, width - GAP))
        y += height + GAP
    _draw_spines(scene, ends, transports)
    return scene.finish(max(width - GAP, 320), max(y, 60))


def _list_transports(contents: MapContents) -> list[Name]:
    used = {attachment.transport for site in contents.sites for attachment in site.attachments}
    chosen = used if contents.transport is None else used & {contents.transport}
    if contents.only is not None and contents.transport is None:
        chosen = set()
    return [transport.name for transport in contents.topology.transports if transport.name in chosen]


def _arrange_site(contents: MapContents, site: Site) -> _Column:
    """Return the devices of a site with the rows of their ports and the lanes of their links."""
    devices = tuple(device for device in _order_devices(contents.topology, site) if contents.shows(device.name))
    column, names = _Column(site, devices), {device.name for device in devices}
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


def _add_attachment(contents: MapContents, column: _Column, attachment: Attachment, names: set[Name]) -> None:
    port = attachment.port
    if port.element not in names or attachment.transport not in _list_transports(contents):
        return
    device = contents.topology.elements[port.element]
    if isinstance(device, Edge):  # the edge's port leads to a switch; its core port leads to the transport
        port = PortRef.of(device.name, device.core_port or PortName("core"))
    if port.port not in column.left[port.element]:
        column.left[port.element].insert(0, port.port)
    column.attachments.append((attachment, port))


def _order_devices(topology: Topology, site: Site) -> list[Device]:
    """Return the devices of a site: edges first, then switches, each after the switch that leads to the transport."""
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


def _place_devices(column: _Column) -> None:
    y = float(TITLE)
    for device in column.devices:
        column.tops[device.name] = y
        y += HEADER + _count_rows(column, device.name) * ROW + 4 + GAP / 2
    column.height = y + PADDING / 2
    column.lanes = max((lane.number + 1 for lane in assign_lanes(_list_spans(column))), default=0)


def _count_rows(column: _Column, device: Name) -> int:
    return max(1, len(column.left[device]), len(column.right[device]))


def _list_spans(column: _Column) -> list[tuple[float, float]]:
    """Return the spans of all lines in the lanes: links between devices, then links to transports."""
    links = [(column.row(a), column.row(b)) for a, b in column.links]
    return links + [(-1000.0, column.row(port)) for _, port in column.attachments]


def _draw_column(contents: MapContents, row: _Row, column: _Column, at: tuple[float, float]) -> None:
    """Add a site's frame, devices, hosts and links."""
    (x, y), site, scene = at, column.site, row.scene
    level = _find_site_level(contents, site)
    title = f"Site {site.name}: {len(site.switches)} switches, {len(site.hosts)} hosts"
    path = contents.path_of("site", site.name)
    label = shorten(site.name, column.width - column.gutter - 30)
    frame = Box(
        x, y, column.width, column.height, "site", label, title, level, path, header=TITLE, indent=column.gutter
    )
    scene.frames.append(frame)
    for device in column.devices:
        _draw_device(contents, scene, column, device, (x, y))
    lanes = assign_lanes(_list_spans(column))
    edge = x + column.gutter
    for (a, b), lane in zip(column.links, lanes, strict=False):
        out = edge - 8 - lane.number * LANE
        points = (
            (edge, y + column.row(a)),
            (out, y + column.row(a)),
            (out, y + column.row(b)),
            (edge, y + column.row(b)),
        )
        scene.lines.append(Line(points, f"link {a} to {b}", "link", contents.is_lit(a, b)))
    for (attachment, port), lane in zip(column.attachments, lanes[len(column.links) :], strict=True):
        out, bus = edge - 8 - lane.number * LANE, row.buses[attachment.transport]
        lit = contents.is_lit(attachment.port)
        up = ((edge, y + column.row(port)), (out, y + column.row(port)), (out, bus))
        scene.lines.append(Line(up, f"{port} on transport {attachment.transport}", "uplink", lit))
        row.ends[attachment.transport].append((out, bus, lit))


def _find_site_level(contents: MapContents, site: Site) -> Level | None:
    """Return the worst known level of a site's elements. Return None instead of ``ok`` if a level is unknown."""
    names = [element.name for element in site.elements]
    worst = find_worst(contents.levels[name] for name in names if name in contents.levels)
    return worst if worst is not Level.OK or all(name in contents.levels for name in names) else None


def _draw_device(
    contents: MapContents, scene: SceneBuilder, column: _Column, device: Device, at: tuple[float, float]
) -> None:
    x, y = at[0] + column.gutter, at[1] + column.tops[device.name]
    height = HEADER + _count_rows(column, device.name) * ROW + 4
    kind, lit = kind_of(device), bool(contents.lit) and any(port.element == device.name for port in contents.lit)
    level = contents.levels.get(device.name)
    title = f"{kind} {device.name} ({device.platform})"
    path = contents.path_of("element", device.name)
    label = shorten(device.name, DEVICE - 34)
    scene.boxes.append(Box(x, y, DEVICE, height, str(kind), label, title, level, path, lit, HEADER))
    for index, port in enumerate(column.left[device.name]):
        text_y = y + HEADER + index * ROW + ROW / 2 + 4
        is_lit = contents.is_lit(PortRef.of(device.name, port))
        scene.labels.append(Label(x + 7, text_y, shorten(port, DEVICE / 2 - 10), "start", "port", is_lit))
    for index, (end, peer) in enumerate(column.right[device.name]):
        _draw_end(contents, scene, (end, peer), (x + DEVICE, y + HEADER + index * ROW + ROW / 2))


def _draw_end(
    contents: MapContents, scene: SceneBuilder, link: tuple[PortRef, PortRef], at: tuple[float, float]
) -> None:
    """Add a host or gateway, at the right of its switch."""
    (end, peer), (x, y) = link, at
    lit = contents.is_lit(end, peer)
    element = contents.topology.elements[peer.element]
    level, path = contents.levels.get(element.name), contents.path_of("element", element.name)
    scene.labels.append(Label(x - 7, y + 4, shorten(end.port, DEVICE / 2 - 10), "end", "port", lit))
    scene.lines.append(Line(((x, y), (x + LINK, y)), f"link {end} to {peer}", "link", lit))
    title = f"{kind_of(element)} {element.name}, port {peer.port}"
    label = shorten(element.name, END - 30)
    scene.boxes.append(Box(x + LINK, y - 11, END, 22, str(kind_of(element)), label, title, level, path, lit))


def _draw_buses(
    contents: MapContents,
    scene: SceneBuilder,
    buses: Mapping[Name, float],
    ends: Mapping[Name, Sequence[tuple[float, float, bool]]],
    span: tuple[float, float],
) -> None:
    for index, (name, y) in enumerate(buses.items()):
        transport = contents.topology.transport(name)
        title = f"transport {name} ({transport.kind})"
        scene.lines.append(Line(((SPINE * (index + 1), y), (span[1], y)), title, "bus"))
        scene.labels.append(Label(span[1], y - 5, f"{name} · {transport.kind}", "end", "bus"))
        lit = [x for x, at, is_lit in ends[name] if at == y and is_lit]
        if len(lit) > 1:
            scene.lines.append(Line(((min(lit), y), (max(lit), y)), f"{title} carries the cluster", "bus", lit=True))


def _draw_spines(
    scene: SceneBuilder, ends: Mapping[Name, Sequence[tuple[float, float, bool]]], transports: Sequence[Name]
) -> None:
    """Connect the lines of a transport above several rows."""
    for index, name in enumerate(transports):
        x, heights = SPINE * (index + 1), sorted({y for _, y, _ in ends[name]})
        if len(heights) > 1:
            scene.lines.append(Line(((x, heights[0]), (x, heights[-1])), f"transport {name}", "bus"))
        lit = sorted({(y, near) for near, y, is_lit in ends[name] if is_lit})
        lit_heights = [y for y, _ in lit]
        if len(set(lit_heights)) > 1:
            spine = ((x, lit_heights[0]), (x, lit_heights[-1]))
            scene.lines.append(Line(spine, f"transport {name} carries the cluster", "bus", lit=True))
            for y in dict.fromkeys(lit_heights):
                farthest = max(near for height, near in lit if height == y)
                scene.lines.append(Line(((x, y), (farthest, y)), f"transport {name}", "bus", lit=True))
