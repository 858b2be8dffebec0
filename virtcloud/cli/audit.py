"""``virtcloud audit``: show and follow the audit log."""

from collections.abc import Iterator, Sequence

import click

from virtcloud.cli import printing
from virtcloud.cli.differences import format_change
from virtcloud.cli.options import open_client
from virtcloud.client.sbf import SbfClient
from virtcloud.model.changes import AuditEntry

WAIT_S = 30.0


@click.command()
@click.option(
    "--cluster", metavar="KEY", help="Only transitions of this cluster. To show changes on a switch, use --element."
)
@click.option("--element", metavar="NAME", help="Only changes on this element.")
@click.option("--request", "request_id", metavar="ID", help="Only changes on behalf of the call with this request ID.")
@click.option(
    "--limit",
    type=click.IntRange(1, 1000),
    default=100,
    show_default=True,
    help="Maximum number of past rows to print.",
)
@click.option("--follow", is_flag=True, help="Print new rows until Ctrl-C.")
@printing.json_option
@click.pass_context
def audit(  # noqa: PLR0913 - click passes each option by its name
    context: click.Context,
    /,
    *,
    cluster: str | None,
    element: str | None,
    request_id: str | None,
    limit: int,
    follow: bool,
    as_json: bool,
) -> None:
    """Show the changes that the audit log records: who, what, when, why, on which element and for which cluster.

    With --json, print one JSON document per line.

    Example: virtcloud audit --cluster demo --follow
    """
    sbf = open_client(context).sbf
    rows = sbf.audit(element, cluster, limit=limit, request_id=request_id)
    _print(rows, as_json=as_json)
    if follow:
        for newer_rows in _follow(sbf, element, cluster, rows[-1].id if rows else 0, request_id):
            _print(newer_rows, as_json=as_json)


def _follow(
    sbf: SbfClient, element: str | None, cluster: str | None, after: int, request_id: str | None
) -> Iterator[Sequence[AuditEntry]]:
    """Yield the rows of the audit log whose ID is higher than ``after``. Then yield new rows, without end."""
    while True:
        rows = sbf.audit(element, cluster, after=after, wait=WAIT_S, request_id=request_id)
        after = rows[-1].id if rows else after
        yield rows


def _print(rows: Sequence[AuditEntry], *, as_json: bool) -> None:
    for row in rows:
        click.echo(row.model_dump_json() if as_json else _format_row(row))


def _format_row(row: AuditEntry) -> str:
    subjects = [f"element {row.element}"] if row.element else []
    subjects += [f"cluster {row.cluster}"] if row.cluster else []
    subjects += [f"request {row.request_id}"] if row.request_id else []
    head = f"{printing.format_time(row.at)}  {row.who}  {row.what}  {', '.join(subjects)}".rstrip()
    changes = [f"    {line}" for line in format_change(row.difference)] if row.difference else []
    return "\n".join([f"{head}: {row.why}" if row.why else head, *changes])
