"""``virtcloud cluster publish``, ``unpublish`` and ``publications``: ports of gateways, forwarded to guests."""

import re

import click

from virtcloud.cli import printing
from virtcloud.cli.options import open_client
from virtcloud.model.errors import BadInput
from virtcloud.model.gateway_access import PublishedProtocol
from virtcloud.model.publication import PublicationRequest, PublicationView
from virtcloud.model.values import Name

COLUMNS = ("guest", "address", "site", "gateway", "published", "by", "until", "state")
HIGHEST_PORT = 65535


@click.command()
@click.argument("key", metavar="CLUSTER")
@click.argument("target", metavar="GUEST:PORT[/udp]")
@click.option("--site", help="The site at whose gateway the port is published.  [default: a site of the cluster]")
@printing.json_option
@click.pass_context
def publish(context: click.Context, /, key: str, *, target: str, site: str | None, as_json: bool) -> None:
    """Publish a TCP or UDP port of a guest at a site's gateway.

    The gateway forwards one of its ports to the port PORT of the guest GUEST of CLUSTER. All guests of the cluster's
    network must have images that an administrator of the site certified. SBF suspends the publication when a guest
    without a certified image joins the network, or when an image loses its certification. To restore a suspended
    publication, remove the reason for the suspension and repeat the command. The publication ends with the cluster. If
    another gateway replaces a failed gateway, the publication moves to the other gateway and gets another address.
    Idempotent.

    Example: virtcloud cluster publish demo g1:22 --site brno

    Example: virtcloud cluster publish demo g1:53/udp
    """
    guest, port, protocol = _parse_target(target)
    request = PublicationRequest(guest=guest, port=port, protocol=protocol, site=None if site is None else Name(site))
    view = open_client(context).sbf.publish(key, request)
    printing.print_json(view) if as_json else click.echo(
        f"{_format_address(view)} will lead to {_format_target(view)} of cluster {key} until "
        f"{printing.format_time(view.lease_ends)}; the publication begins when gateway {view.gateway} confirms it"
    )


@click.command()
@click.argument("key", metavar="CLUSTER")
@click.argument("target", metavar="GUEST:PORT[/udp]")
@click.option("--site", help="Only the publication at this site.  [default: all sites]")
@printing.json_option
@click.pass_context
def unpublish(context: click.Context, /, key: str, *, target: str, site: str | None, as_json: bool) -> None:
    """End the publication of a port of a guest.

    Open connections of clients end too. Idempotent.

    Example: virtcloud cluster unpublish demo g1:22
    """
    guest, port, protocol = _parse_target(target)
    ended = open_client(context).sbf.unpublish(key, guest, port, site, protocol=protocol)
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
    if not as_json and any(view.suspended for view in views):
        remedy = "remove the reason for the suspension, and repeat 'cluster publish'"
        click.echo(f"virtcloud: to restore a suspended publication, {remedy}", err=True)


def _parse_target(text: str) -> tuple[Name, int, PublishedProtocol]:
    found = re.fullmatch(r"([^:]+):([0-9]{1,5})(?:/(tcp|udp))?", text)
    if found is None or not 1 <= int(found[2]) <= HIGHEST_PORT:
        raise BadInput(f"expected GUEST:PORT such as g1:22, or GUEST:PORT/udp, got {text!r}")
    return Name(found[1]), int(found[2]), PublishedProtocol(found[3] or PublishedProtocol.TCP)


def _format_target(view: PublicationView) -> str:
    return f"{view.guest}:{view.guest_port}{_format_protocol(view)}"


def _format_protocol(view: PublicationView) -> str:
    return "" if view.protocol is PublishedProtocol.TCP else f"/{view.protocol}"


def _format_address(view: PublicationView) -> str:
    if view.address is None:
        return f"port {view.port}{_format_protocol(view)} of gateway {view.gateway}"
    address = f"[{view.address}]" if ":" in str(view.address) else str(view.address)
    return f"{address}:{view.port}{_format_protocol(view)}"


def _format_state(view: PublicationView) -> str:
    state = f"suspended: {view.suspended}" if view.suspended else "published"
    return state if view.moved_from is None else f"{state}; moved from {view.moved_from}, which did not answer"


def _make_row(view: PublicationView) -> tuple[object, ...]:
    return (
        _format_target(view),
        _format_address(view),
        view.site or "",
        view.gateway,
        printing.format_time(view.created_at),
        view.created_by,
        printing.format_time(view.lease_ends),
        _format_state(view),
    )
