"""Scenarios: events in the life of a job with a cluster, and the messages to the job's user.

After each scenario, switches and hosts are in their initial state.
"""

import pytest

from batch_scenarios.stage import FOREVER, HostFault, ScenarioStage
from virtcloud.model.element_views import Pool
from virtcloud.model.vlans import VlanSet
from virtcloud.testing.fakepbs.batch_system import BatchRefused, BatchSubmission


def good_path(stage: ScenarioStage) -> None:
    """A job on three hosts starts when its cluster is active. The job has variables and files about the guests.

    When the job ends, the cluster is removed.
    """
    job = stage.submit(hosts=3)
    ended = stage.await_end(job)
    printed = stage.batch.output(job).stdout.splitlines()
    assert ended.exit_status == 0
    assert printed[0] == "started"
    facts = dict(line.split("=", 1) for line in printed if line.startswith("VCLUSTER_"))
    assert facts["VCLUSTER_ID"] == job.lower()
    assert facts["VCLUSTER_GUESTS"] == "g1 g2 g3"
    assert facts["VCLUSTER_VLAN"].isdigit()
    assert printed[printed.index("hosts") + 1 : printed.index("hostfile")] == [
        "10.0.0.1 g1",
        "10.0.0.2 g2",
        "10.0.0.3 g3",
    ]
    assert printed[printed.index("hostfile") + 1 :] == ["g1 slots=1", "g2 slots=1", "g3 slots=1"]
    stage.await_released(job)


def job_without_a_cluster(stage: ScenarioStage) -> None:
    """A job without a cluster runs as in a batch system without virtcloud, even if SBF is down."""
    stage.world.stop_sbf()
    try:
        job = stage.batch.submit(BatchSubmission("echo plain; env | grep -c ^VCLUSTER_\n"))
        stage.await_end(job)
        assert stage.batch.output(job).stdout.split() == ["plain", "0"]
    finally:
        stage.world.start_sbf()


def wrong_request(stage: ScenarioStage) -> None:
    with pytest.raises(BatchRefused, match="vcluster: guests: expected a number from 1 to 64, got 'many'"):
        stage.submit(request="guests=many")


def no_vlan_free(stage: ScenarioStage) -> None:
    """While no VLAN ID is free, a job waits, and its comment contains the reason. Later the job runs."""
    client, sites = stage.world.client, [site.name for site in stage.world.client.sites()]
    pools = {site: client.pool(site) for site in sites}
    for site in sites:
        client.put_pool(site, Pool(vlans=VlanSet()))
    try:
        job = stage.submit()
        stage.await_queued(job, "no VLAN is free")
        assert stage.cluster(job) is None
    finally:
        for site, pool in pools.items():
            client.put_pool(site, pool)
    assert stage.await_end(job).exit_status == 0
    stage.await_released(job)


def sbf_down_at_submission(stage: ScenarioStage) -> None:
    """While SBF is down, a valid request is accepted. The job waits, with the reason in its comment, and runs later."""
    stage.world.stop_sbf()
    try:
        job = stage.submit()
        stage.await_queued(job, "SBF")
    finally:
        stage.world.start_sbf()
    assert stage.await_end(job).exit_status == 0
    stage.await_released(job)


def switch_fails(stage: ScenarioStage) -> None:
    """While a switch does not answer, a job waits. The job's comment names the switch. Later the job runs."""
    job = stage.submit(hosts=3)
    view = stage.await_requested(job)
    stage.await_end(job)
    switch = next(placement.element for placement in view.placements if placement.kind == "switch")
    with stage.world.unreachable(switch):
        job = stage.submit(hosts=3)
        stage.await_queued(job, str(switch))
        assert stage.batch.output(job).stdout == ""
    assert stage.await_end(job).exit_status == 0
    stage.await_released(job)


def qdel_during_set_up(stage: ScenarioStage) -> None:
    """If a job is deleted during the set-up of its cluster, the job's script never starts."""
    with stage.world.unreachable(_some_switch(stage)):
        job = stage.submit(hosts=3)
        stage.await_running(job)
        stage.await_requested(job)
        stage.batch.delete(job)
        stage.await_end(job)
    stage.await_released(job)
    assert "started" not in stage.batch.output(job).stdout


