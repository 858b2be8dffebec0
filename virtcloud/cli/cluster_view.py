"""Text output about clusters: a row of ``cluster list``; the summary, guests and elements of ``cluster show``."""

import click

from virtcloud.cli import printing
from virtcloud.cli.differences import format_transport_service
from virtcloud.model.views import ClusterView, PlacementView

CLUSTER_COLUMNS = ("cluster", "owner", "state", "VLANs", "guests", "network", "lease ends", "reason")


def cluster_row(view: ClusterView) -> tuple[object, ...]:
    """Return the cells of a cluster in ``cluster list``."""
    network = f"in {view.network}" if view.network else view.spec.name
    guests, vlans = len(view.spec.guests), printing.format_vlans(view)
    return (view.key, view.spec.owner, view.state, vlans, guests, network, format_lease_end(view), view.reason)


def print_cluster(view: ClusterView) -> None:
    """Print a cluster, its guests, and the progress of its elements."""
    _print_summary(view)
    _print_guests(view)
    _print_placements(view)


def _print_summary(view: ClusterView) -> None:
    name = f" ({view.spec.name})" if view.spec.name else ""
    reason = f": {view.reason}" if view.reason else ""
    click.echo(f"cluster {view.key}{name} of {view.spec.owner} is {view.state}{reason}")
    click.echo(
        f"attempt {view.attempt}, ID {view.id}, {printing.format_vlans(view)}, lease ends {format_lease_end(view)}"
    )
    if view.network:
        click.echo(f"it is a member of the network of cluster {view.network}")
    elif view.members:
        members = (f"{member} of {owner}" for member, owner in view.members.items())
        click.echo(f"members of its network: {', '.join(members)}")
    if view.joined:
        click.echo(f"its sites are joined by {format_transport_service(view.joined)}")
    if view.quarantined:
        click.echo("its VLAN IDs are quarantined until the elements below are clean")


def _print_guests(view: ClusterView) -> None:
    click.echo()
    guests = [
        (one.name, one.host, one.image, " ".join(one.addresses), f"{one.memory_mb} MiB", one.cpus)
        for one in view.spec.guests
    ]
    printing.print_table(("guest", "host", "image", "addresses", "memory", "cpus"), guests, "no guests")


def _print_placements(view: ClusterView) -> None:
    """Print the progress of each element in a table, and below it the errors that are too long for the table."""
    click.echo()
    parts = [
        (one.element, one.kind, one.site, _format_progress(one), printing.shorten(one.trouble))
        for one in view.placements
    ]
    printing.print_table(("element", "kind", "site", "progress", "trouble"), parts, "no elements")
    for one in view.placements:
        if one.trouble != printing.shorten(one.trouble):
            named = f"{one.kind} {one.element}"
            click.echo(f"\n{'' if (one.trouble or '').startswith(named) else f'{named}: '}{one.trouble}")


def _format_progress(part: PlacementView) -> str:
    """Return an element's progress, with the time of the last reading or report if it is unreachable."""
    if part.reachable:
        return part.progress
    return f"{part.progress} as of {printing.format_time(part.seen_at)}" if part.seen_at else "never seen"


def describe_remains(view: ClusterView) -> str:
    """Return a description of what remains of a deleted cluster: nothing, or quarantined VLAN IDs."""
    if view.quarantined:
        return "its VLAN IDs are quarantined, because an element did not confirm the removal (virtcloud cluster show)"
    return "nothing is left of it"


def format_lease_end(view: ClusterView) -> str:
    """Format the end of a cluster's lease in the local time zone, without seconds."""
    return view.lease_ends.astimezone().strftime("%Y-%m-%d %H:%M")
