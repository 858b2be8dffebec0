"""Output of commands: JSON, and tables. If the output is a pipe, a program can parse the tables."""

import json
import shutil
import sys
import textwrap
from collections.abc import Callable, Iterable, Iterator, Sequence
from datetime import datetime
from itertools import chain, zip_longest
from typing import Any, TypeVar

import click

from virtcloud.cli.options import WholeNumberType
from virtcloud.model.document import Document
from virtcloud.model.views import ClusterView

D = TypeVar("D", bound=Document)
Row = Sequence[object]

UNITS = ("bytes", "KiB", "MiB", "GiB", "TiB")
COLUMN_GAP = 2
MAX_CELL_CHARACTERS = 80
"""Maximum length of a message in a table. ``show`` commands and JSON output contain the full message."""

json_option: Callable[[Callable[..., Any]], Callable[..., Any]] = click.option(
    "--json", "as_json", is_flag=True, help="Print JSON."
)


limit_option: Callable[[Callable[..., Any]], Callable[..., Any]] = click.option(
    "--limit", type=WholeNumberType(1), help="Maximum number of rows.  [default: all rows]"
)


def print_list(
    columns: Sequence[str], documents: Sequence[D], make_row: Callable[[D], Row], empty: str, *, as_json: bool
) -> None:
    """Print documents as JSON, or as a table with one row per document. Print ``empty`` instead of an empty table."""
    if as_json:
        click.echo(json.dumps([document.model_dump(mode="json") for document in documents], indent=2))
    else:
        print_table(columns, [make_row(document) for document in documents], empty)


def print_pages(  # noqa: PLR0913 - the parameters of print_list, and a limit
    columns: Sequence[str],
    pages: Iterable[Sequence[D]],
    make_row: Callable[[D], Row],
    empty: str,
    *,
    as_json: bool,
    limit: int | None = None,
) -> None:
    """Print at most ``limit`` documents, in the format of :func:`print_list`. Print each page as soon as it is read."""
    shown = limit_pages(pages, limit)
    if as_json:
        _print_json_pages(shown)
    else:
        _print_table_pages(columns, ([make_row(document) for document in page] for page in shown), empty)


def limit_pages(pages: Iterable[Sequence[D]], limit: int | None) -> Iterator[Sequence[D]]:
    """Yield the pages that are not empty, up to ``limit`` documents in all (None: all documents).

    No page is read after the page with the last of these documents.
    """
    left = limit
    for page in pages:
        shown = page if left is None else page[:left]
        if shown:
            yield shown
        left = None if left is None else left - len(shown)
        if left == 0:
            return


def _print_json_pages(pages: Iterable[Sequence[Document]]) -> None:
    separator = "[\n"
    for document in chain.from_iterable(pages):
        text = json.dumps(document.model_dump(mode="json"), indent=2)
        click.echo(f"{separator}{textwrap.indent(text, '  ')}", nl=False)
        separator = ",\n"
    click.echo("[]" if separator == "[\n" else "\n]")


def _print_table_pages(columns: Sequence[str], pages: Iterable[Sequence[Row]], empty: str) -> None:
    """Print the rows of all pages as one table, with the column widths of the first page.

    In a pipe, a cell of a later page can be wider than its column.
    """
    terminal, widths, width = sys.stdout.isatty(), None, 0
    for number, page in enumerate(pages):
        cells = _format_cells((columns, *page))
        if not number:
            width = shutil.get_terminal_size().columns if terminal else sys.maxsize
            widths = column_widths(cells, width)
        elif widths is None:
            click.echo()
        body = cells if not number or widths is None else cells[1:]
        lines = _format_lists(body, width) if widths is None else _format_lines(body, widths, terminal, not number)
        for line in lines:
            click.echo(line.rstrip())
    if not width:
        click.echo(empty, err=not terminal)


def _format_cells(rows: Iterable[Row]) -> list[list[str]]:
    return [["" if cell is None else str(cell) for cell in row] for row in rows]


def print_json(document: Document) -> None:
    """Print one document as JSON."""
    click.echo(document.model_dump_json(indent=2))