def qdel_when_up(stage: ScenarioStage) -> None:
    """If a job is deleted when its cluster is active, the job ends and does not run again."""
    job = stage.submit(hosts=2, script=FOREVER)
    stage.await_active(job)
    stage.await_running(job)
    stage.batch.delete(job)
    assert stage.await_end(job).run_version == 1
    stage.await_released(job)


def qdel_while_running(stage: ScenarioStage) -> None:
    job = stage.submit_started(hosts=2)
    stage.batch.delete(job)
    stage.await_end(job)
    stage.await_released(job)


def qdel_by_force(stage: ScenarioStage) -> None:
    job = stage.submit_started(hosts=2)
    stage.batch.delete(job, force=True)
    stage.await_released(job)


def rerun(stage: ScenarioStage) -> None:
    """A job that runs a second time gets a new cluster with a higher attempt number. The former cluster is removed."""
    job = stage.submit_started(hosts=2, request="name=again")
    first = stage.await_active(job)
    stage.batch.rerun(job)
    stage.await_that(
        lambda: (view := stage.cluster(job)) is not None and view.attempt > first.attempt, "another attempt"
    )
    second = stage.await_active(job)
    assert first.id != second.id
    assert second.attempt > first.attempt
    stage.await_running(job)
    stage.batch.delete(job)
    stage.await_released(job)


def server_restarts(stage: ScenarioStage) -> None:
    """Jobs and clusters survive a crash of PBS's server."""
    job = stage.submit(hosts=2, script=f"echo started; sleep {stage.world.outage}\n")
    before = stage.await_active(job)
    stage.machines.stop_server()
    stage.machines.start_server()
    after = stage.cluster(job)
    assert after is not None
    assert (after.id, after.state) == (before.id, before.state)
    assert stage.await_end(job).exit_status == 0
    stage.await_released(job)


def sbf_restarts(stage: ScenarioStage) -> None:
    """If a job ends while SBF is down, SBF removes the job's cluster after the restart."""
    job = stage.submit_started(hosts=2)
    stage.world.stop_sbf()
    try:
        stage.batch.delete(job)
        stage.await_end(job)
    finally:
        stage.world.start_sbf()
    stage.await_released(job)


def mom_dies_during_set_up(stage: ScenarioStage) -> None:
    """If a MoM dies during the set-up, the script does not start. A forced deletion of the job removes the cluster."""
    with stage.world.unreachable(_some_switch(stage)):
        job = stage.submit(hosts=3)
        sister = stage.await_running(job).hosts[-1]
        stage.await_requested(job)
        stage.world.kill_mom(sister)
        try:
            stage.await_not_running(job)
            stage.force_delete(job)
        finally:
            stage.world.start_mom(sister)
    stage.await_released(job)
    assert "started" not in stage.batch.output(job).stdout


def mom_of_first_host_dies_in_begin(stage: ScenarioStage) -> None:
    """If the first host's MoM dies before it reports the result of the host's hook, the job runs on other hosts."""
    _mom_dies_in_begin(stage, stage.world.hosts[0])


def mom_of_another_host_dies_in_begin(stage: ScenarioStage) -> None:
    """If another host's MoM dies before it reports the result of that host's hook, the job runs on other hosts."""
    _mom_dies_in_begin(stage, stage.world.hosts[1])


def _mom_dies_in_begin(stage: ScenarioStage, host: str) -> None:
    """If the MoM of ``host`` dies during the hook, the job's first run is lost, and this run's cluster is removed.

    The job runs again on other hosts, where the job's script starts once.
    """
    with stage.world.in_begin(host, HostFault.MOM_DIES) as await_fault:
        job = stage.submit(hosts=2)
        await_fault()
        ended = stage.await_end(job)
        stage.await_released(job)
        stage.await_clean()
    printed = stage.batch.output(job).stdout
    assert (ended.exit_status, host in ended.hosts, ended.run_version > 1) == (0, False, True)
    assert (printed.count("started"), f"VCLUSTER_ID={job.lower()}" in printed) == (1, True)


