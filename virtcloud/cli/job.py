"""``virtcloud job``: the cluster of a job, as its user wants to see it."""

import os

import click

from virtcloud.cli import differences, show
from virtcloud.cli.asking import as_json, client
from virtcloud.cli.durations import Duration
from virtcloud.cli.jobs_cluster import JobView, job_of, missing, no_cluster, whole_id
from virtcloud.cli.watching import watch
from virtcloud.client import SbfClient
from virtcloud.cluster import Client, Cluster
from virtcloud.model.cluster import ENDED, State
from virtcloud.model.errors import NotFound
from virtcloud.model.views import ClusterView


@click.command()
@click.argument("job_id", metavar="[ID]", required=False)
@click.option("--wait", is_flag=True, help="Wait until it is active.")
@click.option("--timeout", type=Duration(), help="How long at most.  [default: as long as it takes]")
@as_json
@click.pass_context
def job(context: click.Context, /, job_id: str | None, *, wait: bool, timeout: float | None, as_json: bool) -> None:
    """Show the cluster of the job ID: its network, its guests, and what is missing. Within a job: of that job.

    Exit code 2 when the job has no cluster, 1 when it is waited for and will not be active.

    Example: virtcloud job 12.pbssrv
    """
    asked = client(context)
    found = _find(asked, job_of(job_id, os.environ))
    if wait:
        watch(context, found, "goes on being set up", State.ACTIVE, timeout)
    made = _view(asked.sbf, found.view)
    show.json_document(made) if as_json else _tell(made)


def _find(asked: Client, given: str) -> Cluster:
    name = whole_id(given, asked.sbf.clusters() if given.isdecimal() else [])
    try:
        return asked.get(name)
    except NotFound as error:
        raise no_cluster(name) from error


def _view(sbf: SbfClient, view: ClusterView) -> JobView:
    network = () if view.state in ENDED else tuple(sbf.clusters(network=view.network or view.key))
    return JobView(job=view.key, missing=missing(view), cluster=view, network=network)


def _tell(found: JobView) -> None:
    view = found.cluster
    reason = f": {view.reason}" if view.reason else ""
    click.echo(f"the cluster of job {found.job} ({view.spec.owner}, attempt {view.attempt}) is {view.state}{reason}")
    if view.state not in ENDED:
        _tell_network(view)
    for line in found.missing:
        click.echo(f"missing: {line}")
    click.echo()
    guests = [(one.name, one.host, " ".join(one.addresses), one.image) for one in view.spec.guests]
    show.table(("guest", "host", "addresses", "image"), guests, f"no guests, on {', '.join(view.spec.all_hosts)}")
    others = [one for one in found.network if one.key != view.key]
    if others:
        click.echo()
        show.table(("also in this network", "owner", "state", "guests"), [_row(one) for one in others], "")


def _tell_network(view: ClusterView) -> None:
    name = f"{view.spec.name}: " if view.spec.name else ""
    over = f", joined by {differences.joined(view.joined)}" if view.joined else ""
    click.echo(f"network: {name}{show.vlans(view)}{over}")
    click.echo(f"lease ends {show.moment(view.lease_ends)}")


def _row(view: ClusterView) -> tuple[object, ...]:
    guests = ", ".join(f"{one.name} {' '.join(one.addresses)}".strip() for one in view.spec.guests)
    return (view.key, view.spec.owner, view.state, guests)
