"""The drawing of a pool: a strip of VLAN IDs with the state of each VLAN ID. Pure.

In a small pool, each VLAN ID has a labelled cell. In a large pool, a row is for 100 VLAN IDs, and consecutive VLAN IDs
of the same state share one cell.
"""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from enum import StrEnum
from itertools import groupby
from typing import Final

from virtcloud.model.element_views import SiteView
from virtcloud.model.vlans import VlanSet


class VlanUse(StrEnum):
    """The state of a VLAN ID in a pool."""

    FREE = "free"
    CLAIMED = "claimed"
    QUARANTINED = "quarantined"
    EXCLUDED = "excluded"
    """A device reserves the VLAN ID, or uses the VLAN ID for something other than clusters."""


MAX_CELLS: Final = 240
CELLS_PER_ROW: Final = 20
CELL: Final = (54.0, 26.0)
SMALL: Final = (10.0, 16.0)
ROW_LABEL: Final = 52
PER_ROW: Final = 100


@dataclass(frozen=True, slots=True)
class Cell:
    """One VLAN ID or, in a large pool, consecutive VLAN IDs with the same state.

    In a large pool, ``label`` is empty.
    """

    x: float
    y: float
    width: float
    height: float
    use: VlanUse
    label: str
    title: str


@dataclass(frozen=True, slots=True)
class PoolStrip:
    """The drawing of a pool, and the VLAN IDs in each state (``sets``)."""

    width: float
    height: float
    cells: tuple[Cell, ...]
    row_labels: tuple[tuple[float, str], ...]
    sets: Mapping[VlanUse, VlanSet]


def group_vlans(view: SiteView) -> dict[VlanUse, VlanSet]:
    """Return the VLAN IDs of a pool by state. Each VLAN ID has one state."""
    quarantined = view.pool & view.quarantined
    claimed, free = (view.pool & view.claimed) - quarantined, view.pool & view.free
    return {
        VlanUse.FREE: free - claimed - quarantined,
        VlanUse.CLAIMED: claimed,
        VlanUse.QUARANTINED: quarantined,
        VlanUse.EXCLUDED: view.pool - free - claimed - quarantined,
    }


def draw_pool(view: SiteView, clusters: Mapping[int, str]) -> PoolStrip:
    """Return the drawing of a site's pool.

    ``clusters`` are the keys of the clusters that the reader may see, by VLAN ID.
    """
    sets = group_vlans(view)
    uses = sorted((int(vlan), use) for use, vlans in sets.items() for vlan in vlans)
    if len(uses) <= MAX_CELLS:
        rows, width = -(-len(uses) // CELLS_PER_ROW), CELLS_PER_ROW * CELL[0]
        return PoolStrip(width, max(rows, 1) * (CELL[1] + 4), tuple(_draw_cells(uses, clusters)), (), sets)
    hundreds = sorted({vlan // PER_ROW for vlan, _ in uses})
    cells = tuple(_draw_runs(uses, hundreds))
    labels = tuple((row * (SMALL[1] + 4) + 12, str(hundred * PER_ROW)) for row, hundred in enumerate(hundreds))
    width = ROW_LABEL + PER_ROW * SMALL[0]
    return PoolStrip(width, len(hundreds) * (SMALL[1] + 4), cells, labels, sets)


def _draw_cells(uses: Iterable[tuple[int, VlanUse]], clusters: Mapping[int, str]) -> Iterator[Cell]:
    width, height = CELL
    for index, (vlan, use) in enumerate(uses):
        row, column = divmod(index, CELLS_PER_ROW)
        holder = f" by cluster {clusters[vlan]}" if vlan in clusters else ""
        title = f"VLAN {vlan}: {use}{holder}"
        yield Cell(column * width, row * (height + 4), width - 4, height, use, str(vlan), title)


def _draw_runs(uses: Iterable[tuple[int, VlanUse]], hundreds: list[int]) -> Iterator[Cell]:
    width, height = SMALL
    rows = {hundred: row for row, hundred in enumerate(hundreds)}
    indexed = ((vlan, use, vlan // PER_ROW) for vlan, use in uses)
    numbered = ((vlan, use, hundred, vlan - index) for index, (vlan, use, hundred) in enumerate(indexed))
    for (use, hundred, _), group in groupby(numbered, key=lambda item: item[1:]):
        vlans = [item[0] for item in group]
        x = ROW_LABEL + (vlans[0] % PER_ROW) * width
        title = f"VLAN {vlans[0]}" + (f" to {vlans[-1]}" if len(vlans) > 1 else "") + f": {use}"
        yield Cell(x, rows[hundred] * (height + 4), len(vlans) * width - 1, height, use, "", title)
