"""``virtcloud pool``: the VLAN numbers that a site gives."""

import click

from virtcloud.cli import show
from virtcloud.cli.asking import as_json, client
from virtcloud.model.views import Pool
from virtcloud.model.vlans import VlanSet


@click.group()
def pool() -> None:
    """Say which VLAN numbers a site gives to virtual clusters.

    Example: virtcloud pool set brno 100-199,300
    """


@pool.command("show")
@click.argument("site")
@as_json
@click.pass_context
def show_(context: click.Context, site: str, as_json: bool) -> None:
    """Show the pool of SITE.

    Example: virtcloud pool show brno
    """
    found = client(context).sbf.pool(site)
    show.json_document(found) if as_json else click.echo(str(found.vlans))


@pool.command("set")
@click.argument("site")
@click.argument("vlans")
@as_json
@click.pass_context
def set_(context: click.Context, site: str, vlans: str, as_json: bool) -> None:
    """Give SITE the pool VLANS, ranges such as 100-199,300. Numbers in use cannot be taken out.

    Example: virtcloud pool set brno 100-199,300
    """
    found = client(context).sbf.put_pool(site, Pool(vlans=VlanSet.parse(vlans)))
    show.json_document(found) if as_json else click.echo(f"site {site} gives {found.vlans or 'no number'}")
