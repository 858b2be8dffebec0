"""``virtcloud cluster create``: build a spec from options, create the cluster, and wait until it is active."""

from typing import get_args

import click
from click.core import ParameterSource

from virtcloud.cli import differences, printing
from virtcloud.cli.cluster_options import ClusterOptions, build_spec
from virtcloud.cli.cluster_view import format_lease_end
from virtcloud.cli.cluster_warnings import describe_missing_addresses, find_unreachable_sites
from virtcloud.cli.options import DurationType, SizeType, WholeNumberType, open_client
from virtcloud.cli.progress import wait_with_progress
from virtcloud.client.api import Client
from virtcloud.client.cluster import Cluster
from virtcloud.jobs.request_values import DISK, MEMORY
from virtcloud.model.cluster import (
    ClusterService,
    ClusterSpec,
    ClusterState,
    GuestFilters,
    GuestService,
    HostService,
    RouterKind,
)
from virtcloud.model.durations import MAX_DEADLINE_S, MAX_LEASE_S
from virtcloud.model.errors import GuestTaken, VirtcloudError
from virtcloud.model.views import ClusterView

RENAME_GUESTS = (
    "Guests of one network need different names and addresses. Set the names and addresses with --guest-prefix and "
    "--network, for example --guest-prefix m --network 10.0.0.50/24"
)

GUEST_OPTIONS = {
    *("hosts", "guests_per_host", "guest_count", "guest_prefix", "image", "network", "user_data"),
    *("cpus", "memory", "disk", "extra_disks", "pids", "bandwidth"),
}
"""The parameters of options that describe hosts and guests. With ``--spec``, the file describes hosts and guests."""


