"""``virtcloud pool``: the VLAN IDs that a site allocates to clusters, and quarantined VLAN IDs."""

import click

from virtcloud.cli import confirmation, printing
from virtcloud.cli.groups import SummaryGroup
from virtcloud.cli.options import WholeNumberType, open_client
from virtcloud.model.element_views import Pool, QuarantinedVlan, SiteView, VlanInOtherUse
from virtcloud.model.errors import Conflict
from virtcloud.model.values import ClusterKey, VlanId
from virtcloud.model.vlans import VlanSet

COLUMNS = ("quarantined", "for cluster", "since", "unconfirmed by")
OTHER_USE = ("in other use", "on", "name", "unmanaged ports", "since", "read", "cluster")


@click.group(cls=SummaryGroup)
def pool() -> None:
    """Show and set the pool of a site: the VLAN IDs that the site allocates to virtual clusters.

    Example: virtcloud pool set brno 100-199,300
    """


@pool.command("show")
@click.argument("site")
@printing.json_option
@click.pass_context
def show_(context: click.Context, site: str, as_json: bool) -> None:
    """Show the pool of SITE, its quarantined VLAN IDs, and the VLAN IDs in other use.

    A VLAN ID is in other use in two cases: a switch or edge of SITE has the VLAN although SBF did not create the VLAN,
    or an unmanaged port carries the VLAN. SBF does not allocate a VLAN ID in other use. When a new reading of the
    device no longer shows this use, SBF can allocate the VLAN ID again.

    Example: virtcloud pool show brno
    """
    view = open_client(context).sbf.site(site)
    if as_json:
        printing.print_json(view)
        return
    click.echo(str(view.pool))
    if view.quarantine:
        click.echo()
        printing.print_table(COLUMNS, [_row(vlan) for vlan in view.quarantine], "")
    if view.other_use:
        click.echo()
        printing.print_table(OTHER_USE, [_other_use_row(vlan) for vlan in view.other_use], "")


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
    """Set the pool of SITE to VLANS, for example 100-199,300. VLAN IDs of clusters cannot be removed from the pool.

    First, the site's switches and edges are read. VLAN IDs in other use are listed. SBF does not change the VLANs with
    these IDs, and allocates none of these IDs to clusters. Before a port in other use is changed, you are asked for
    confirmation. If another call changes the pool in the meantime, the pool is not set.

    Example: virtcloud pool set brno 100-199,300 --dry-run
    """
    sbf, pool = open_client(context).sbf, Pool(vlans=VlanSet.parse(vlans))
    _, version = sbf.versioned_pool(site)
    preview = sbf.dry_run_pool(site, pool)
    if dry_run:
        confirmation.print_dry_run(preview, as_json=as_json)
        return
    confirmation.confirm_change(preview, yes=yes)
    new_pool = sbf.put_pool(site, pool, version)
    printing.print_json(new_pool) if as_json else click.echo(f"the pool of site {site} is {new_pool.vlans or 'empty'}")


@pool.command()
@click.argument("site")
@click.argument("vlan", type=WholeNumberType(VlanId.lowest, VlanId.highest))
@click.option("--reason", required=True, metavar="TEXT", help="The reason why the VLAN ID is clean, for the audit log.")
@click.option(
    "--cluster", metavar="KEY", help="Declare VLAN clean only if this cluster's VLAN is in quarantine ('pool show')."
)
@printing.json_option
@click.pass_context
def clean(  # noqa: PLR0913 - click passes each option by its name
    context: click.Context, /, site: str, vlan: int, *, reason: str, cluster: str | None, as_json: bool
) -> None:
    """Declare VLAN, a quarantined VLAN ID, clean on all elements of SITE. The audit log records your name.

    If the cluster that used VLAN also had other sites, SBF releases the cluster's VLAN IDs of all sites together.
    First, the elements of the other sites must confirm the removal of the cluster, or the VLAN IDs must be declared
    clean at these sites.

    If VLAN becomes free after 'pool show', a later cluster can use VLAN, end, and leave VLAN in quarantine again. With
    --cluster, the command refuses to declare the VLAN ID of this later cluster clean. Omit --cluster for an ended
    member of a network that still runs.

    Example: virtcloud pool clean brno 112 --cluster demo --reason "brno-sw2 was scrapped"
    """
    sbf = open_client(context).sbf
    cluster_id = None if cluster is None else _find_quarantined(sbf.site(site), vlan, cluster)
    view = sbf.declare_clean(site, vlan, reason=reason, cluster_id=cluster_id)
    remaining = [quarantined for quarantined in view.quarantine if quarantined.vlan == vlan]
    if as_json:
        printing.print_json(view)
    elif remaining:
        click.echo(
            f"VLAN {vlan} is still quarantined, because these elements have not confirmed the removal of the cluster: "
            f"{_format_elements(remaining[0])}; declare the VLAN ID clean at these sites too"
        )
    else:
        click.echo(f"VLAN {vlan} is not in quarantine at {site}")


def _find_quarantined(view: SiteView, vlan: int, cluster: str) -> str:
    found = {quarantined.cluster: quarantined.cluster_id for quarantined in view.quarantine if quarantined.vlan == vlan}
    if cluster not in found:
        seen = f"that of cluster {next(iter(found))}" if found else "no quarantine"
        raise Conflict(
            f"VLAN {vlan} at {view.name}: expected the quarantine of cluster {cluster}, found {seen}; nothing was "
            f"declared clean: show the quarantine (virtcloud pool show {view.name}); if the cluster is an ended member "
            "of a network that still runs, omit --cluster"
        )
    return found[ClusterKey(cluster)]


def _row(quarantined: QuarantinedVlan) -> tuple[object, ...]:
    return (
        quarantined.vlan,
        quarantined.cluster,
        printing.format_time(quarantined.since),
        _format_elements(quarantined),
    )


def _other_use_row(vlan: VlanInOtherUse) -> tuple[object, ...]:
    read = printing.format_time(vlan.read_at) if vlan.read_at else "never"
    return (
        vlan.vlan,
        vlan.element,
        vlan.name,
        ", ".join(vlan.ports),
        printing.format_time(vlan.since),
        read,
        vlan.cluster,
    )


def _format_elements(quarantined: QuarantinedVlan) -> str:
    return ", ".join(f"{element} at {site}" for element, site in sorted(quarantined.elements.items()))
