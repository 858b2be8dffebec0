"""``virtcloud job``: show the cluster of a batch job, and the elements that have not confirmed the cluster."""

import os
import re
from collections.abc import Mapping, Sequence

import click

from virtcloud.cli import differences, printing
from virtcloud.cli.options import DurationType, open_client
from virtcloud.cli.progress import format_progress, wait_with_progress
from virtcloud.client.api import Client
from virtcloud.client.cluster import Cluster
from virtcloud.client.sbf import SbfClient
from virtcloud.model.cluster import ENDED_STATES, ClusterState
from virtcloud.model.document import Document
from virtcloud.model.errors import BadInput, NotFound
from virtcloud.model.values import ClusterKey
from virtcloud.model.views import ClusterView, PlacementProgress

JOB_ID = re.compile("[0-9]+([.][a-z0-9._-]+)?")
JOB_VARIABLES = ("PBS_JOBID", "VCLUSTER_ID")
"""Environment variables of a job: the job's ID, and the key of the job's active cluster. The ID has priority.

The key may belong to another job: ``qsub -V`` copies the variables of the job that calls it.
"""


class JobSummary(Document):
    """The cluster of a job, the sentences of `list_unconfirmed`, and all clusters in the network.

    ``network`` is empty if the cluster has ended.
    """

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
    """Show the cluster of job ID: its network, its guests, and the elements that have not confirmed the cluster.

    Without ID, show the cluster of the job in which the command runs. The exit code is 2 if the job has no cluster.
    With --wait, the exit code is 1 if the cluster does not become active.

    Example: virtcloud job 12.pbssrv
    """
    client = open_client(context)
    cluster = _find_cluster(client, parse_job_id(job_id, os.environ))
    if wait:
        wait_with_progress(context, cluster, "continues to be configured", ClusterState.ACTIVE, timeout)
    summary = _summarize(client.sbf, cluster.view)
    printing.print_json(summary) if as_json else _print_summary(summary)


def _find_cluster(client: Client, job_id: str) -> Cluster:
    name = complete_job_id(job_id, client.sbf.clusters() if job_id.isdecimal() else [])
    try:
        return client.get(name)
    except NotFound as error:
        raise job_not_found(name) from error


def _summarize(sbf: SbfClient, view: ClusterView) -> JobSummary:
    clusters = () if view.state in ENDED_STATES else tuple(sbf.clusters(network=view.network or view.key))
    return JobSummary(job=view.key, missing=list_unconfirmed(view), cluster=view, network=clusters)


def _print_summary(summary: JobSummary) -> None:
    view = summary.cluster
    reason = f": {view.reason}" if view.reason else ""
    click.echo(f"the cluster of job {summary.job} ({view.spec.owner}, attempt {view.attempt}) is {view.state}{reason}")
    if view.state not in ENDED_STATES:
        _print_network(view)
    for line in summary.missing:
        click.echo(f"missing: {line}")
    click.echo()
    guests = [(guest.name, guest.host, " ".join(guest.addresses), guest.image) for guest in view.spec.guests]
    printing.print_table(
        ("guest", "host", "addresses", "image"), guests, f"no guests, on {', '.join(view.spec.all_hosts)}"
    )
    others = [other for other in summary.network if other.key != view.key]
    if others:
        click.echo()
        printing.print_table(
            ("also in this network", "owner", "state", "guests"), [_row(other) for other in others], ""
        )


def _print_network(view: ClusterView) -> None:
    name = f"{view.spec.name}: " if view.spec.name else ""
    over = f", joined by {differences.format_transport_service(view.joined)}" if view.joined else ""
    click.echo(f"network: {name}{printing.format_vlans(view)}{over}")
    click.echo(f"lease ends {printing.format_time(view.lease_ends)}")


def _row(view: ClusterView) -> tuple[object, ...]:
    guests = ", ".join(f"{guest.name} {' '.join(guest.addresses)}".strip() for guest in view.spec.guests)
    return (view.key, view.spec.owner, view.state, guests)


def parse_job_id(given: str | None, environment: Mapping[str, str]) -> str:
    """Return ``given`` (None: the job ID in the environment) in lower case.

    Raise BadInput for a missing or malformed job ID, and for a job of an array.
    """
    job_id = given or next((environment[name] for name in JOB_VARIABLES if environment.get(name)), None)
    if job_id is None:
        names = " or ".join(JOB_VARIABLES)
        raise BadInput(
            f"expected the ID of a job as argument, or in the environment as {names}, got none; 'qstat' lists your jobs"
        )
    if "[" in job_id:
        raise BadInput(
            f"job {job_id} is part of a job array, and such jobs have no clusters; submit one job for each cluster"
        )
    if not JOB_ID.fullmatch(job_id.lower()):
        raise BadInput(f"expected the ID of a job, such as 12.pbssrv, got {job_id!r}; 'qstat' lists your jobs")
    return job_id.lower()


def complete_job_id(job: str, clusters: Sequence[ClusterView]) -> str:
    """Return the full ID of a job. ``job`` is the full ID or only the job's number.

    For a number, return the key in ``clusters`` that begins with this number and a dot. If there is no such key, return
    ``job``. Raise BadInput if jobs of several servers have this number.
    """
    if not re.fullmatch("[0-9]+", job):
        return job
    job_ids = sorted({cluster.key for cluster in clusters if cluster.key.startswith(f"{job}.")})
    if len(job_ids) > 1:
        raise BadInput(f"job {job} exists on several servers: {', '.join(job_ids)}; use the full ID")
    return job_ids[0] if job_ids else job


def job_not_found(job: str) -> NotFound:
    """Return the error for a job without a cluster. The message lists the possible reasons."""
    ended = "has ended (use its full ID to show its cluster), " if job.isdecimal() else ""
    return NotFound(
        f"found no cluster of job {job}: the job did not request a cluster (-l vcluster=…), has not started, {ended}"
        f"or belongs to another user; see 'qstat -f {job}'"
    )


def list_unconfirmed(view: ClusterView) -> tuple[str, ...]:
    """Return a sentence for each element that reports an error or lacks a confirmation.

    An element confirms the set-up or the removal of the cluster.
    """
    late = [
        placement
        for placement in view.placements
        if placement.progress in {PlacementProgress.ADDING, PlacementProgress.REMOVING} or placement.trouble
    ]
    when = "when the cluster ended, " if view.state in ENDED_STATES else ""
    return tuple(
        f"{when}{placement.kind} {placement.element} at {placement.site}: {format_progress(placement, view)}"
        for placement in late
    )
