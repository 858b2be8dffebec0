"""Text output of ``cluster list`` and ``cluster show``."""

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
        click.echo(f"member of the network of cluster {view.network}")
    elif view.members:
        members = (f"{member} of {owner}" for member, owner in view.members.items())
        click.echo(f"members of this network: {', '.join(members)}")
    if view.joined:
        mtu = f", MTU {view.joined.mtu}" if view.joined.mtu else ""
        click.echo(f"sites joined by {format_transport_service(view.joined)}{mtu}")
    if view.spec.filters:
        click.echo(f"filters of guests: {view.spec.filters}")
    _print_services(view)
    if view.quarantined:
        click.echo(
            "VLAN IDs are quarantined until all elements below confirm the removal, or the VLAN IDs are declared clean"
        )


def _print_services(view: ClusterView) -> None:
    if view.spec.serves:
        click.echo(f"services of guests: {', '.join(view.spec.serves)}")
    if view.spec.host_services:
        click.echo(f"services of hosts: {', '.join(view.spec.host_services)}")
    if view.spec.router_addresses:
        click.echo(f"router: {view.spec.router} at {' and '.join(view.spec.router_addresses)}")
    if view.spec.outside:
        click.echo(f"destinations outside: {', '.join(view.spec.outside)}")
    for mount in view.mounts:
        rights = " (read-only)" if mount.read_only else ""
        click.echo(f"files of {mount.gateway}: {mount.command}{rights}")


def _print_guests(view: ClusterView) -> None:
    click.echo()
    guests = [
        (guest.name, guest.host, guest.image, " ".join(guest.addresses), f"{guest.memory_mb} MiB", guest.cpus)
        for guest in view.spec.guests
    ]
    printing.print_table(("guest", "host", "image", "addresses", "memory", "cpus"), guests, "no guests")


def _print_placements(view: ClusterView) -> None:
    """Print a table with the progress of each element.

    Errors that are too long for a cell are below the table, unless the cluster's reason contains them.
    """
    click.echo()
    parts = [
        (
            placement.element,
            placement.kind,
            placement.site,
            _format_progress(placement),
            printing.shorten(placement.trouble),
        )
        for placement in view.placements
    ]
    printing.print_table(("element", "kind", "site", "progress", "trouble"), parts, "no elements")
    for placement in view.placements:
        trouble = placement.trouble or ""
        if trouble != printing.shorten(trouble) and trouble not in (view.reason or ""):
            element = f"{placement.kind} {placement.element}"
            click.echo(f"\n{'' if trouble.startswith(element) else f'{element}: '}{trouble}")


def _format_progress(placement: PlacementView) -> str:
    if placement.reachable:
        return placement.progress
    return (
        f"{placement.progress} as of {printing.format_time(placement.seen_at)}" if placement.seen_at else "never seen"
    )


def describe_remains(view: ClusterView) -> str:
    """Return a sentence: either all elements have removed the cluster, or its VLAN IDs are quarantined."""
    if view.quarantined:
        return "its VLAN IDs are quarantined, because an element did not confirm the removal (virtcloud cluster show)"
    return "every element has removed the cluster"


def format_lease_end(view: ClusterView) -> str:
    """Format the end of a cluster's lease in the local time zone, without seconds."""
    return view.lease_ends.astimezone().strftime("%Y-%m-%d %H:%M")
