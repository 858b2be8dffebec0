"""``virtcloud pool``: the VLAN IDs that a site allocates to clusters, and quarantined VLAN IDs."""

import click

from virtcloud.cli import confirmation, printing
from virtcloud.cli.groups import SummaryGroup
from virtcloud.cli.options import open_client
from virtcloud.model.values import VlanId
from virtcloud.model.views import Pool, QuarantinedVlan, VlanInOtherUse
from virtcloud.model.vlans import VlanSet

COLUMNS = ("quarantined", "for cluster", "since", "unconfirmed by")
OTHER_USE = ("in other use", "on", "name", "unmanaged ports", "since", "read", "cluster")


@click.group(cls=SummaryGroup)
def pool() -> None:
    """Show and set the pool of a site: the VLAN IDs that it allocates to virtual clusters.

    Example: virtcloud pool set brno 100-199,300
    """


@pool.command("show")
@click.argument("site")
@printing.json_option
@click.pass_context
def show_(context: click.Context, site: str, as_json: bool) -> None:
    """Show the pool of SITE, its quarantined VLAN IDs, and the VLAN IDs in other use.

    A VLAN ID is in other use when a switch or edge of SITE has a VLAN that SBF did not create, or carries the VLAN on
    an unmanaged port. SBF does not allocate such a VLAN ID until it has read the device again without this use.

    Example: virtcloud pool show brno
    """
    found = open_client(context).sbf.site(site)
    if as_json:
        printing.print_json(found)
        return
    click.echo(str(found.pool))
    if found.quarantine:
        click.echo()
        printing.print_table(COLUMNS, [_row(one) for one in found.quarantine], "")
    if found.other_use:
        click.echo()
        printing.print_table(OTHER_USE, [_other_use_row(one) for one in found.other_use], "")


@pool.command("set")
@click.argument("site")
@click.argument("vlans")
@confirmation.dry_run_option
@confirmation.yes_option
@printing.json_option
@click.pass_context
def set_(  # noqa: PLR0913 - click passes each option by its name
    context: click.Context, /, site: str, vlans: str, *, dry_run: bool, yes: bool, as_json: bool
) -> None:
    """Set the pool of SITE to VLANS, ranges such as 100-199,300. VLAN IDs of clusters cannot be removed from the pool.

    The site's switches and edges are read first. VLAN IDs in other use are listed. They are neither changed nor
    allocated to clusters. Before a port in other use is changed, you are asked for confirmation.

    Example: virtcloud pool set brno 100-199,300 --dry-run
    """
    sbf, pool = open_client(context).sbf, Pool(vlans=VlanSet.parse(vlans))
    preview = sbf.dry_run_pool(site, pool)
    if dry_run:
        confirmation.print_dry_run(preview, as_json=as_json)
        return
    confirmation.confirm_change(preview, yes=yes)
    found = sbf.put_pool(site, pool)
    printing.print_json(found) if as_json else click.echo(f"the pool of site {site} is {found.vlans or 'empty'}")


@pool.command()
@click.argument("site")
@click.argument("vlan", type=click.IntRange(VlanId.lowest, VlanId.highest))
@click.option("--reason", required=True, metavar="TEXT", help="The reason why the VLAN ID is clean, for the audit log.")
@printing.json_option
@click.pass_context
def clean(context: click.Context, /, site: str, vlan: int, *, reason: str, as_json: bool) -> None:
    """Declare the quarantined VLAN ID VLAN clean on all elements of SITE. The audit log records your name.

    The VLAN IDs of the former cluster are released when the elements of its other sites have confirmed the removal, or
    are declared clean too.

    Example: virtcloud pool clean brno 112 --reason "brno-sw2 was scrapped"
    """
    found = open_client(context).sbf.declare_clean(site, vlan, reason=reason)
    left = [one for one in found.quarantine if one.vlan == vlan]
    if as_json:
        printing.print_json(found)
    elif left:
        click.echo(
            f"VLAN {vlan} is still quarantined, unconfirmed by {_format_elements(left[0])}: declare it clean there, too"
        )
    else:
        click.echo(f"VLAN {vlan} is not in quarantine at {site}")


def _row(one: QuarantinedVlan) -> tuple[object, ...]:
    return (one.vlan, one.cluster, printing.format_time(one.since), _format_elements(one))


def _other_use_row(one: VlanInOtherUse) -> tuple[object, ...]:
    read = printing.format_time(one.read_at) if one.read_at else "never"
    return (one.vlan, one.element, one.name, ", ".join(one.ports), printing.format_time(one.since), read, one.cluster)


def _format_elements(one: QuarantinedVlan) -> str:
    return ", ".join(f"{element} at {site}" for element, site in sorted(one.elements.items()))
