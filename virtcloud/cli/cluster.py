"""``virtcloud cluster``: create, list, show, extend, share and delete clusters, and wait for them."""

from contextlib import suppress
from datetime import datetime

import click

from virtcloud.cli import printing
from virtcloud.cli.cluster_cp import cp
from virtcloud.cli.cluster_create import create
from virtcloud.cli.cluster_publish import publications, publish, unpublish
from virtcloud.cli.cluster_run import run
from virtcloud.cli.cluster_ssh import known_hosts, ssh
from virtcloud.cli.cluster_traffic import print_traffic, traffic_command
from virtcloud.cli.cluster_verify import verify_command
from virtcloud.cli.cluster_view import CLUSTER_COLUMNS, cluster_row, describe_remains, format_lease_end, print_cluster
from virtcloud.cli.confirmation import require_confirmation
from virtcloud.cli.groups import SummaryGroup
from virtcloud.cli.options import DurationType, WholeNumberType, open_client
from virtcloud.cli.progress import wait_with_progress
from virtcloud.client.sbf import SbfClient
from virtcloud.model.cluster import ClusterState
from virtcloud.model.durations import MAX_LEASE_S
from virtcloud.model.errors import BadInput, NoSuchCall
from virtcloud.model.views import ClusterView

NEWEST, MAX_NEWEST = 100, 1000
"""The default limit of clusters with ``--ended``, and the highest limit of a single API call."""


@click.group(cls=SummaryGroup)
def cluster() -> None:
    """Create, show and delete virtual clusters.

    Example: virtcloud cluster create demo --host brno-h1 --host praha-h1 --image busybox
    """


cluster.add_command(cp)
cluster.add_command(create)
cluster.add_command(known_hosts)
cluster.add_command(publications)
cluster.add_command(publish)
cluster.add_command(run)
cluster.add_command(ssh)
cluster.add_command(traffic_command)
cluster.add_command(unpublish)
cluster.add_command(verify_command)


@cluster.command("list")
@click.option("--owner", help="Only clusters of this owner.")
@click.option("--ended", is_flag=True, help="Also list ended clusters; see --limit.")
@click.option(
    "--state",
    type=click.Choice([str(state) for state in ClusterState]),
    metavar="STATE",
    help="Only clusters in this state, such as active or degraded.",
)
@click.option("--site", help="Only clusters with an element at this site.")
@click.option("--element", metavar="NAME", help="Only clusters on this element.")
@click.option("--newest", is_flag=True, help="Print the newest clusters first.")
@click.option(
    "--limit",
    type=WholeNumberType(1),
    help="Maximum number of clusters.  [default: all; 100 with --ended, unless --newest, --state, --site or --element "
    "is set]",
)
@click.option(
    "--before",
    metavar="ID",
    help="Only clusters older than the cluster with this ID. Requires --ended. The only filter allowed with this "
    "option is --owner.",
)
@printing.json_option
@click.pass_context
def list_(  # noqa: PLR0913 - click passes each option by its name
    context: click.Context,
    /,
    *,
    owner: str | None,
    ended: bool,
    state: str | None,
    site: str | None,
    element: str | None,
    newest: bool,
    limit: int | None,
    before: str | None,
    as_json: bool,
) -> None:
    """List clusters in the order of their creation. The rows are printed page by page.

    With --ended, print clusters of all states. Without --newest, --state, --site and --element, --ended prints only
    the newest clusters, and the newest cluster is the last row.

    Example: virtcloud cluster list --owner eva --site brno
    """
    sbf = open_client(context).sbf
    if ended and not (newest or state or site or element):
        _print_newest(sbf, owner, limit or NEWEST, before, as_json=as_json)
        return
    if before is not None:
        raise BadInput(
            "--before: expected --ended, and none of --newest, --state, --site and --element, got other options: "
            "add --ended and omit these four options, or omit --before"
        )
    pages = sbf.cluster_pages(owner, ended=ended, newest=newest, state=state, site=site, element=element)
    printing.print_pages(CLUSTER_COLUMNS, pages, cluster_row, "no clusters", as_json=as_json, limit=limit)


def _print_newest(sbf: SbfClient, owner: str | None, limit: int, before: str | None, *, as_json: bool) -> None:
    if limit > MAX_NEWEST:
        raise BadInput(f"--limit: expected at most {MAX_NEWEST} with --ended, got {limit}: add --newest to read pages")
    views = sbf.clusters(owner, ended=True, limit=limit, before=before)
    if len(views) == limit:
        click.echo(f"for older clusters: --before {views[0].id}", err=True)
    printing.print_list(CLUSTER_COLUMNS, views, cluster_row, "no clusters", as_json=as_json)


@cluster.command("show")
@click.argument("key")
@printing.json_option
@click.pass_context
def show_(context: click.Context, key: str, as_json: bool) -> None:
    """Show the cluster KEY: its VLAN IDs, its guests, the progress of each element, and the traffic of its hosts.

    Example: virtcloud cluster show demo
    """
    found = open_client(context).get(key)
    if as_json:
        printing.print_json(found.view)
        return
    print_cluster(found.view)
    with suppress(NoSuchCall):  # an earlier version of SBF lacks this API call
        print_traffic(found.traffic())


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
    """Print each change of the cluster KEY until the cluster has ended, or until Ctrl-C.

    The command prints changes of the state, of the lease, and of the progress of each element.

    With --json, print one JSON document per line.

    Example: virtcloud cluster watch demo
    """
    for event in open_client(context).get(key).events(timeout):
        click.echo(event.model_dump_json() if as_json else f"{datetime.now().astimezone():%H:%M:%S}  {event}")


@cluster.command()
@click.argument("key")
@click.argument("length", type=DurationType(MAX_LEASE_S))
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
    """Forbid new clusters of each USER to join the network of the cluster KEY. Idempotent.

    Clusters that have already joined the network remain.

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
@click.option(
    "--yes",
    is_flag=True,
    help="Also delete the clusters that joined the cluster's network, without asking for confirmation.",
)
@printing.json_option
@click.pass_context
def delete(context: click.Context, key: str, no_wait: bool, yes: bool, as_json: bool) -> None:
    """Delete the cluster KEY and wait until every element has confirmed the cluster's removal. Idempotent.

    If other clusters have joined the cluster's network, these clusters are deleted too. In this case you are asked
    for confirmation first.

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
    if not view.members:
        return
    members = ", ".join(f"{key} of {owner}" for key, owner in view.members.items())
    click.echo(f"deleting cluster {view.key} also deletes the clusters that joined its network: {members}", err=True)
    require_confirmation("Delete them all?", yes=yes, outcome=f"cluster {view.key} was not deleted")
