"""``virtcloud cluster``: create, list, show, wait, extend, delete."""

import click

from virtcloud.cli import differences, printing
from virtcloud.cli.cluster_options import ClusterOptions, build_spec, find_unreachable_sites
from virtcloud.cli.confirmation import require_confirmation
from virtcloud.cli.groups import SummaryGroup
from virtcloud.cli.options import DurationType, json_option, open_client
from virtcloud.cli.progress import wait_with_progress
from virtcloud.client.api import Client, Cluster
from virtcloud.model.cluster import ClusterSpec, ClusterState
from virtcloud.model.errors import GuestTaken
from virtcloud.model.views import ClusterView, PlacementView

RENAME = (
    "A cluster that joins a network needs names and addresses that no other guest of the network has: "
    "--guest-prefix NAME, --network FIRST-ADDRESS/LENGTH (for example --guest-prefix m --network 10.0.0.50/24)"
)


@click.group(cls=SummaryGroup)
def cluster() -> None:
    """Create, watch and delete virtual clusters.

    Example: virtcloud cluster create demo --host brno-h1 --host praha-h1 --image busybox
    """


@cluster.command()
@click.argument("key")
@click.option("--host", "hosts", multiple=True, metavar="HOST", help="A host that takes part; may be repeated.")
@click.option(
    "--guests-per-host", type=click.IntRange(0, 1000), default=1, show_default=True, help="Guests on each host."
)
@click.option(
    "--image", envvar="VIRTCLOUD_IMAGE", help="The image of the guests.  [default: VIRTCLOUD_IMAGE; else required]"
)
@click.option("--guest-prefix", default="g", show_default=True, help="Guests are called so, with a number.")
@click.option(
    "--network",
    default="10.0.0.0/24",
    show_default=True,
    help="Guests get its addresses in order; from one on, when that is given: 10.0.0.50/24.",
)
@click.option(
    "--spec", "file", type=click.File(), help="The whole spec as YAML or JSON, instead of --host ('-': stdin)."
)
@click.option("--owner", help="Whose it is.  [default: whom SBF takes you for]")
@click.option("--name", help="A name for it, which no other cluster has until this one has ended.")
@click.option("--join", "joins", metavar="NETWORK", help="Join the network of this name or key, as a member of it.")
@click.option("--share", "shares_with", multiple=True, metavar="OWNER", help="Who else may join; may be repeated.")
@click.option(
    "--reach",
    "sites",
    multiple=True,
    metavar="SITE",
    help="A site from which others will join: reserve a VLAN ID there now; may be repeated.",
)
@click.option("--vlan", type=click.IntRange(1, 4094), help="The VLAN number to take.  [default: the longest unused]")
@click.option("--lease", type=DurationType(), help="When it ends unless extended.  [default: 4h]")
@click.option("--deadline", type=DurationType(), help="How long setting up may take.  [default: 2m]")
@click.option(
    "--attempt", type=click.IntRange(0), help="For a caller that may try again: counts up; a lower one is refused."
)
@click.option("--no-wait", is_flag=True, help="Return when SBF has taken it on, before it is active.")
@click.option("--dry-run", is_flag=True, help="Only say what would happen; nothing is claimed or changed.")
@json_option
@click.pass_context
def create(  # noqa: PLR0913 - click gives each option by its name
    context: click.Context,
    /,
    key: str,
    *,
    attempt: int | None,
    no_wait: bool,
    dry_run: bool,
    as_json: bool,
    **wishes: object,
) -> None:
    """Create the cluster KEY and wait until it is active. The same again changes nothing.

    With --join it is a member of a network that runs: its hosts come and go, and nothing flaps for the others.

    Example: virtcloud cluster create demo --host brno-h1 --host praha-h1 --image busybox --lease 4h

    Example: virtcloud cluster create more --join demo --host h2 --image busybox --guest-prefix m --network 10.0.0.50/24
    """
    spec = build_spec(ClusterOptions(**wishes), lambda: open_client(context).sbf.whoami().name)  # type: ignore[arg-type]
    if dry_run:
        preview = open_client(context).preview(key, spec, attempt=attempt)
        printing.print_json(preview) if as_json else differences.print_cluster_dry_run(preview)
        return
    made = _create(open_client(context), key, spec, attempt)
    seconds = None if no_wait else wait_with_progress(context, made, "goes on being set up", ClusterState.ACTIVE)
    if as_json:
        printing.print_json(made.view)
    elif seconds is None:
        click.echo(f"cluster {key} is {made.state}; wait for it: virtcloud cluster wait {key}")
    else:
        click.echo(
            f"cluster {key} is active after {seconds:.1f} s: {printing.format_vlans(made.view)}; "
            f"lease ends {_time(made.view)}"
        )
    _warn_of_unreached(open_client(context), made.view)


