"""``virtcloud audit``: who changed what, when and why."""

from collections.abc import Iterator, Sequence

import click

from virtcloud.cli import printing
from virtcloud.cli.differences import format_change
from virtcloud.cli.options import json_option, open_client
from virtcloud.client.sbf import SbfClient
from virtcloud.model.changes import AuditEntry

WAIT_S = 30.0


@click.command()
@click.option(
    "--cluster", metavar="KEY", help="Only the life of this cluster; --element has what was changed on a switch for it."
)
@click.option("--element", metavar="NAME", help="Only what was changed on this element.")
@click.option("--limit", type=click.IntRange(1, 1000), default=100, show_default=True, help="How many rows at first.")
@click.option("--follow", is_flag=True, help="Go on with new rows until Ctrl-C.")
@json_option
@click.pass_context
def audit(  # noqa: PLR0913 - click gives each option by its name
    context: click.Context, /, *, cluster: str | None, element: str | None, limit: int, follow: bool, as_json: bool
) -> None:
    """Say who changed what, when, why, on which element and for which cluster; with --json a document on each line.

    Example: virtcloud audit --cluster demo --follow
    """
    sbf = open_client(context).sbf
    rows = sbf.audit(element, cluster, limit=limit)
    _tell(rows, as_json=as_json)
    if follow:
        for newer in _newer(sbf, element, cluster, rows[-1].id if rows else 0):
            _tell(newer, as_json=as_json)


def _newer(sbf: SbfClient, element: str | None, cluster: str | None, after: int) -> Iterator[Sequence[AuditEntry]]:
    """Give what comes past ``after``, for ever."""
    while True:
        rows = sbf.audit(element, cluster, after=after, wait=WAIT_S)
        after = rows[-1].id if rows else after
        yield rows


def _tell(rows: Sequence[AuditEntry], *, as_json: bool) -> None:
    for row in rows:
        click.echo(row.model_dump_json() if as_json else _line(row))


def _line(row: AuditEntry) -> str:
    of = [f"element {row.element}"] if row.element else []
    of += [f"cluster {row.cluster}"] if row.cluster else []
    said = f"{printing.format_time(row.at)}  {row.who}  {row.what}  {', '.join(of)}".rstrip()
    changes = [f"    {line}" for line in format_change(row.difference)] if row.difference else []
    return "\n".join([f"{said}: {row.why}" if row.why else said, *changes])
