"""``virtcloud audit``: show and follow the audit log."""

import time
from collections.abc import Iterable, Iterator, Sequence
from datetime import datetime

import click

from virtcloud.cli import printing
from virtcloud.cli.differences import format_change
from virtcloud.cli.options import MomentType, WholeNumberType, open_client
from virtcloud.client.sbf import SbfClient
from virtcloud.client.waiting import pause_after_failed_poll
from virtcloud.model.changes import AuditEntry
from virtcloud.model.errors import BadInput, ServiceUnreachable

WAIT_S = 30.0
NEWEST, MAX_NEWEST = 100, 1000
"""The default limit of rows, and the highest limit of a single API call."""


@click.command()
@click.option(
    "--cluster", metavar="KEY", help="Only rows about this cluster. To show changes on a switch, use --element."
)
@click.option("--element", metavar="NAME", help="Only changes on this element.")
@click.option("--request", "request_id", metavar="ID", help="Only changes caused by the call with this request ID.")
@click.option("--who", metavar="NAME", help="Only changes by the caller with this name, such as alice.")
@click.option(
    "--since", metavar="TIME", type=MomentType(), help="Only rows from this time on, such as 2026-11-20T08:00 or 2h."
)
@click.option("--until", metavar="TIME", type=MomentType(), help="Only rows up to this time.")
@click.option(
    "--limit",
    type=WholeNumberType(1),
    help="Maximum number of past rows to print.  [default: 100; all with --since, --until or --who]",
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
    who: str | None,
    since: datetime | None,
    until: datetime | None,
    limit: int | None,
    follow: bool,
    as_json: bool,
) -> None:
    """Show the changes that the audit log records: who, what, when, why, on which element and for which cluster.

    Rows are printed oldest first. Without --since, --until and --who, the command prints only the newest rows. With one
    of these options, the command prints all matching rows, page by page. A TIME without time zone is in the local time
    zone. A duration such as 2h means two hours ago. With --json, print one JSON document per line.

    Example: virtcloud audit --cluster demo --follow
    """
    sbf = open_client(context).sbf
    if who or since or until:
        if follow:
            raise BadInput("--follow: expected no --who, --since or --until, got one: omit this option or --follow")
        pages = sbf.audit_pages(element, cluster, who=who, since=since, until=until, request_id=request_id)
        has_rows = False
        for page in printing.limit_pages(pages, limit):
            _print(page, as_json=as_json)
            has_rows = True
        _report_no_rows(has_rows=has_rows)
        return
    if limit is not None and limit > MAX_NEWEST:
        pages = sbf.audit_pages(element, cluster, request_id=request_id, newest=True, size=MAX_NEWEST)
        rows = _read_newest(pages, limit)
    else:
        rows = sbf.audit(element, cluster, limit=limit or NEWEST, request_id=request_id)
    _print(rows, as_json=as_json)
    if follow:
        for newer_rows in _follow(sbf, element, cluster, max((row.id for row in rows), default=0), request_id):
            _print(newer_rows, as_json=as_json)
    else:
        _report_no_rows(has_rows=bool(rows))


def _report_no_rows(*, has_rows: bool) -> None:
    if not has_rows:
        click.echo("no row of the audit log matches", err=True)


def _read_newest(pages: Iterable[Sequence[AuditEntry]], limit: int) -> list[AuditEntry]:
    return [row for page in printing.limit_pages(pages, limit) for row in page][::-1]


def _follow(
    sbf: SbfClient, element: str | None, cluster: str | None, after: int, request_id: str | None
) -> Iterator[Sequence[AuditEntry]]:
    """Yield the rows whose ID is higher than ``after``. Then yield new rows, without end.

    Raise ServiceUnreachable if SBF does not answer for ``PATIENCE_S`` seconds.
    """
    answered = time.monotonic()
    while True:
        try:
            rows = sbf.audit(element, cluster, after=after, wait=WAIT_S, request_id=request_id)
        except ServiceUnreachable as error:
            pause_after_failed_poll(error, time.monotonic() - answered)
            continue
        answered = time.monotonic()
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