def _create(asked: Client, key: str, spec: ClusterSpec, attempt: int | None) -> Cluster:
    """Create a cluster; a name or address that another guest has becomes an error that names the options to set."""
    try:
        return asked.create(key, spec, attempt=attempt)
    except GuestTaken as error:
        raise GuestTaken(f"{error}. {RENAME}") from error


def _warn_of_unreached(asked: Client, view: ClusterView) -> None:
    """Name the sites from which nobody can join a network that is there to be joined."""
    if view.network or not (view.spec.name or view.spec.shares_with):
        return
    for line in find_unreachable_sites(view, asked.sbf.sites()):
        click.echo(f"virtcloud: {line}", err=True)


@cluster.command("list")
@click.option("--owner", help="Only those of this owner.")
@click.option("--ended", is_flag=True, help="Also those that have ended: the newest of all.")
@click.option("--limit", type=click.IntRange(1, 1000), default=100, show_default=True, help="With --ended: how many.")
@click.option("--before", metavar="ID", help="With --ended: those older than the cluster with this id.")
@json_option
@click.pass_context
def list_(  # noqa: PLR0913 - click gives each option by its name
    context: click.Context, /, *, owner: str | None, ended: bool, limit: int, before: str | None, as_json: bool
) -> None:
    """List clusters.

    Example: virtcloud cluster list --owner eva
    """
    views = [one.view for one in open_client(context).list(owner, ended=ended, limit=limit, before=before)]
    if ended and len(views) == limit:
        click.echo(f"there may be older ones: --before {views[0].id}", err=True)
    if as_json:
        printing.print_json_list(views)
        return
    columns = ("cluster", "owner", "state", "VLANs", "guests", "network", "lease ends", "reason")
    rows = [
        (
            one.key,
            one.spec.owner,
            one.state,
            printing.format_vlans(one),
            len(one.spec.guests),
            _network(one),
            _time(one),
            one.reason,
        )
        for one in views
    ]
    printing.print_table(columns, rows, "no clusters")


@cluster.command("show")
@click.argument("key")
@json_option
@click.pass_context
def show_(context: click.Context, key: str, as_json: bool) -> None:
    """Show the cluster KEY: its VLANs, its guests, and how far each element is.

    Example: virtcloud cluster show demo
    """
    view = open_client(context).get(key).view
    if as_json:
        printing.print_json(view)
        return
    name = f" ({view.spec.name})" if view.spec.name else ""
    reason = f": {view.reason}" if view.reason else ""
    click.echo(f"cluster {view.key}{name} of {view.spec.owner} is {view.state}{reason}")
    click.echo(f"attempt {view.attempt}, id {view.id}, {printing.format_vlans(view)}, lease ends {_time(view)}")
    if view.network:
        click.echo(f"it is a member of the network of cluster {view.network}")
    elif view.members:
        members = (f"{member} of {owner}" for member, owner in view.members.items())
        click.echo(f"members of its network: {', '.join(members)}")
    if view.joined:
        click.echo(f"its sites are joined by {differences.format_transport_service(view.joined)}")
    if view.quarantined:
        click.echo("its VLANs are quarantined until the elements below are clean")
    click.echo()
    guests = [
        (one.name, one.host, one.image, " ".join(one.addresses), f"{one.memory_mb} MiB", one.cpus)
        for one in view.spec.guests
    ]
    printing.print_table(("guest", "host", "image", "addresses", "memory", "cpus"), guests, "no guests")
    click.echo()
    parts = [
        (one.element, one.kind, one.site, _progress(one), printing.shorten(one.trouble)) for one in view.placements
    ]
    printing.print_table(("element", "kind", "site", "progress", "trouble"), parts, "on no element")
    for one in view.placements:
        if one.trouble != printing.shorten(one.trouble):
            named = f"{one.kind} {one.element}"
            click.echo(f"\n{'' if (one.trouble or '').startswith(named) else f'{named}: '}{one.trouble}")


def _progress(part: PlacementView) -> str:
    """Return how far an element is, and of an unreachable one when it was last heard."""
    if part.reachable:
        return part.progress
    return f"{part.progress} as of {printing.format_time(part.seen_at)}" if part.seen_at else "never heard"


