"""``virtcloud quota``: how much a user may have."""

import click

from virtcloud.cli import show
from virtcloud.cli.asking import as_json, client
from virtcloud.cli.durations import Duration, write_duration
from virtcloud.cli.whole import Group
from virtcloud.model.access import QuotaView

COLUMNS = ("user", "clusters now", "clusters at most", "sites at most", "a cluster lasts at most")


@click.group(cls=Group)
def quota() -> None:
    """Say how much a user may have: clusters at once, sites in each, how long each may last.

    Example: virtcloud quota set alice --clusters 5
    """


@quota.command("show")
@click.argument("user", required=False)
@as_json
@click.pass_context
def show_(context: click.Context, user: str | None, as_json: bool) -> None:
    """Show the quota of USER, or of every user who has one of its own.

    Example: virtcloud quota show alice
    """
    sbf = client(context).sbf
    if user is not None:
        _tell(sbf.quota(user), as_json=as_json)
        return
    views = sbf.quotas()
    nothing = "no user has a quota of its own"
    show.json_documents(views) if as_json else show.table(COLUMNS, [_row(one) for one in views], nothing)


@quota.command("set")
@click.argument("user")
@click.option("--clusters", type=click.IntRange(0, 1_000_000), help="Clusters at once.")
@click.option("--sites", type=click.IntRange(1, 1_000_000), help="Sites in one cluster.")
@click.option("--lease", type=Duration(), help="How long a cluster may last, with all its extensions.")
@as_json
@click.pass_context
def set_(  # noqa: PLR0913 - click gives each option by its name
    context: click.Context,
    /,
    user: str,
    *,
    clusters: int | None,
    sites: int | None,
    lease: float | None,
    as_json: bool,
) -> None:
    """Set the quota of USER. What is not given is as the service's settings say; what USER has already stays.

    Example: virtcloud quota set alice --clusters 5 --lease 7d
    """
    _tell(client(context).sbf.put_quota(user, clusters, sites, lease), as_json=as_json)


def _tell(view: QuotaView, *, as_json: bool) -> None:
    show.json_document(view) if as_json else show.table(COLUMNS, [_row(view)], "")


def _row(view: QuotaView) -> tuple[object, ...]:
    limits = view.limits
    lease = "no limit" if limits.lease_s is None else write_duration(limits.lease_s)
    return (view.user, view.clusters, _limit(limits.clusters), _limit(limits.sites), lease)


def _limit(number: int | None) -> object:
    return "no limit" if number is None else number
