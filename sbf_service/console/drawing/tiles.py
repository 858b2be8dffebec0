"""The drawing of many sites: a tile for each site, and thin lines for transports. Pure."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from sbf_service.console.drawing.scene import Box, Label, Line, Scene, SceneBuilder, shorten
from sbf_service.console.troubles import Level
from virtcloud.model.message_text import count_of

WIDTH: Final = 1180
TILE_HEIGHT: Final = 52
GAP: Final = 12
BUS: Final = 7
MAX_COLUMNS: Final = 10
MIN_COLUMNS: Final = 4
LEFT: Final = 8
BOLD: Final = 0.85
"""The number of bold characters that fit in a line, divided by the number of normal characters that fit."""


@dataclass(frozen=True, slots=True)
class Tile:
    """A site as a tile."""

    name: str
    level: Level | None
    """None if the reader may not read the site's state."""
    clusters: int
    used: int
    pool: int
    transports: tuple[str, ...]
    """Empty if the reader may not read the topology."""
    path: str
    is_own: bool = False


def draw_tiles(tiles: Sequence[Tile], transports: Sequence[str]) -> Scene:
    """Return the drawing of sites, with the lines of transports above each row of tiles."""
    columns = min(MAX_COLUMNS, max(MIN_COLUMNS, round((len(tiles) * 1.4) ** 0.5)))
    left = LEFT + len(transports) * BUS
    width = (WIDTH - left - (columns - 1) * GAP) / columns
    band = 14 + len(transports) * BUS
    scene = SceneBuilder()
    for index, tile in enumerate(tiles):
        row, column = divmod(index, columns)
        x, y = left + column * (width + GAP), row * (TILE_HEIGHT + band) + band
        title = f"Site {tile.name}: {count_of(tile.clusters, 'cluster')}, {tile.used} of {tile.pool} VLAN IDs used"
        title += f", transports {', '.join(tile.transports)}" if tile.transports else ""
        label, note = shorten(tile.name, (width - 36) * BOLD), count_of(tile.clusters, "cluster")
        kind = "own tile" if tile.is_own else "tile"
        scene.boxes.append(Box(x, y, width, TILE_HEIGHT, kind, label, title, tile.level, tile.path, note=note))
        share = tile.used / tile.pool if tile.pool else 0
        scene.gauges.append(Box(x + 8, y + TILE_HEIGHT - 9, width - 16, 4, "gauge", "", title))
        scene.gauges.append(Box(x + 8, y + TILE_HEIGHT - 9, (width - 16) * share, 4, "gauge used", "", title))
        for number, name in enumerate(transports):
            if name in tile.transports:
                stub = x + 14 + number * 8
                points = ((stub, y - band + 10 + number * BUS), (stub, y))
                scene.lines.append(Line(points, f"{tile.name} on transport {name}", f"stub t{number % 4}"))
    rows = -(-len(tiles) // columns)
    _draw_transports(scene, transports, rows, band)
    return scene.finish(WIDTH, rows * (TILE_HEIGHT + band) + 18)


def _draw_transports(scene: SceneBuilder, transports: Sequence[str], rows: int, band: float) -> None:
    for number, name in enumerate(transports):
        kind, x = f"bus t{number % 4}", LEFT + number * BUS
        heights = [row * (TILE_HEIGHT + band) + 10 + number * BUS for row in range(rows)]
        for y in heights:
            scene.lines.append(Line(((x, y), (WIDTH, y)), f"transport {name}", kind))
        scene.lines.append(Line(((x, heights[0]), (x, heights[-1])), f"transport {name}", kind))
        label_y = rows * (TILE_HEIGHT + band) + 14
        start = LEFT + number * (WIDTH - LEFT) / max(4, len(transports))
        scene.lines.append(Line(((start, label_y - 4), (start + 24, label_y - 4)), f"transport {name}", kind))
        scene.labels.append(Label(start + 30, label_y, name, "start", "bus"))
