"""``virtcloud quota``: the limits and the usage of each user."""

import sys

import click

from virtcloud.cli import printing
from virtcloud.cli.groups import SummaryGroup
from virtcloud.cli.options import DurationType, SizeType, WholeNumberType, open_client
from virtcloud.jobs.request_values import size_between
from virtcloud.model.access import QuotaView
from virtcloud.model.durations import MAX_LEASE_LIMIT_S, format_duration

QUOTA_COLUMNS = ("user", "clusters", "networks", "guests", "CPUs", "memory", "max. sites", "max. lease", "images")
"""The columns of a table of quotas.

The columns from ``clusters`` to ``memory`` and the column ``images`` show the user's usage and limit, such as
``2 of 4``, or only the usage if the user has no limit. The columns ``max. sites`` and ``max. lease`` show only the
limit.
"""
LIMIT = SizeType(size_between(0, sys.maxsize, "0, or a size of at least 1mb, such as 64gb"), "b")


@click.group(cls=SummaryGroup)
def quota() -> None:
    """Show and set the limits of each user, such as the numbers of clusters, guests and CPUs.

    Example: virtcloud quota set alice --clusters 5
    """


@quota.command("show")
@click.argument("user", required=False)
@printing.json_option
@click.pass_context
def show_(context: click.Context, user: str | None, as_json: bool) -> None:
    """Show the quota of USER. Without USER, show the quota of every user for whom limits were set.

    Example: virtcloud quota show alice
    """
    sbf = open_client(context).sbf
    if user is not None:
        _print_quota(sbf.quota(user), as_json=as_json)
        return
    pages = sbf.quota_pages()
    printing.print_pages(QUOTA_COLUMNS, pages, _quota_row, "no user has individual limits", as_json=as_json)


@quota.command("set")
@click.argument("user")
@click.option("--clusters", type=WholeNumberType(0, 1_000_000), help="Clusters at the same time.")
@click.option("--sites", type=WholeNumberType(1, 1_000_000), help="Sites in one cluster.")
@click.option("--networks", type=WholeNumberType(0), help="Networks at the same time.")
@click.option("--guests", type=WholeNumberType(0), help="Guests at the same time.")
@click.option("--cpus", type=WholeNumberType(0), help="CPUs of all guests.")
@click.option("--memory", type=LIMIT, help="Memory of all guests, such as 64gb. A number without a unit is in bytes.")
@click.option(
    "--images",
    type=LIMIT,
    help="Size of all images that SBF stores for the user, such as 100gb. A number without a unit is in bytes.",
)
@click.option(
    "--lease", type=DurationType(MAX_LEASE_LIMIT_S), help="Maximum duration of a cluster, including all extensions."
)
@printing.json_option
@click.pass_context
def set_(  # noqa: PLR0913 - click passes each option by its name
    context: click.Context,
    /,
    user: str,
    *,
    clusters: int | None,
    sites: int | None,
    networks: int | None,
    guests: int | None,
    cpus: int | None,
    memory: int | None,
    images: int | None,
    lease: float | None,
    as_json: bool,
) -> None:
    """Set the limits of USER.

    Each limit whose option is missing is reset to SBF's default. Existing clusters are not changed.

    Example: virtcloud quota set alice --clusters 5 --lease 7d
    """
    view = open_client(context).sbf.put_quota(
        user, clusters, sites, lease, networks=networks, guests=guests, cpus=cpus, memory_mb=memory, images_mb=images
    )
    _print_quota(view, as_json=as_json)


def _print_quota(view: QuotaView, *, as_json: bool) -> None:
    printing.print_json(view) if as_json else printing.print_table(QUOTA_COLUMNS, [_quota_row(view)], "")


def _quota_row(view: QuotaView) -> tuple[object, ...]:
    limits = view.limits
    lease = "no limit" if limits.lease_s is None else format_duration(limits.lease_s)
    return (
        view.user,
        _format_usage(view.clusters, limits.clusters),
        _format_usage(view.networks, limits.networks),
        _format_usage(view.guests, limits.guests),
        _format_usage(view.cpus, limits.cpus),
        f"{_format_usage(view.memory_mb, limits.memory_mb)} MiB",
        "no limit" if limits.sites is None else limits.sites,
        lease,
        f"{_format_usage(view.images_mb, limits.images_mb)} MiB",
    )


def _format_usage(used: int, limit: int | None) -> str:
    return str(used) if limit is None else f"{used} of {limit}"
