"""``virtcloud element``: switches, hosts and gateways, and whether they carry what they must."""

import click

from virtcloud.cli import show
from virtcloud.cli.asking import as_json, client
from virtcloud.model.views import ElementView

COLUMNS = ("element", "kind", "site", "wanted", "confirmed", "last seen", "trouble")


@click.group()
def element() -> None:
    """Look at switches, hosts and gateways: what they must carry, and what they were seen to carry.

    Example: virtcloud element list
    """


@element.command("list")
@as_json
@click.pass_context
def list_(context: click.Context, as_json: bool) -> None:
    """List all elements with their two revisions; one is as it should be when they are equal.

    Example: virtcloud element list
    """
    views = client(context).sbf.elements()
    show.json_documents(views) if as_json else show.table(COLUMNS, [_row(one) for one in views], "no elements")


@element.command("show")
@click.argument("name")
@as_json
@click.pass_context
def show_(context: click.Context, name: str, as_json: bool) -> None:
    """Show the element NAME; of a switch also what its ports were last seen to carry.

    Example: virtcloud element show brno-sw
    """
    view = client(context).sbf.element(name)
    if as_json:
        show.json_document(view)
        return
    show.table(COLUMNS, [_row(view)], "")
    if view.carried is not None:
        click.echo()
        show.table(("port", "VLANs"), [(port, vlans or "none") for port, vlans in view.carried.items()], "no ports")


def _row(view: ElementView) -> tuple[object, ...]:
    seen = view.last_seen.astimezone().strftime("%Y-%m-%d %H:%M:%S") if view.last_seen else "never"
    return (view.name, view.kind, view.site, view.wanted_revision, view.confirmed_revision, seen, view.trouble)
