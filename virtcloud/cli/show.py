"""What commands print: tables that also read well in a pipe, and JSON."""

import json
import shutil
import sys
from collections.abc import Iterator, Sequence
from datetime import datetime
from itertools import chain, zip_longest

import click

from virtcloud.cli.columns import GAP, column_widths, wrapped
from virtcloud.model.document import Document
from virtcloud.model.views import ClusterView

SHORT = 80
"""Characters of a message that a table shows; the whole of it is for who asks for one element or for JSON."""


def table(columns: Sequence[str], rows: Sequence[Sequence[object]], nothing: str) -> None:
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
        broken = [wrapped(cell, width) for cell, width in zip(row, widths, strict=True)]
        for line in zip_longest(*broken, fillvalue=""):
            yield (" " * GAP).join(cell.ljust(width) for cell, width in zip(line, widths, strict=True))
        if ruled and not number:
            yield "─" * (sum(widths) + GAP * (len(widths) - 1))


def _lists(cells: Sequence[Sequence[str]], width: int) -> Iterator[str]:
    head, *rows = cells
    for number, row in enumerate(rows):
        if number:
            yield ""
        for name, cell in zip(head, row, strict=True):
            if cell:
                first, *more = wrapped(f"{name}: {cell}", width - GAP)
                yield from (first, *(" " * GAP + line for line in more))


def moment(at: datetime) -> str:
    """Write a moment in the reader's time zone."""
    return at.astimezone().strftime("%Y-%m-%d %H:%M:%S")


def short(text: str | None) -> str | None:
    """Return the beginning of a text that is too long for a table's column, on one line."""
    words = " ".join(text.split()) if text else text
    return f"{words[:SHORT].rstrip()}…" if words and len(words) > SHORT + 1 else words


def vlans(view: ClusterView) -> str:
    """Say a cluster's VLAN numbers with their sites."""
    numbers = sorted(set(view.vlans.values()))
    if len(numbers) == 1:
        return f"VLAN {numbers[0]} at {', '.join(sorted(view.vlans))}"
    return ", ".join(f"VLAN {number} at {site}" for site, number in sorted(view.vlans.items())) or "no VLAN"


def json_document(document: Document) -> None:
    """Print one document."""
    click.echo(document.model_dump_json(indent=2))


def json_documents(documents: Sequence[Document]) -> None:
    """Print a list of documents."""
    click.echo(json.dumps([one.model_dump(mode="json") for one in documents], indent=2))
