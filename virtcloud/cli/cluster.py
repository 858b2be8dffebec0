"""``virtcloud cluster``: create, list, show, extend, share and delete clusters, and wait for them."""

import os
from datetime import datetime
from typing import get_args

import click

from virtcloud.cli import differences, printing
from virtcloud.cli.cluster_options import ClusterOptions, build_spec, find_unreachable_sites
from virtcloud.cli.cluster_ssh import (
    SshCall,
    build_ssh_arguments,
    choose_guest,
    proxy_arguments,
    write_known_hosts,
)
from virtcloud.cli.cluster_view import CLUSTER_COLUMNS, cluster_row, describe_remains, format_lease_end, print_cluster
from virtcloud.cli.confirmation import require_confirmation
from virtcloud.cli.groups import SummaryGroup
from virtcloud.cli.options import DurationType, open_client
from virtcloud.cli.progress import wait_with_progress
from virtcloud.client.api import Client, Cluster
from virtcloud.model.cluster import ClusterSpec, ClusterState, GuestFilters, GuestService
from virtcloud.model.errors import BadInput, GuestTaken
from virtcloud.model.known_hosts import render_known_hosts
from virtcloud.model.views import ClusterView

RENAME_GUESTS = (
    "Guests of one network need different names and addresses. Set them with --guest-prefix and --network, for "
    "example --guest-prefix m --network 10.0.0.50/24"
)


@click.group(cls=SummaryGroup)
def cluster() -> None:
    """Create, show and delete virtual clusters.

    Example: virtcloud cluster create demo --host brno-h1 --host praha-h1 --image busybox
    """


