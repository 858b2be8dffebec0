"""A host with a MoM loses its power and boots again before the server gives up the host's jobs."""

from collections.abc import Iterator

import pytest
from batch_scenarios.openpbs_lab import HOSTS, NODE_FAIL_REQUEUE_S
from batch_scenarios.stage import ScenarioStage

from virtcloud.lab.pbs import LabPbs

pytestmark = [pytest.mark.pbs, pytest.mark.timeout(600)]


@pytest.fixture
def patient_server(batch: LabPbs) -> Iterator[LabPbs]:
    """An installation whose server requeues the jobs of a lost host only after PBS's default time (310 s)."""
    batch.root("qmgr", "-c", "unset server node_fail_requeue")
    yield batch
    batch.root("qmgr", "-c", f"set server node_fail_requeue = {NODE_FAIL_REQUEUE_S}")


def cycle_power(batch: LabPbs, host: str) -> None:
    batch.lab.power_off(host)
    batch.lab.power_on(host)


def await_report(stage: ScenarioStage, batch: LabPbs, job: str) -> None:
    """Wait until the MoM has reported to the server that the job's script runs.

    If the host lost its power before this report, the job would stay in state R: a fault of OpenPBS (decision 30).
    """
    stage.await_that(lambda: "substate = 42" in batch.root("qstat", "-f", job), f"the report that {job} runs")


def test_a_job_runs_again_when_its_first_host_has_booted(stage: ScenarioStage, patient_server: LabPbs) -> None:
    """After the boot, the MoM finds the job in the MoM's folder."""
    job = stage.submit_started(hosts=2)
    first, host = stage.await_active(job), stage.batch.status(job).hosts[0]
    await_report(stage, patient_server, job)
    cycle_power(patient_server, host)
    stage.await_job(job, lambda status: status.run_version > first.attempt, "run again")
    second = stage.await_active(job)
    assert (second.attempt, second.id != first.id) == (2, True)
    stage.await_started(job)
    stage.batch.delete(job)
    assert stage.await_end(job).run_version == 2
    stage.await_released(job)


def test_a_booted_host_runs_jobs_with_clusters(stage: ScenarioStage, batch: LabPbs) -> None:
    for host in HOSTS:
        cycle_power(batch, host)
    batch.await_free(HOSTS)
    job = stage.submit(hosts=3)
    ended = stage.await_end(job)
    assert (ended.exit_status, set(ended.hosts)) == (0, set(HOSTS)), stage.batch.output(job)
    assert "VCLUSTER_GUESTS=g1 g2 g3" in stage.batch.output(job).stdout
    stage.await_released(job)