@cluster.command()
@click.argument("key")
@click.option(
    "--for", "goal", type=click.Choice(["active", "gone"]), default="active", show_default=True, help="What for."
)
@click.option("--timeout", type=DurationType(), help="How long at most.  [default: as long as it takes]")
@json_option
@click.pass_context
def wait(context: click.Context, key: str, goal: str, timeout: float | None, as_json: bool) -> None:
    """Wait until the cluster KEY is active, or gone.

    Example: virtcloud cluster wait demo --for gone --timeout 2m
    """
    found = open_client(context).get(key)
    seconds = wait_with_progress(
        context, found, "goes on", ClusterState.ACTIVE if goal == "active" else ClusterState.RELEASED, timeout
    )
    printing.print_json(found.view) if as_json else click.echo(f"cluster {key} is {found.state} after {seconds:.1f} s")


@cluster.command()
@click.argument("key")
@click.argument("length", type=DurationType())
@json_option
@click.pass_context
def extend(context: click.Context, key: str, length: float, as_json: bool) -> None:
    """Let the cluster KEY last for LENGTH from now, at least; a lease is never shortened (delete it for that).

    Example: virtcloud cluster extend demo 4h
    """
    found = open_client(context).get(key)
    before = found.view.lease_ends
    view = found.extend(length).view
    if as_json:
        printing.print_json(view)
    elif view.lease_ends == before:
        click.echo(
            f"cluster {key} is {view.state}; its lease ends {_time(view)}, which is later than asked for: unchanged "
            "(a lease is never shortened; to end the cluster: virtcloud cluster delete)"
        )
    else:
        click.echo(f"cluster {key} is {view.state}; lease ends {_time(view)}")


@cluster.command()
@click.argument("key")
@click.argument("users", nargs=-1, required=True, metavar="USER...")
@json_option
@click.pass_context
def share(context: click.Context, key: str, users: tuple[str, ...], as_json: bool) -> None:
    """Allow clusters of each USER to join the network of the cluster KEY, from now on. Idempotent.

    Example: virtcloud cluster share demo bob carol
    """
    _show_shares(open_client(context).get(key).share(*users).view, as_json=as_json)


@cluster.command()
@click.argument("key")
@click.argument("users", nargs=-1, required=True, metavar="USER...")
@json_option
@click.pass_context
def unshare(context: click.Context, key: str, users: tuple[str, ...], as_json: bool) -> None:
    """Forbid new clusters of each USER to join the network of the cluster KEY; those that joined stay. Idempotent.

    Example: virtcloud cluster unshare demo bob
    """
    _show_shares(open_client(context).get(key).unshare(*users).view, as_json=as_json)


def _show_shares(view: ClusterView, *, as_json: bool) -> None:
    if as_json:
        printing.print_json(view)
    else:
        click.echo(f"the network of cluster {view.key} is shared with: {', '.join(view.spec.shares_with) or 'nobody'}")


@cluster.command()
@click.argument("key")
@click.option("--no-wait", is_flag=True, help="Return at once; it drains by itself.")
@click.option("--yes", is_flag=True, help="Do not ask before clusters that joined its network end with it.")
@json_option
@click.pass_context
def delete(context: click.Context, key: str, no_wait: bool, yes: bool, as_json: bool) -> None:
    """Delete the cluster KEY and wait until nothing of it is left anywhere. May be repeated.

    Clusters that joined its network end with it; where there are some, you are asked first.

    Example: virtcloud cluster delete demo
    """
    found = open_client(context).get(key)
    _agree_to_members(found.view, yes=yes)
    going = found.delete()
    seconds = None if no_wait else wait_with_progress(context, going, "goes on being removed", ClusterState.RELEASED)
    if as_json:
        printing.print_json(going.view)
    else:
        click.echo(
            f"cluster {key} is {going.state}"
            + ("" if seconds is None else f" after {seconds:.1f} s: {_left(going.view)}")
        )


def _agree_to_members(view: ClusterView, *, yes: bool) -> None:
    """Ask before members end with their network. Raise BadInput where nobody can be asked, Conflict for a no."""
    if not view.members:
        return
    members = ", ".join(f"{key} of {owner}" for key, owner in view.members.items())
    click.echo(f"clusters that joined the network of cluster {view.key} end with it: {members}", err=True)
    require_confirmation("Delete them all?", yes=yes, otherwise=f"cluster {view.key} was not deleted")


def _network(view: ClusterView) -> str | None:
    """Say whose network a member is in, or what a network is called."""
    return f"in {view.network}" if view.network else view.spec.name


def _left(view: ClusterView) -> str:
    if view.quarantined:
        return "its VLANs are quarantined, since an element did not confirm that it is clean (virtcloud cluster show)"
    return "nothing of it is left"


def _time(view: ClusterView) -> str:
    return view.lease_ends.astimezone().strftime("%Y-%m-%d %H:%M")