@cluster.command()
@click.argument("key")
@click.option("--host", "hosts", multiple=True, metavar="HOST", help="A host of the cluster; may be repeated.")
@click.option(
    "--guests-per-host", type=click.IntRange(0, 1000), default=1, show_default=True, help="Guests on each host."
)
@click.option(
    "--guests",
    "guest_count",
    type=click.IntRange(1, 4096),
    metavar="N",
    help="Number of guests for which SBF chooses the hosts, by free capacity.",
)
@click.option(
    "--sites",
    "spread_sites",
    multiple=True,
    metavar="SITE[,SITE]...",
    help="With --guests: the sites whose hosts SBF may choose.  [default: all sites]",
)
@click.option("--cpus", type=click.IntRange(1, 1024), help="Virtual processors of each guest.  [default: 1]")
@click.option("--memory", type=click.IntRange(16), metavar="MIB", help="Memory of each guest in MiB.  [default: 256]")
@click.option(
    "--image", envvar="VIRTCLOUD_IMAGE", help="The image of the guests.  [default: VIRTCLOUD_IMAGE; else required]"
)
@click.option(
    "--guest-prefix", default="g", show_default=True, help="Prefix of the guests' names, followed by a number."
)
@click.option(
    "--network",
    metavar="SUBNET",
    help="Guests get the addresses of this network in order; 10.0.0.50/24 begins with 10.0.0.50.  [default: SBF "
    "assigns free addresses]",
)
@click.option(
    "--subnet",
    "subnets",
    multiple=True,
    metavar="SUBNET",
    help="Subnet from which SBF assigns addresses to the guests, and to guests that join later. Twice for IPv4 and "
    "IPv6; 'none' for guests without addresses.  [default: 10.0.0.0/24 and an IPv6 subnet of the cluster]",
)
@click.option(
    "--spec", "file", type=click.File(), help="File with the spec as YAML or JSON, instead of --host ('-': stdin)."
)
@click.option("--owner", help="The cluster's owner.  [default: the user of your token]")
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
    "--vlan", type=click.IntRange(1, 4094), help="The VLAN ID to allocate.  [default: the free ID unused for longest]"
)
@click.option(
    "--filters",
    type=click.Choice(get_args(GuestFilters)),
    help="'addresses': guests may only use the IP addresses of the spec. 'open': guests may use any MAC address, if "
    "their hosts allow open filters.  [default: any IP address, no foreign MAC address]",
)
@click.option(
    "--serve",
    "serves",
    multiple=True,
    type=click.Choice(get_args(GuestService)),
    help="A service that guests offer to other guests: DHCP, or IPv6 router advertisements; may be repeated.",
)
@click.option("--user", metavar="USER", help="The user that the guests create.  [default: the owner]")
@click.option(
    "--ssh-key",
    "ssh_keys",
    type=click.File(errors="replace"),
    multiple=True,
    help="File with public SSH keys that may log in, besides the owner's keys ('virtcloud key list'); may be repeated.",
)
@click.option(
    "--user-data",
    type=click.File(errors="surrogateescape"),
    help="File with a cloud-config for each guest ('-': stdin).",
)
@click.option("--lease", type=DurationType(), help="Time until the cluster ends, unless extended.  [default: 4h]")
@click.option("--deadline", type=DurationType(), help="Maximum time until the cluster is active.  [default: 2m]")
@click.option(
    "--attempt",
    type=click.IntRange(0),
    help="Attempt number of a caller that retries. SBF refuses a number lower than the latest.",
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
    spec = build_spec(ClusterOptions(**options), lambda: client.sbf.whoami().name)  # type: ignore[arg-type]
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
    elif seconds is None:
        click.echo(f"cluster {key} is {created.state}; wait for it: virtcloud cluster wait {key}")
    else:
        click.echo(
            f"cluster {key} is active after {seconds:.1f} s: {printing.format_vlans(created.view)}; "
            f"lease ends {format_lease_end(created.view)}"
        )
    _warn_of_unreachable_sites(client, created.view)


def _create(client: Client, key: str, spec: ClusterSpec, attempt: int | None) -> Cluster:
    """Create a cluster. If a guest's name or address is in use, the error names the options to change."""
    try:
        return client.create(key, spec, attempt=attempt)
    except GuestTaken as error:
        raise GuestTaken(f"{error}. {RENAME_GUESTS}") from error


def _warn_of_unreachable_sites(client: Client, view: ClusterView) -> None:
    """If other clusters may join the network, warn of the sites from which they cannot join."""
    if view.network or not (view.spec.name or view.spec.shares_with):
        return
    for line in find_unreachable_sites(view, client.sbf.sites()):
        click.echo(f"virtcloud: {line}", err=True)


@cluster.command("list")
@click.option("--owner", help="Only clusters of this owner.")
@click.option("--ended", is_flag=True, help="List ended clusters too: the newest clusters of all states.")
@click.option(
    "--limit",
    type=click.IntRange(1, 1000),
    default=100,
    show_default=True,
    help="With --ended: the number of clusters.",
)
@click.option("--before", metavar="ID", help="With --ended: only clusters older than the cluster with this ID.")
@printing.json_option
@click.pass_context
def list_(  # noqa: PLR0913 - click passes each option by its name
    context: click.Context, /, *, owner: str | None, ended: bool, limit: int, before: str | None, as_json: bool
) -> None:
    """List clusters.

    Example: virtcloud cluster list --owner eva
    """
    views = [cluster.view for cluster in open_client(context).list(owner, ended=ended, limit=limit, before=before)]
    if ended and len(views) == limit:
        click.echo(f"for older clusters: --before {views[0].id}", err=True)
    printing.print_list(CLUSTER_COLUMNS, views, cluster_row, "no clusters", as_json=as_json)


@cluster.command("show")
@click.argument("key")
@printing.json_option
@click.pass_context
def show_(context: click.Context, key: str, as_json: bool) -> None:
    """Show the cluster KEY: its VLAN IDs, its guests, and the progress of each element.

    Example: virtcloud cluster show demo
    """
    view = open_client(context).get(key).view
    printing.print_json(view) if as_json else print_cluster(view)


@cluster.command()
@click.argument("key")
@click.option(
    "--for",
    "goal",
    type=click.Choice(["active", "gone"]),
    default="active",
    show_default=True,
    help="The state to wait for.",
)
@click.option("--timeout", type=DurationType(), help="Maximum time to wait.  [default: no limit]")
@printing.json_option
@click.pass_context
def wait(context: click.Context, key: str, goal: str, timeout: float | None, as_json: bool) -> None:
    """Wait until the cluster KEY is active. With --for gone, wait until the cluster is released.

    Example: virtcloud cluster wait demo --for gone --timeout 2m
    """
    cluster = open_client(context).get(key)
    seconds = wait_with_progress(
        context, cluster, "continues", ClusterState.ACTIVE if goal == "active" else ClusterState.RELEASED, timeout
    )
    printing.print_json(cluster.view) if as_json else click.echo(
        f"cluster {key} is {cluster.state} after {seconds:.1f} s"
    )


@cluster.command()
@click.argument("key")
@click.option("--timeout", type=DurationType(), help="Maximum time to watch.  [default: until the cluster ends]")
@printing.json_option
@click.pass_context
def watch(context: click.Context, key: str, timeout: float | None, as_json: bool) -> None:
    """Print each change of the cluster KEY, until the cluster has ended or Ctrl-C: its state, lease and elements.

    With --json, print one JSON document per line.

    Example: virtcloud cluster watch demo
    """
    for event in open_client(context).get(key).events(timeout):
        click.echo(event.model_dump_json() if as_json else f"{datetime.now().astimezone():%H:%M:%S}  {event}")


@cluster.command()
@click.argument("key")
@click.argument("length", type=DurationType())
@printing.json_option
@click.pass_context
def extend(context: click.Context, key: str, length: float, as_json: bool) -> None:
    """Extend the lease of the cluster KEY to at least LENGTH from now. The command never shortens the lease.

    Example: virtcloud cluster extend demo 4h
    """
    cluster = open_client(context).get(key)
    before = cluster.view.lease_ends
    view = cluster.extend(length).view
    if as_json:
        printing.print_json(view)
    elif view.lease_ends == before:
        click.echo(
            f"cluster {key} is {view.state}; its lease ends {format_lease_end(view)}, which is later than requested. "
            "A lease is never shortened. To end the cluster: virtcloud cluster delete"
        )
    else:
        click.echo(f"cluster {key} is {view.state}; lease ends {format_lease_end(view)}")


@cluster.command("known-hosts")
@click.argument("key")
@printing.json_option
@click.pass_context
def known_hosts(context: click.Context, key: str, as_json: bool) -> None:
    """Print the host keys of the guests in the network of the cluster KEY, as lines for a file known_hosts.

    With these lines, ssh asks no question about a guest's host key, and refuses any other key.

    Example: virtcloud cluster known-hosts demo >> ~/.ssh/known_hosts
    """
    found = open_client(context).sbf.peers(key)
    if as_json:
        printing.print_json(found)
        return
    click.echo(render_known_hosts(found.peers), nl=False)
    if unknown := [peer.name for peer in found.peers if peer.host_key is None]:
        click.echo(
            f"the host keys of {', '.join(unknown)} are not known: their cluster is older than this SBF", err=True
        )


@cluster.command()
@click.argument("key")
@click.argument("guest", required=False)
@click.argument("command", nargs=-1, metavar="[-- COMMAND...]")
@click.option("--user", "-l", help="The user in the guest.  [default: the user of the cluster's guests]")
@click.option("--identity", "-i", metavar="FILE", help="File with your private key.  [default: ssh's default]")
@click.option(
    "--option", "-o", "options", multiple=True, help="An option for ssh, as in ssh_config(5); may be repeated."
)
@click.pass_context
def ssh(  # noqa: PLR0913 - click passes each option by its name
    context: click.Context,
    /,
    key: str,
    guest: str | None,
    *,
    command: tuple[str, ...],
    user: str | None,
    identity: str | None,
    options: tuple[str, ...],
) -> None:
    """Log in to GUEST of the cluster KEY with ssh, from anywhere. Without GUEST, log in to the first guest.

    The connection passes SBF and the agent of the guest's host. SBF knows the guest's host key, so that ssh asks no
    question. This program is replaced by ssh, whose exit code is the exit code of COMMAND. A COMMAND needs a GUEST.

    Example: virtcloud cluster ssh demo g2 -- hostname
    """
    client = open_client(context)
    view = client.get(key).view
    found = client.sbf.peers(key)
    peer = choose_guest(found, [one.name for one in view.spec.guests], guest)
    call = SshCall(user or found.user, options, identity, command)
    proxy = proxy_arguments(context.find_root().obj, peer)
    arguments = build_ssh_arguments(call, peer, proxy, write_known_hosts(found, view.id))
    client.close()
    try:
        os.execvp(arguments[0], arguments)  # noqa: S606 - no shell
    except FileNotFoundError as error:
        raise BadInput(
            "expected the program ssh on this machine, found none: apt-get install openssh-client"
        ) from error


@cluster.command()
@click.argument("key")
@click.argument("users", nargs=-1, required=True, metavar="USER...")
@printing.json_option
@click.pass_context
def share(context: click.Context, key: str, users: tuple[str, ...], as_json: bool) -> None:
    """Allow clusters of each USER to join the network of the cluster KEY, from now on. Idempotent.

    Example: virtcloud cluster share demo bob carol
    """
    _print_shares(open_client(context).get(key).share(*users).view, as_json=as_json)


@cluster.command()
@click.argument("key")
@click.argument("users", nargs=-1, required=True, metavar="USER...")
@printing.json_option
@click.pass_context
def unshare(context: click.Context, key: str, users: tuple[str, ...], as_json: bool) -> None:
    """Forbid new clusters of each USER to join the network of the cluster KEY. Existing members remain. Idempotent.

    Example: virtcloud cluster unshare demo bob
    """
    _print_shares(open_client(context).get(key).unshare(*users).view, as_json=as_json)


def _print_shares(view: ClusterView, *, as_json: bool) -> None:
    if as_json:
        printing.print_json(view)
    else:
        click.echo(f"the network of cluster {view.key} is shared with: {', '.join(view.spec.shares_with) or 'nobody'}")


@cluster.command()
@click.argument("key")
@click.option(
    "--no-wait", is_flag=True, help="Return when SBF has accepted the deletion, before the cluster is removed."
)
@click.option("--yes", is_flag=True, help="Delete members of the cluster's network without asking for confirmation.")
@printing.json_option
@click.pass_context
def delete(context: click.Context, key: str, no_wait: bool, yes: bool, as_json: bool) -> None:
    """Delete the cluster KEY and wait until every element has confirmed its removal. Idempotent.

    If the cluster's network has members, the members are deleted too. In this case you are asked for confirmation
    first.

    Example: virtcloud cluster delete demo
    """
    cluster = open_client(context).get(key)
    _confirm_members(cluster.view, yes=yes)
    deleted = cluster.delete()
    seconds = (
        None if no_wait else wait_with_progress(context, deleted, "continues to be removed", ClusterState.RELEASED)
    )
    if as_json:
        printing.print_json(deleted.view)
    else:
        click.echo(
            f"cluster {key} is {deleted.state}"
            + ("" if seconds is None else f" after {seconds:.1f} s: {describe_remains(deleted.view)}")
        )


def _confirm_members(view: ClusterView, *, yes: bool) -> None:
    """Ask for confirmation if the deletion of the cluster also deletes members.

    Raise BadInput if confirmation is needed and standard input is not a terminal. Raise Conflict if the answer is no.
    """
    if not view.members:
        return
    members = ", ".join(f"{key} of {owner}" for key, owner in view.members.items())
    click.echo(f"deleting cluster {view.key} also deletes the clusters that joined its network: {members}", err=True)
    require_confirmation("Delete them all?", yes=yes, outcome=f"cluster {view.key} was not deleted")
