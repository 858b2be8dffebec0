"""Reconciliation with a real OpenPBS server in cases where the server called no hook."""

from datetime import timedelta

import pytest
from batch_scenarios.stage import FOREVER, HostFault, ScenarioStage
from pydantic import SecretStr

from virtcloud.client.sbf import SbfClient
from virtcloud.lab import addressing
from virtcloud.lab.pbs import LabPbs, scripts
from virtcloud.model.access import Role
from virtcloud.model.cluster import ENDED_STATES, ClusterRequest, ClusterSpec, ClusterState
from virtcloud.scheduler.status import SchedulerStatus

pytestmark = [pytest.mark.pbs, pytest.mark.timeout(600)]


def actions(pbs: LabPbs) -> list[tuple[str, str]]:
    text = pbs.lab.run(addressing.STATION, ["cat", f"{scripts.SPOOL}/scheduler.json"], check=True).stdout
    report = SchedulerStatus.model_validate_json(text).report
    return [(action.what, str(action.cluster)) for action in report.deeds]


def expect_action(stage: ScenarioStage, batch: LabPbs, what: str, cluster: str) -> None:
    stage.await_that(lambda: (what, cluster) in actions(batch), "the action in the report")


def test_only_clusters_of_missing_jobs_are_ended(stage: ScenarioStage, batch: LabPbs) -> None:
    """The server does not know job 999999. Cluster 999998 was created by an operator, not by a hook."""
    job = stage.submit(script=FOREVER)
    stage.await_active(job)
    server = job.partition(".")[2]
    client, host = stage.world.client, stage.world.hosts[-1]
    spec = ClusterSpec.model_validate({"owner": "alice", "hosts": [host]})
    token = client.create_token("another", Role.SCHEDULER).token
    with SbfClient(f"unix://{batch.lab.sbf_socket}", token=lambda: SecretStr(token)) as hook:
        hook.put_cluster(f"999999.{server}", ClusterRequest(spec=spec, attempt=1))
    client.put_cluster(f"999998.{server}", ClusterRequest(spec=spec, attempt=1))
    stage.await_released(f"999999.{server}")
    expect_action(stage, batch, "ended", f"999999.{server}")
    assert stage.await_active(job).attempt == 1
    assert client.cluster(f"999998.{server}").state is ClusterState.ACTIVE
    client.delete_cluster(f"999998.{server}")
    stage.batch.delete(job)
    stage.await_released(job)
    stage.await_released(f"999998.{server}")


def test_a_job_deleted_by_force_during_an_outage_leaves_nothing(stage: ScenarioStage, batch: LabPbs) -> None:
    job = stage.submit(script=FOREVER)
    stage.await_active(job)
    (host,) = stage.await_running(job).hosts
    stage.machines.kill_host(host)
    stage.world.stop_sbf()
    try:
        stage.batch.delete(job, force=True)
        stage.await_end(job)
    finally:
        stage.world.start_sbf()
    try:
        stage.await_that(
            lambda: (one := stage.cluster(job)) is not None and one.state in {ClusterState.DRAINING, *ENDED_STATES},
            "the cluster to end",
        )
        expect_action(stage, batch, "ended", job)
    finally:
        stage.machines.start_host(host)
    stage.await_released(job)


def test_the_cluster_of_a_run_lost_in_execjob_begin_ends(stage: ScenarioStage, batch: LabPbs) -> None:
    """A MoM dies in ``execjob_begin``. The server does not call the jobobit hook for the lost run.

    The server does not start the job again, because too few nodes are free.
    """
    with stage.world.in_begin(stage.world.hosts[0], HostFault.MOM_DIES) as await_fault:
        job = stage.submit(hosts=3)
        await_fault()
        stage.await_queued(job, "Not enough free nodes available")
        stage.await_released(job)
        expect_action(stage, batch, "ended", job)
        stage.await_clean()
        stage.force_delete(job)


def test_a_walltime_extended_during_an_outage_extends_the_lease(stage: ScenarioStage, batch: LabPbs) -> None:
    job = stage.submit(script=FOREVER)
    before = stage.await_active(job).lease_ends
    stage.world.stop_sbf()
    batch.root("qalter", "-l", "walltime=20:00:00", job)
    stage.world.start_sbf()
    stage.await_that(lambda: stage.await_active(job).lease_ends - before > timedelta(hours=15), "a longer lease")
    expect_action(stage, batch, "extended", job)
    stage.batch.delete(job)
    stage.await_released(job)
