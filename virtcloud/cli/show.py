"""What commands print: tables that also read well in a pipe, and JSON."""

import json
import sys
from collections.abc import Sequence
from datetime import datetime

import click
from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table

from virtcloud.model.document import Document
from virtcloud.model.views import ClusterView

PIPE_WIDTH = 1000
SHORT = 80
"""Characters of a message that a table shows; the whole of it is for who asks for one element or for JSON."""


def table(columns: Sequence[str], rows: Sequence[Sequence[object]], nothing: str) -> None:
    """Print a table; ``nothing`` is what is said when there is no row. In a pipe no cell is cut or wrapped."""
    terminal = sys.stdout.isatty()
    if not rows:
        click.echo(nothing, err=not terminal)
        return
    made = Table(box=SIMPLE_HEAD if terminal else None, pad_edge=False)
    for column in columns:
        made.add_column(column, overflow="fold", no_wrap=not terminal)
    for row in rows:
        made.add_row(*("" if cell is None else str(cell) for cell in row))
    Console(width=None if terminal else PIPE_WIDTH, markup=False, highlight=False, soft_wrap=not terminal).print(made)


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
