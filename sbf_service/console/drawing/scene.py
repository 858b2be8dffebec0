"""The shapes of a drawing: boxes, lines and texts with positions in units of the drawing. Pure.

A template writes the shapes as SVG. The style sheet selects shapes by their kind, and boxes also by their level.
"""

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Final

from sbf_service.console.troubles import Level

CHARACTER: Final = 6.6


@dataclass(frozen=True, slots=True)
class Box:
    """A rectangle with a label, such as an element or a site.

    ``path`` is the URL path of the page that a click opens. ``level`` is None if the level is unknown. ``lit`` is true
    if the box belongs to the path of the drawn cluster.
    """

    x: float
    y: float
    width: float
    height: float
    kind: str
    label: str
    title: str
    level: Level | None = Level.OK
    path: str | None = None
    lit: bool = False
    header: float = 0
    """The height of the label's area inside the box. 0 selects a default."""
    note: str = ""
    indent: float = 9


@dataclass(frozen=True, slots=True)
class Line:
    """A line through points. ``lit`` is true if the line carries the drawn cluster."""

    points: tuple[tuple[float, float], ...]
    title: str
    kind: str = "link"
    lit: bool = False

    @property
    def text(self) -> str:
        """The points in the format of SVG's attribute ``points``."""
        return " ".join(f"{x:g},{y:g}" for x, y in self.points)


@dataclass(frozen=True, slots=True)
class Label:
    """A text. ``anchor`` is ``start``, ``middle`` or ``end``."""

    x: float
    y: float
    text: str
    anchor: str = "start"
    kind: str = "port"
    lit: bool = False


@dataclass(frozen=True, slots=True)
class Scene:
    """A drawing. The template paints the frames, lines, boxes, gauges and labels in this order."""

    width: float
    height: float
    frames: tuple[Box, ...] = ()
    lines: tuple[Line, ...] = ()
    boxes: tuple[Box, ...] = ()
    labels: tuple[Label, ...] = ()
    gauges: tuple[Box, ...] = ()


@dataclass(slots=True)
class SceneBuilder:
    """Collects the shapes of a drawing."""

    frames: list[Box] = field(default_factory=list)
    lines: list[Line] = field(default_factory=list)
    boxes: list[Box] = field(default_factory=list)
    labels: list[Label] = field(default_factory=list)
    gauges: list[Box] = field(default_factory=list)

    def finish(self, width: float, height: float) -> Scene:
        """Return the drawing. Lines that are ``lit`` are painted over the other lines."""
        lines = sorted(self.lines, key=lambda line: line.lit)
        boxes, labels = tuple(self.boxes), tuple(self.labels)
        return Scene(width, height, tuple(self.frames), tuple(lines), boxes, labels, tuple(self.gauges))


def shorten(text: str, width: float) -> str:
    """Replace the middle of a text that is wider than ``width`` by an ellipsis.

    ``width`` is in units of the drawing. A shortened text has at least 4 characters, even if these do not fit.
    """
    most = max(4, int(width / CHARACTER))
    if len(text) <= most:
        return text
    end = (most - 1) // 2
    return f"{text[: most - 1 - end]}…{text[len(text) - end :]}"


@dataclass(frozen=True, slots=True)
class Lane:
    """The position of a vertical line: the number of the lane, and the line's top and bottom."""

    number: int
    top: float
    bottom: float


def assign_lanes(spans: Iterable[tuple[float, float]]) -> list[Lane]:
    """Return a lane for each span (top, bottom), so that spans in the same lane do not touch."""
    ordered = sorted(enumerate(spans), key=lambda item: (abs(item[1][1] - item[1][0]), item[0]))
    taken: list[list[tuple[float, float]]] = []
    found: dict[int, Lane] = {}
    for index, span in ordered:
        top, bottom = min(span), max(span)
        free = (number for number, used in enumerate(taken) if all(bottom < a or top > b for a, b in used))
        number = next(free, len(taken))
        if number == len(taken):
            taken.append([])
        taken[number].append((top, bottom))
        found[index] = Lane(number, top, bottom)
    return [found[index] for index in range(len(found))]
