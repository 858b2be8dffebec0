"""``virtcloud quota``: how much a user may have."""

import click

from virtcloud.cli import show
from virtcloud.cli.asking import as_json, client
from virtcloud.cli.durations import Duration, write_duration
from virtcloud.cli.whole import Group
from virtcloud.jobs.sizes import bytes_of
from virtcloud.model.access import QuotaView

COLUMNS = ("user", "clusters", "networks", "guests", "CPUs", "memory", "sites at most", "a cluster lasts at most")
"""Of what a user has now, and may have, ``2 of 4``."""
MIB = 1 << 20


class Memory(click.ParamType):  # type: ignore[type-arg]  # older ones are not generic
    """Memory as batch systems write it (``64gb``), in MiB."""

    name = "memory"

    def convert(self, value: object, parameter: click.Parameter | None, context: click.Context | None) -> int:
        """Return MiB, rounded down; a number alone is bytes."""
        try:
            return bytes_of(str(value)) // MIB
        except ValueError:
            self.fail(f"expected a size such as 64gb or 512mb, got {value!r}", parameter, context)


@click.group(cls=Group)
def quota() -> None:
    """How much a user may have: clusters, networks, guests, CPUs and memory at once; sites and length of each cluster.

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
@click.option("--networks", type=click.IntRange(0), help="Networks at once.")
@click.option("--guests", type=click.IntRange(0), help="Guests at once.")
@click.option("--cpus", type=click.IntRange(0), help="CPUs of all guests.")
@click.option("--memory", type=Memory(), help="Memory of all guests, such as 64gb.")
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
    networks: int | None,
    guests: int | None,
    cpus: int | None,
    memory: int | None,
    lease: float | None,
    as_json: bool,
) -> None:
    """Set the quota of USER. What is not given is as the service's settings say; what USER has already stays.

    Example: virtcloud quota set alice --clusters 5 --lease 7d
    """
    made = client(context).sbf.put_quota(
        user, clusters, sites, lease, networks=networks, guests=guests, cpus=cpus, memory_mb=memory
    )
    _tell(made, as_json=as_json)


def _tell(view: QuotaView, *, as_json: bool) -> None:
    show.json_document(view) if as_json else show.table(COLUMNS, [_row(view)], "")


def _row(view: QuotaView) -> tuple[object, ...]:
    limits = view.limits
    lease = "no limit" if limits.lease_s is None else write_duration(limits.lease_s)
    return (
        view.user,
        _of(view.clusters, limits.clusters),
        _of(view.networks, limits.networks),
        _of(view.guests, limits.guests),
        _of(view.cpus, limits.cpus),
        f"{_of(view.memory_mb, limits.memory_mb)} MiB",
        "no limit" if limits.sites is None else limits.sites,
        lease,
    )


def _of(number: int, most: int | None) -> str:
    return str(number) if most is None else f"{number} of {most}"