def agent_dies_in_begin(stage: ScenarioStage) -> None:
    """If the second host's agent dies during the request of that host's hook, the host rejects the job."""
    _agent_fails_in_begin(stage, HostFault.AGENT_DIES)


def agent_hangs_in_begin(stage: ScenarioStage) -> None:
    _agent_fails_in_begin(stage, HostFault.AGENT_HANGS)


def _agent_fails_in_begin(stage: ScenarioStage, fault: HostFault) -> None:
    """If the second host's agent fails, the job is queued again before its script starts.

    The job's comment names the hosts of the failed run.
    """
    hosts = stage.world.hosts[:2]
    with stage.world.in_begin(hosts[1], fault) as await_fault:
        job = stage.submit(hosts=2)
        await_fault()
        stage.await_queued(
            job,
            f"vcluster: one of the hosts {', '.join(hosts)} could not start the job; "
            "the log of the failed host has the reason",
        )
    ended = stage.await_end(job)
    printed = stage.batch.output(job).stdout
    assert (ended.exit_status, ended.run_version > 1, printed.count("started")) == (0, True, 1)
    stage.await_released(job)


def host_dies(stage: ScenarioStage) -> None:
    """If the first host dies, the job stops. A forced deletion of the job removes its cluster.

    On the dead host, the cluster is removed after the host's restart.
    """
    job = stage.submit_started(hosts=2)
    host = stage.batch.status(job).hosts[0]
    stage.machines.kill_host(host)
    try:
        stage.await_not_running(job)
        stage.force_delete(job)
    finally:
        stage.machines.start_host(host)
    stage.await_released(job)


def over_quota(stage: ScenarioStage) -> None:
    stage.world.client.put_quota(stage.user, clusters=1)
    try:
        first = stage.submit_started()
        second = stage.submit()
        stage.await_queued(second, f"vcluster: {stage.user} already has 1 cluster (limit 1)")
        stage.batch.delete(first)
        assert stage.await_end(second).exit_status == 0
    finally:
        stage.world.client.put_quota(stage.user)
    stage.await_released(second)


def same_name(stage: ScenarioStage) -> None:
    """A second job with the same cluster name is rejected. The message contains the first job's id."""
    first = stage.submit_started(request="name=mine")
    with pytest.raises(BatchRefused, match=f"vcluster: 'mine' is already running as job {first}"):
        stage.submit(request="name=mine")
    stage.batch.delete(first)
    stage.await_released(first)


def join(stage: ScenarioStage) -> None:
    """A job joins a network and uses the network's VLAN ID. When the job ends, the network stays active."""
    first = stage.submit_started(request="name=shared")
    root = stage.await_active(first)
    second = stage.submit_started(request="net=shared")
    member = stage.await_active(second)
    assert set(member.vlans.values()) == set(root.vlans.values())
    stage.batch.delete(second)
    stage.await_released(second)
    assert stage.await_active(first).id == root.id
    stage.batch.delete(first)
    stage.await_released(first)


def join_not_allowed(stage: ScenarioStage) -> None:
    first = stage.submit_started(request="name=closed")
    with pytest.raises(BatchRefused, match="closed"):
        stage.submit(request="net=closed", user="bob")
    stage.batch.delete(first)
    stage.await_released(first)


def _some_switch(stage: ScenarioStage) -> str:
    """Return the switch of the first host. A job on all hosts needs this switch."""
    topology = stage.world.client.topology()
    site = next(site for site in topology.sites if stage.world.hosts[0] in [host.name for host in site.hosts])
    return str(site.switches[0].name)


ALL = (
    good_path,
    job_without_a_cluster,
    wrong_request,
    no_vlan_free,
    sbf_down_at_submission,
    switch_fails,
    qdel_during_set_up,
    qdel_when_up,
    qdel_while_running,
    qdel_by_force,
    rerun,
    server_restarts,
    sbf_restarts,
    mom_dies_during_set_up,
    mom_of_first_host_dies_in_begin,
    mom_of_another_host_dies_in_begin,
    agent_dies_in_begin,
    agent_hangs_in_begin,
    host_dies,
    over_quota,
    same_name,
    join,
    join_not_allowed,
)
