"""``virtcloud job``: show the cluster of a batch job, and the elements that have not confirmed it."""

import os
import re
from collections.abc import Mapping, Sequence

import click

from virtcloud.cli import differences, printing
from virtcloud.cli.options import DurationType, open_client
from virtcloud.cli.progress import format_progress, wait_with_progress
from virtcloud.client.api import Client, Cluster
from virtcloud.client.sbf import SbfClient
from virtcloud.model.cluster import ENDED_STATES, ClusterState
from virtcloud.model.document import Document
from virtcloud.model.errors import BadInput, NotFound
from virtcloud.model.values import ClusterKey
from virtcloud.model.views import ClusterView, PlacementProgress

JOB_ID = re.compile("[0-9]+([.][a-z0-9._-]+)?")
JOB_VARIABLES = ("VCLUSTER_ID", "PBS_JOBID")
"""Environment variables of a job: the key of the job's active cluster, and the job's ID."""


class JobSummary(Document):
    """The cluster of a job, the elements that have not confirmed it, and the visible clusters of its network."""

    job: ClusterKey
    missing: tuple[str, ...]
    cluster: ClusterView
    network: tuple[ClusterView, ...]


@click.command()
@click.argument("job_id", metavar="[ID]", required=False)
@click.option("--wait", is_flag=True, help="Wait until the cluster is active.")
@click.option("--timeout", type=DurationType(), help="Maximum time to wait.  [default: no limit]")
@printing.json_option
@click.pass_context
def job(context: click.Context, /, job_id: str | None, *, wait: bool, timeout: float | None, as_json: bool) -> None:
    """Show the cluster of the job ID: its network, its guests, and the elements that have not confirmed it.

    Without ID, show the cluster of the job in which the command runs. Exit code 2 if the job has no cluster; with
    --wait, 1 if the cluster does not become active.

    Example: virtcloud job 12.pbssrv
    """
    client = open_client(context)
    found = _find_cluster(client, parse_job_id(job_id, os.environ))
    if wait:
        wait_with_progress(context, found, "continues to be configured", ClusterState.ACTIVE, timeout)
    summary = _summarize(client.sbf, found.view)
    printing.print_json(summary) if as_json else _print_summary(summary)


def _find_cluster(client: Client, given: str) -> Cluster:
    name = complete_job_id(given, client.sbf.clusters() if given.isdecimal() else [])
    try:
        return client.get(name)
    except NotFound as error:
        raise job_not_found(name) from error


def _summarize(sbf: SbfClient, view: ClusterView) -> JobSummary:
    network = () if view.state in ENDED_STATES else tuple(sbf.clusters(network=view.network or view.key))
    return JobSummary(job=view.key, missing=list_unconfirmed(view), cluster=view, network=network)


def _print_summary(found: JobSummary) -> None:
    view = found.cluster
    reason = f": {view.reason}" if view.reason else ""
    click.echo(f"the cluster of job {found.job} ({view.spec.owner}, attempt {view.attempt}) is {view.state}{reason}")
    if view.state not in ENDED_STATES:
        _print_network(view)
    for line in found.missing:
        click.echo(f"missing: {line}")
    click.echo()
    guests = [(one.name, one.host, " ".join(one.addresses), one.image) for one in view.spec.guests]
    printing.print_table(
        ("guest", "host", "addresses", "image"), guests, f"no guests, on {', '.join(view.spec.all_hosts)}"
    )
    others = [one for one in found.network if one.key != view.key]
    if others:
        click.echo()
        printing.print_table(("also in this network", "owner", "state", "guests"), [_row(one) for one in others], "")


def _print_network(view: ClusterView) -> None:
    name = f"{view.spec.name}: " if view.spec.name else ""
    over = f", joined by {differences.format_transport_service(view.joined)}" if view.joined else ""
    click.echo(f"network: {name}{printing.format_vlans(view)}{over}")
    click.echo(f"lease ends {printing.format_time(view.lease_ends)}")


def _row(view: ClusterView) -> tuple[object, ...]:
    guests = ", ".join(f"{one.name} {' '.join(one.addresses)}".strip() for one in view.spec.guests)
    return (view.key, view.spec.owner, view.state, guests)


def parse_job_id(given: str | None, environment: Mapping[str, str]) -> str:
    """Return ``given``, or else the job ID of the environment, in lower case. Raise BadInput if neither is set."""
    found = given or next((environment[one] for one in JOB_VARIABLES if environment.get(one)), None)
    if found is None:
        names = " nor ".join(JOB_VARIABLES)
        raise BadInput(
            f"expected the ID of a job, or to run within a job (neither {names} is set); 'qstat' lists your jobs"
        )
    if "[" in found:
        raise BadInput(f"job {found} is part of an array: such jobs have no clusters; submit one job for each cluster")
    if not JOB_ID.fullmatch(found.lower()):
        raise BadInput(f"expected the ID of a job, such as 12.pbssrv, got {found!r}; 'qstat' lists your jobs")
    return found.lower()


def complete_job_id(job: str, clusters: Sequence[ClusterView]) -> str:
    """Return the full ID of a job given by its number. Raise BadInput if several servers have such a job."""
    if not re.fullmatch("[0-9]+", job):
        return job
    found = sorted({one.key for one in clusters if one.key.startswith(f"{job}.")})
    if len(found) > 1:
        raise BadInput(f"job {job}: expected one, got {', '.join(found)}; use the full ID")
    return found[0] if found else job


def job_not_found(job: str) -> NotFound:
    """Return the error for a job without a cluster, with the possible reasons."""
    ended = "has ended (then use its full ID), " if job.isdecimal() else ""
    return NotFound(
        f"job {job} has no cluster: it requested none (-l vcluster=…), has not started yet, {ended}or is another "
        f"user's; see 'qstat -f {job}'"
    )


def list_unconfirmed(view: ClusterView) -> tuple[str, ...]:
    """Return a sentence for each element that has not confirmed, or that reported an error."""
    late = [
        part
        for part in view.placements
        if part.progress in {PlacementProgress.ADDING, PlacementProgress.REMOVING} or part.trouble
    ]
    at = "" if view.state not in ENDED_STATES else "at its end "
    return tuple(f"{at}{part.kind} {part.element} at {part.site}: {format_progress(part, view)}" for part in late)
