"""``virtcloud cluster publish``, ``unpublish`` and ``publications``: ports of a site that lead to guests."""

import re

import click

from virtcloud.cli import printing
from virtcloud.cli.options import open_client
from virtcloud.model.errors import BadInput
from virtcloud.model.publication import PublicationRequest, PublicationView
from virtcloud.model.values import Name

COLUMNS = ("guest", "address", "site", "gateway", "published", "by", "until", "state")
HIGHEST_PORT = 65535


@click.command()
@click.argument("key", metavar="CLUSTER")
@click.argument("target", metavar="GUEST:PORT")
@click.option("--site", help="The site at whose gateway the port is published.  [default: a site of the cluster]")
@printing.json_option
@click.pass_context
def publish(context: click.Context, /, key: str, *, target: str, site: str | None, as_json: bool) -> None:
    """Publish a TCP port of a guest at a site's gateway.

    A port of the gateway leads to the port PORT of the guest GUEST of CLUSTER. All guests of the network must have
    images that an administrator of the site certified. The publication is suspended when another guest joins, or when
    an image loses its certification; repeat the command to restore it. It ends with the cluster. Idempotent.

    Example: virtcloud cluster publish demo g1:22 --site brno
    """
    guest, port = _parse_target(target)
    request = PublicationRequest(guest=guest, port=port, site=None if site is None else Name(site))
    view = open_client(context).sbf.publish(key, request)
    printing.print_json(view) if as_json else click.echo(
        f"{_format_address(view)} leads to {view.guest}:{view.guest_port} of cluster {key}, as soon as gateway "
        f"{view.gateway} confirms it, until {printing.format_time(view.lease_ends)}"
    )


@click.command()
@click.argument("key", metavar="CLUSTER")
@click.argument("target", metavar="GUEST:PORT")
@click.option("--site", help="Only the publication at this site.  [default: all sites]")
@printing.json_option
@click.pass_context
def unpublish(context: click.Context, /, key: str, *, target: str, site: str | None, as_json: bool) -> None:
    """End the publication of a port of a guest.

    Open connections of clients end too. Idempotent.

    Example: virtcloud cluster unpublish demo g1:22
    """
    guest, port = _parse_target(target)
    ended = open_client(context).sbf.unpublish(key, guest, port, site)
    if as_json:
        printing.print_list(COLUMNS, ended, _make_row, "", as_json=True)
        return
    for view in ended:
        click.echo(f"{_format_address(view)} no longer leads to {target} of cluster {key}")
    if not ended:
        click.echo(f"{target} of cluster {key} is not published{f' at {site}' if site else ''}")


@click.command()
@click.argument("key", metavar="CLUSTER")
@printing.json_option
@click.pass_context
def publications(context: click.Context, /, key: str, *, as_json: bool) -> None:
    """List the published ports of a cluster's guests.

    The list shows why a publication is suspended.

    Example: virtcloud cluster publications demo
    """
    views = open_client(context).sbf.publications(key)
    printing.print_list(COLUMNS, views, _make_row, "no publications", as_json=as_json)


def _parse_target(text: str) -> tuple[Name, int]:
    found = re.fullmatch(r"([^:]+):([0-9]{1,5})", text)
    if found is None or not 1 <= int(found[2]) <= HIGHEST_PORT:
        raise BadInput(f"expected GUEST:PORT such as g1:22, got {text!r}")
    return Name(found[1]), int(found[2])


def _format_address(view: PublicationView) -> str:
    if view.address is None:
        return f"port {view.port} of gateway {view.gateway}"
    return f"[{view.address}]:{view.port}" if ":" in str(view.address) else f"{view.address}:{view.port}"


def _make_row(view: PublicationView) -> tuple[object, ...]:
    return (
        f"{view.guest}:{view.guest_port}",
        _format_address(view),
        view.site or "",
        view.gateway,
        printing.format_time(view.created_at),
        view.created_by,
        printing.format_time(view.lease_ends),
        f"suspended: {view.suspended}" if view.suspended else "published",
    )
