"""``virtcloud site``: sites, their hosts and the state of their pools."""

import click

from virtcloud.cli import cables, preparation, show
from virtcloud.cli.asking import as_json, client
from virtcloud.cli.whole import Group
from virtcloud.model.errors import ElementError
from virtcloud.model.views import SiteView

COLUMNS = ("site", "pool", "claimed", "quarantined", "free", "hosts")


@click.group(cls=Group)
def site() -> None:
    """Look at sites, their hosts and their pools.

    Example: virtcloud site list
    """


@site.command("list")
@as_json
@click.pass_context
def list_(context: click.Context, as_json: bool) -> None:
    """List all sites.

    Example: virtcloud site list
    """
    views = client(context).sbf.sites()
    show.json_documents(views) if as_json else show.table(COLUMNS, [_row(one) for one in views], "no sites")


@site.command("show")
@click.argument("name")
@as_json
@click.pass_context
def show_(context: click.Context, name: str, as_json: bool) -> None:
    """Show the site NAME: its hosts, its pool, and which numbers are claimed, quarantined, free.

    Example: virtcloud site show brno
    """
    view = client(context).sbf.site(name)
    show.json_document(view) if as_json else show.table(COLUMNS, [_row(view)], "")


@site.command()
@click.argument("name")
@as_json
@click.pass_context
def verify(context: click.Context, name: str, as_json: bool) -> None:
    """Ask the switches of the site NAME for their LLDP neighbours, and list every cable that is not where it should be.

    Exit code 1 when a cable is wrong or a switch could not be asked. A cable of which nothing is heard is not wrong.

    Example: virtcloud site verify brno
    """
    found = client(context).sbf.verify(name)
    show.json_document(found) if as_json else cables.tell(found)
    if fault := cables.fault(found):
        raise ElementError(fault)


@site.command()
@click.argument("name")
@click.option("--platform", help="The platform of the backbone's device; without it, words say what must hold.")
@click.option("--port", help="The backbone's port that the site is attached to.")
@click.option("--core-port", help="That device's port towards the rest of the backbone.")
@click.option("--transport", help="Only for this transport.")
@as_json
@click.pass_context
def prepare(context: click.Context, /, name: str, as_json: bool, **asked: str | None) -> None:
    """Print what is to be configured once for the site NAME: on its uplinks, and in the backbone by its administrators.

    Nothing is done. What only they know stands in angle brackets, and is listed.

    Example: virtcloud site prepare brno --platform cisco_ios --port Gi1/0/1
    """
    found = client(context).sbf.preparation(name, **asked)
    show.json_document(found) if as_json else preparation.tell(found)


def _row(view: SiteView) -> tuple[object, ...]:
    return (view.name, view.pool, view.claimed, view.quarantined, view.free, ", ".join(view.hosts))
