"""The drawing of sites with their switches, hosts and links. Pure.

A site is a column of provider edges and switches. Each host or gateway is beside its switch's port, so that no links
cross.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from sbf_service.console.drawing.scene import Box, Label, Line, Scene, SceneBuilder, assign_lanes, shorten
from sbf_service.console.drawing.site_layout import (
    DEVICE,
    END,
    GAP,
    HEADER,
    LANE,
    LINK,
    ROW,
    TITLE,
    Column,
    MapContents,
    arrange_site,
    count_rows,
    list_spans,
    list_transports,
)
from sbf_service.console.troubles import Level, find_worst
from virtcloud.model.element import Device, kind_of
from virtcloud.model.message_text import count_of
from virtcloud.model.topology_document import Site
from virtcloud.model.values import Name, PortRef

BUS: Final = 24
SPINE: Final = 10
MAX_WIDTH: Final = 1240


@dataclass(frozen=True, slots=True)
class _Row:
    """A row of sites. ``buses``: the heights of the transports. ``ends``: the points where links meet transports."""

    scene: SceneBuilder
    buses: Mapping[Name, float]
    ends: dict[Name, list[tuple[float, float, bool]]]


def draw_sites(contents: MapContents) -> Scene:
    """Return the drawing of sites."""
    columns = [arrange_site(contents, site) for site in contents.sites]
    transports = list_transports(contents)
    scene, left = SceneBuilder(), SPINE * (len(transports) + 1)
    x, y, width = float(left), 0.0, 0.0
    row: list[tuple[Column, float]] = []
    rows: list[list[tuple[Column, float]]] = []
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


def _draw_column(contents: MapContents, row: _Row, column: Column, at: tuple[float, float]) -> None:
    (x, y), site, scene = at, column.site, row.scene
    level = _find_site_level(contents, site)
    title = (
        f"Site {site.name}: {count_of(len(site.switches), 'switch', 'switches')}, {count_of(len(site.hosts), 'host')}"
    )
    path = contents.path_of("site", site.name)
    label = shorten(site.name, column.width - column.gutter - 30)
    frame = Box(
        x, y, column.width, column.height, "site", label, title, level, path, header=TITLE, indent=column.gutter
    )
    scene.frames.append(frame)
    for device in column.devices:
        _draw_device(contents, scene, column, device, (x, y))
    lanes = assign_lanes(list_spans(column))
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
    """Return the worst known level of a site and its elements.

    Return None instead of ``ok`` if the level of an element is unknown.
    """
    names = [element.name for element in site.elements]
    known = [contents.levels[name] for name in names if name in contents.levels]
    worst = find_worst([*known, contents.site_levels.get(site.name, Level.OK)])
    return worst if worst is not Level.OK or all(name in contents.levels for name in names) else None


def _draw_device(
    contents: MapContents, scene: SceneBuilder, column: Column, device: Device, at: tuple[float, float]
) -> None:
    x, y = at[0] + column.gutter, at[1] + column.tops[device.name]
    height = HEADER + count_rows(column, device.name) * ROW + 4
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
