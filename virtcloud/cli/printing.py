"""What commands print: tables that also read well in a pipe, and JSON.

How a table fits a terminal: words, VLAN ranges and times are never broken. Pure.
"""

import json
import shutil
import sys
from collections.abc import Iterator, Sequence
from datetime import datetime
from itertools import chain, zip_longest

import click

from virtcloud.model.document import Document
from virtcloud.model.views import ClusterView

COLUMN_GAP = 2
"""Characters between two columns."""


def column_widths(cells: Sequence[Sequence[str]], width: int) -> list[int] | None:
    """Return the width of each column, or None when even the longest words do not fit beside each other.

    ``cells`` are the rows, the head first; all have the same number of columns. No column is narrower than its longest
    word, nor wider than its longest cell; room that is left is shared evenly.
    """
    columns = list(zip(*cells, strict=True))
    least = [max(_longest_word(cell) for cell in column) for column in columns]
    most = [max(len(cell) for cell in column) for column in columns]
    room = width - sum(least) - COLUMN_GAP * (len(columns) - 1)
    if room < 0:
        return None
    return _spread(least, most, room)


def wrap_text(text: str, width: int) -> list[str]:
    """Return the lines of ``text``, broken between words only; at least one."""
    lines = [""]
    for word in text.split():
        if lines[-1] and len(lines[-1]) + 1 + len(word) > width:
            lines.append(word)
        else:
            lines[-1] = f"{lines[-1]} {word}".lstrip()
    return lines


def _spread(least: Sequence[int], most: Sequence[int], room: int) -> list[int]:
    widths = list(least)
    while room:
        lacking = [index for index, width in enumerate(widths) if width < most[index]]
        if not lacking:
            break
        widths[min(lacking, key=widths.__getitem__)] += 1
        room -= 1
    return widths


def _longest_word(cell: str) -> int:
    return max((len(word) for word in cell.split()), default=1)


MAX_CELL_CHARACTERS = 80
"""Characters of a message that a table shows; the whole of it is for who asks for one element or for JSON."""


def print_table(columns: Sequence[str], rows: Sequence[Sequence[object]], nothing: str) -> None:
    """Print a table; ``nothing`` is what is said when there is no row.

    In a pipe each row is one line. On a terminal that is too narrow for the table each row is a list of its cells.
    """
    terminal = sys.stdout.isatty()
    if not rows:
        click.echo(nothing, err=not terminal)
        return
    cells = [["" if cell is None else str(cell) for cell in row] for row in (columns, *rows)]
    width = shutil.get_terminal_size().columns if terminal else sum(map(len, chain(*cells)))
    widths = column_widths(cells, width)
    for line in _lists(cells, width) if widths is None else _lines(cells, widths, ruled=terminal):
        click.echo(line.rstrip())


def _lines(cells: Sequence[Sequence[str]], widths: Sequence[int], *, ruled: bool) -> Iterator[str]:
    for number, row in enumerate(cells):
        broken = [wrap_text(cell, width) for cell, width in zip(row, widths, strict=True)]
        for line in zip_longest(*broken, fillvalue=""):
            yield (" " * COLUMN_GAP).join(cell.ljust(width) for cell, width in zip(line, widths, strict=True))
        if ruled and not number:
            yield "─" * (sum(widths) + COLUMN_GAP * (len(widths) - 1))


def _lists(cells: Sequence[Sequence[str]], width: int) -> Iterator[str]:
    head, *rows = cells
    for number, row in enumerate(rows):
        if number:
            yield ""
        for name, cell in zip(head, row, strict=True):
            if cell:
                first, *more = wrap_text(f"{name}: {cell}", width - COLUMN_GAP)
                yield from (first, *(" " * COLUMN_GAP + line for line in more))


def format_time(at: datetime) -> str:
    """Write a moment in the reader's time zone."""
    return at.astimezone().strftime("%Y-%m-%d %H:%M:%S")


def shorten(text: str | None) -> str | None:
    """Return the beginning of a text that is too long for a table's column, on one line."""
    words = " ".join(text.split()) if text else text
    return f"{words[:MAX_CELL_CHARACTERS].rstrip()}…" if words and len(words) > MAX_CELL_CHARACTERS + 1 else words


def format_vlans(view: ClusterView) -> str:
    """Say a cluster's VLAN numbers with their sites."""
    numbers = sorted(set(view.vlans.values()))
    if len(numbers) == 1:
        return f"VLAN {numbers[0]} at {', '.join(sorted(view.vlans))}"
    return ", ".join(f"VLAN {number} at {site}" for site, number in sorted(view.vlans.items())) or "no VLAN"


def print_json(document: Document) -> None:
    """Print one document."""
    click.echo(document.model_dump_json(indent=2))


def print_json_list(documents: Sequence[Document]) -> None:
    """Print a list of documents."""
    click.echo(json.dumps([one.model_dump(mode="json") for one in documents], indent=2))