@click.command()
@click.argument("key")
@click.option("--host", "hosts", multiple=True, metavar="HOST", help="A host of the cluster; may be repeated.")
@click.option(
    "--guests-per-host", type=WholeNumberType(0, 1000), default=1, show_default=True, help="Guests on each host."
)
@click.option(
    "--guests",
    "guest_count",
    type=WholeNumberType(1, 4096),
    metavar="N",
    help="Number of guests for which SBF chooses the hosts, by free capacity. With this option, --host adds a host "
    "without guests.",
)
@click.option(
    "--sites",
    "spread_sites",
    multiple=True,
    metavar="SITE[,SITE]...",
    help="With --guests: the sites whose hosts SBF may choose.  [default: all sites]",
)
@click.option("--cpus", type=WholeNumberType(1, 1024), help="Virtual processors of each guest.  [default: 1]")
@click.option(
    "--memory",
    type=SizeType(MEMORY),
    help="Memory of each guest, such as 4gb. A number without a unit is in MiB.  [default: 256mb]",
)
@click.option(
    "--disk",
    type=SizeType(DISK),
    help="Size of each virtual machine's disk, or the amount of data that a container may write to its root file "
    "system. A number without a unit is in MiB.  [default: for a virtual machine, the size of the image; for a "
    "container, no limit]",
)
@click.option(
    "--extra-disk",
    "extra_disks",
    multiple=True,
    metavar="NAME=SIZE",
    help="An extra disk of each guest; a container finds it at /mnt/NAME. May be repeated.",
)
@click.option(
    "--pids",
    type=WholeNumberType(16),
    metavar="N",
    help="Maximum number of processes and threads of each container.  [default: the limit of the host]",
)
@click.option(
    "--bandwidth",
    type=WholeNumberType(1, unit="Mbit/s"),
    metavar="MBIT",
    help="Maximum rate of each guest in Mbit/s, in each direction.  [default: no limit]",
)
@click.option(
    "--image",
    envvar="VIRTCLOUD_IMAGE",
    help="The image of the guests.  [default: VIRTCLOUD_IMAGE; required for guests]",
)
@click.option(
    "--guest-prefix", default="g", show_default=True, help="Prefix of the guests' names, followed by a number."
)
@click.option(
    "--network",
    metavar="SUBNET",
    help="Guests get the addresses of this subnet in order; 10.0.0.50/24 begins with 10.0.0.50.  [default: SBF "
    "assigns free addresses]",
)
@click.option(
    "--subnet",
    "subnets",
    multiple=True,
    metavar="SUBNET",
    help="Subnet from which SBF assigns addresses to the guests, and to guests that join later. Repeat the option for "
    "IPv4 and IPv6. 'none': guests without addresses.  [default: 10.0.0.0/24 and an IPv6 subnet of the cluster]",
)
@click.option(
    "--spec",
    "file",
    type=click.File(encoding="utf-8-sig", errors="surrogateescape"),
    help="File with the spec as YAML or JSON, instead of --host and the options about guests ('-': stdin).",
)
@click.option(
    "--owner", help="The cluster's owner.  [default: the owner in the file of --spec, else the user of your token]"
)
@click.option("--name", help="A name for the network, unique until the cluster has ended.")
@click.option("--join", "joins", metavar="NETWORK", help="Join the network with this name or key as a member.")
@click.option(
    "--share",
    "shares_with",
    multiple=True,
    metavar="OWNER",
    help="Another owner whose clusters may join; may be repeated.",
)
@click.option(
    "--reach",
    "sites",
    multiple=True,
    metavar="SITE",
    help="A site from which members will join: reserve a VLAN ID there now; may be repeated.",
)
@click.option(
    "--vlan", type=WholeNumberType(1, 4094), help="The VLAN ID to allocate.  [default: the free ID unused for longest]"
)
@click.option(
    "--filters",
    type=click.Choice(get_args(GuestFilters)),
    help="'addresses': guests may only use the IP addresses of the spec. 'open': guests may use any MAC address, if "
    "their hosts allow open filters.  [default: any IP address, but only the guest's own MAC address]",
)
@click.option(
    "--serve",
    "serves",
    multiple=True,
    type=click.Choice(get_args(GuestService)),
    help="A service that guests offer to other guests: DHCP, or IPv6 router advertisements; may be repeated.",
)
@click.option(
    "--host-service",
    "host_services",
    multiple=True,
    type=click.Choice(get_args(HostService)),
    help="A service that hosts offer to their guests: DHCP with the addresses of the spec, DNS with the names of the "
    "network's guests, or metadata: each guest's seed, by HTTP. dns and metadata need dhcp. May be repeated.",
)
@click.option(
    "--service",
    "services",
    multiple=True,
    type=click.Choice(get_args(ClusterService)),
    help="A service of a gateway in the network: nfs, which exports folders of the owner by NFSv4.2; may be repeated.",
)
@click.option(
    "--vpn",
    is_flag=True,
    help="Connect the cluster to gateways now, for 'virtcloud access profile'.  [default: when the first profile is "
    "created]",
)
@click.option(
    "--router",
    type=click.Choice(get_args(RouterKind)),
    help="Give guests a default route: to a gateway ('gateway'), or to your own computer ('device', see 'virtcloud "
    "access router').  [default: none]",
)
@click.option(
    "--outside",
    multiple=True,
    metavar="NAME",
    help="A destination, defined by the sites' administrators, that guests may reach; a gateway is then the "
    "network's router. May be repeated.",
)
@click.option("--user", metavar="USER", help="The login user in the guests.  [default: the owner]")
@click.option(
    "--ssh-key",
    "ssh_keys",
    type=click.File(encoding="utf-8-sig", errors="replace"),
    multiple=True,
    help="File with public SSH keys that guests accept, in addition to the owner's keys ('virtcloud key list'); may be "
    "repeated.",
)
@click.option(
    "--user-data",
    type=click.File(encoding="utf-8-sig", errors="surrogateescape"),
    help="File with a cloud-config for each guest ('-': stdin).",
)
@click.option(
    "--lease", type=DurationType(MAX_LEASE_S), help="Time until the cluster ends, unless extended.  [default: 4h]"
)
@click.option(
    "--deadline", type=DurationType(MAX_DEADLINE_S), help="Maximum time until the cluster is active.  [default: 2m]"
)
@click.option(
    "--attempt",
    type=WholeNumberType(0),
    help="Attempt number of a caller that retries. SBF refuses a number lower than the latest number for KEY.",
)
@click.option("--no-wait", is_flag=True, help="Return when SBF has accepted the cluster, before it is active.")
@click.option("--dry-run", is_flag=True, help="Show the changes without making them; claim no VLAN ID.")
@printing.json_option
@click.pass_context
def create(  # noqa: PLR0913 - click passes each option by its name
    context: click.Context,
    /,
    key: str,
    *,
    attempt: int | None,
    no_wait: bool,
    dry_run: bool,
    as_json: bool,
    **options: object,
) -> None:
    """Create the cluster KEY and wait until it is active. Idempotent.

    With --join, the cluster becomes a member of a running network. The network's other clusters are not interrupted.

    Example: virtcloud cluster create demo --host brno-h1 --host praha-h1 --image busybox --lease 4h

    Example: virtcloud cluster create demo --guests 12 --sites brno,praha --image busybox

    Example: virtcloud cluster create more --join demo --host h2 --image busybox --guest-prefix m
    """
    client = open_client(context)
    described = ClusterOptions(**options, about_guests=_list_guest_options(context))  # type: ignore[arg-type]
    spec = build_spec(described, lambda: client.sbf.whoami().name)
    if dry_run:
        preview = client.preview(key, spec, attempt=attempt)
        printing.print_json(preview) if as_json else differences.print_cluster_dry_run(preview)
        return
    created = _create(client, key, spec, attempt)
    seconds = (
        None if no_wait else wait_with_progress(context, created, "continues to be configured", ClusterState.ACTIVE)
    )
    if as_json:
        printing.print_json(created.view)
    else:
        click.echo(_describe_created(created, seconds))
    if warning := describe_missing_addresses(spec, created.view):
        click.echo(f"virtcloud: {warning}", err=True)
    _warn_of_unreachable_sites(client, created.view)