def print_table(columns: Sequence[str], rows: Sequence[Row], empty: str) -> None:
    """Print a table, or ``empty`` if the table has no rows.

    In a pipe, each row is one line. If a terminal is too narrow for the table, each row is a list of its cells.
    """
    _print_table_pages(columns, [rows] if rows else [], empty)


def _format_lines(cells: Sequence[Sequence[str]], widths: Sequence[int], terminal: bool, headed: bool) -> Iterator[str]:
    for number, row in enumerate(cells):
        wrapped = [wrap_text(cell, width if terminal else sys.maxsize) for cell, width in zip(row, widths, strict=True)]
        for line in zip_longest(*wrapped, fillvalue=""):
            yield (" " * COLUMN_GAP).join(cell.ljust(width) for cell, width in zip(line, widths, strict=True))
        if terminal and headed and not number:
            yield "─" * (sum(widths) + COLUMN_GAP * (len(widths) - 1))


def _format_lists(cells: Sequence[Sequence[str]], width: int) -> Iterator[str]:
    head, *rows = cells
    for number, row in enumerate(rows):
        if number:
            yield ""
        for name, cell in zip(head, row, strict=True):
            if cell:
                first, *more = wrap_text(f"{name}: {cell}", width - COLUMN_GAP)
                yield from (first, *(" " * COLUMN_GAP + line for line in more))


def column_widths(cells: Sequence[Sequence[str]], width: int) -> list[int] | None:
    """Return the width of each column, or None if the longest words do not fit side by side. Pure.

    ``cells`` contains rows with equal numbers of cells. A width is between those of the column's longest word and
    longest cell. If width remains, the narrowest columns are widened first.
    """
    columns = list(zip(*cells, strict=True))
    minimum = [max(_longest_word(cell) for cell in column) for column in columns]
    maximum = [max(len(cell) for cell in column) for column in columns]
    remaining = width - sum(minimum) - COLUMN_GAP * (len(columns) - 1)
    if remaining < 0:
        return None
    return _share_width(minimum, maximum, remaining)


def _share_width(minimum: Sequence[int], maximum: Sequence[int], remaining: int) -> list[int]:
    widths = list(minimum)
    while remaining:
        growing = [index for index, width in enumerate(widths) if width < maximum[index]]
        if not growing:
            break
        widths[min(growing, key=widths.__getitem__)] += 1
        remaining -= 1
    return widths


def _longest_word(cell: str) -> int:
    return max((len(word) for word in cell.split()), default=1)


def wrap_text(text: str, width: int) -> list[str]:
    """Break a text between words into lines of at most ``width`` characters. Pure.

    A word of more than ``width`` characters is not broken. An empty text is one empty line.
    """
    lines = [""]
    for word in text.split():
        if lines[-1] and len(lines[-1]) + 1 + len(word) > width:
            lines.append(word)
        else:
            lines[-1] = f"{lines[-1]} {word}".lstrip()
    return lines


def shorten(text: str | None) -> str | None:
    """Return a text on one line, truncated to ``MAX_CELL_CHARACTERS``."""
    line = " ".join(text.split()) if text else text
    return f"{line[:MAX_CELL_CHARACTERS].rstrip()}…" if line and len(line) > MAX_CELL_CHARACTERS + 1 else line


def format_time(at: datetime) -> str:
    """Format a time in the local time zone."""
    return at.astimezone().strftime("%Y-%m-%d %H:%M:%S")


def format_vlans(view: ClusterView) -> str:
    """Format a cluster's VLAN IDs with their sites."""
    ids = sorted(set(view.vlans.values()))
    if len(ids) == 1:
        return f"VLAN {ids[0]} at {', '.join(sorted(view.vlans))}"
    return ", ".join(f"VLAN {vlan} at {site}" for site, vlan in sorted(view.vlans.items())) or "no VLAN"


def format_size(size: float) -> str:
    """Format a number of bytes: 1610612736 -> ``1.5 GiB``."""
    unit = 0
    while size >= 1024 and unit < len(UNITS) - 1:  # noqa: PLR2004 - IEC 80000-13
        size, unit = size / 1024, unit + 1
    return f"{size:.0f} {UNITS[unit]}" if unit == 0 else f"{size:.1f} {UNITS[unit]}"