def _list_guest_options(context: click.Context) -> tuple[str, ...]:
    return tuple(
        option.opts[0]
        for option in context.command.params
        if option.name in GUEST_OPTIONS and context.get_parameter_source(option.name) is ParameterSource.COMMANDLINE
    )


def _describe_created(created: Cluster, seconds: float | None) -> str:
    """``seconds`` is the time until the cluster was active, or None if the command did not wait."""
    if seconds is None:
        return f"cluster {created.key} is {created.state}; wait for it: virtcloud cluster wait {created.key}"
    return (
        f"cluster {created.key} is active after {seconds:.1f} s: {printing.format_vlans(created.view)}; "
        f"lease ends {format_lease_end(created.view)}"
    )


def _create(client: Client, key: str, spec: ClusterSpec, attempt: int | None) -> Cluster:
    """If a guest's name or address is in use, the error names the options to change."""
    try:
        return client.create(key, spec, attempt=attempt)
    except GuestTaken as error:
        raise GuestTaken(f"{error}. {RENAME_GUESTS}") from error


def _warn_of_unreachable_sites(client: Client, view: ClusterView) -> None:
    """Warn of the sites that `find_unreachable_sites` finds, if other clusters may join the network.

    If the sites cannot be read, print a warning about this error: the cluster was created.
    """
    if view.network or not (view.spec.name or view.spec.shares_with):
        return
    try:
        lines = list(find_unreachable_sites(view, client.sbf.sites()))
    except VirtcloudError as error:
        unchecked = f"cannot check from which sites clusters can join the network of cluster {view.key}: {error}"
        lines = [f"{unchecked}; later, 'virtcloud site list' shows the free VLAN IDs of each site"]
    for line in lines:
        click.echo(f"virtcloud: {line}", err=True)
