"""Tests of the end of a job's run through a host's agent.

A hook of the batch system *announces* a run to the agent with the request ``up``.
"""

import errno
import shutil
import threading
from collections.abc import Callable
from dataclasses import replace

import pytest
from support.hosts.job_socket_agent import Agent
from support.sbf_fakes.job_world import JOB, SPEC, active, end_run, state, until
from support.sbf_fakes.world import World, spec

from virtcloud.agent import bootstrap
from virtcloud.agent.files import write_durably
from virtcloud.agent.job_socket import job_record_store
from virtcloud.agent.job_socket.request_handler import RequestHandler
from virtcloud.model.cluster import ClusterState

AWAY = "unix:///nowhere/sbf.sock"


def test_the_removal_of_a_run_deletes_its_cluster_and_files(world: World, host: Agent) -> None:
    active(world, host)
    assert state(host) == ("up", [])
    assert end_run(world, host) == {"ok": True, "gone": True, "missing": []}
    assert (world.view(JOB).state, world.view(JOB).reason) == ("released", "ended by agent@brno-h1")
    assert list(host.settings.jobs.iterdir()) == []
    assert end_run(world, host) == {"ok": True, "gone": True, "missing": []}


def test_a_removal_waits_for_this_host_only_and_names_it(world: World, host: Agent) -> None:
    active(world, host)
    host.ask("remove", JOB)
    until(lambda: world.view(JOB).state is ClusterState.DRAINING)
    missing = "host brno-h1 at brno has not confirmed the removal"
    until(lambda: host.ask("remove", JOB) == {"ok": True, "gone": False, "missing": [missing]})
    world.confirm("brno-h1", world.element("brno-h1").wanted_revision)
    assert host.ask("remove", JOB, wait=30)["gone"]
    assert world.view(JOB).state is ClusterState.DRAINING, "expected the cluster to wait for the other elements"


def test_the_removal_of_an_unknown_cluster_reports_it_gone(host: Agent) -> None:
    assert host.ask("remove", JOB, wait=30) == {"ok": True, "gone": True, "missing": []}


def test_a_host_cannot_end_a_cluster_on_other_hosts(world: World, host: Agent) -> None:
    world.put(JOB, spec("praha-h1"), attempt=1)
    assert host.ask("remove", JOB, wait=30)["gone"]
    assert world.view(JOB).state is ClusterState.CONFIGURING


def test_a_late_call_of_an_older_run_changes_nothing(world: World, host: Agent) -> None:
    world.put(JOB, SPEC, attempt=2)
    host.up(JOB, 2)
    before = host.ask("list")
    detail = f"cluster {JOB}: attempt 1 is over; attempt 2 was announced to this host"
    for do in ("up", "state", "cancel", "remove"):
        assert host.ask(do, JOB, 1) == {"ok": False, "error": "gone", "detail": detail}
    assert host.ask("list") == before
    assert world.view(JOB).state is ClusterState.CONFIGURING


def test_a_run_is_gone_when_sbf_has_a_later_run(world: World, host: Agent) -> None:
    host.up(JOB, 1)
    world.put(JOB, SPEC, attempt=2)
    detail = f"cluster {JOB}: attempt 1 is over; SBF has attempt 2"
    assert host.ask("state", JOB, 1, wait=30) == {"ok": False, "error": "gone", "detail": detail}
    assert host.ask("remove", JOB, 1, wait=30)["gone"]
    assert world.view(JOB).state is ClusterState.CONFIGURING, "expected the cluster of the later attempt to remain"


def test_a_late_call_about_a_reused_job_number_changes_nothing(world: World, host: Agent) -> None:
    """The batch system was reinstalled and assigned job ID 12 again."""
    former(world, host)
    world.put(JOB, SPEC, attempt=1)
    assert host.up(JOB, 1) == {"ok": True}
    before = host.ask("list")
    detail = f"cluster {JOB}: the job of bob is over; the key now belongs to a job of another user"
    for do in ("state", "cancel", "remove"):
        assert host.ask(do, JOB, 3, user="bob") == {"ok": False, "error": "gone", "detail": detail}
    assert host.ask("list") == before
    assert world.view(JOB).state is ClusterState.CONFIGURING


def test_an_unannounced_job_with_a_reused_number_keeps_its_cluster(world: World, host: Agent) -> None:
    former(world, host)
    world.put(JOB, SPEC, attempt=1)
    assert host.ask("remove", JOB, 3, user="bob", wait=30) == {"ok": True, "gone": True, "missing": []}
    assert world.view(JOB).state is ClusterState.CONFIGURING


def test_a_job_gets_no_cluster_of_another_user(world: World, host: Agent) -> None:
    former(world, host)
    active(world, host, 1)
    host.ask("up", JOB, 4, user="bob")
    detail = f"cluster {JOB}: expected a cluster of bob, but at SBF the key belongs to a cluster of another user"
    assert host.ask("state", JOB, 4, user="bob") == {"ok": False, "error": "gone", "detail": detail}


def former(world: World, host: Agent) -> None:
    world.put(JOB, spec("brno-h1", owner="bob"), attempt=3)
    host.ask("up", JOB, 3, user="bob")
    world.delete(JOB)
    world.settle()
    assert world.view(JOB).state is ClusterState.RELEASED


def test_a_removed_uncounted_run_can_be_announced_again(world: World, host: Agent) -> None:
    """The attempt number 0 means that the batch system counts no attempts."""
    world.put(JOB, SPEC)
    host.up(JOB, 0)
    assert host.ask("remove", JOB, 0)["gone"] is False
    assert host.up(JOB, 0)["error"] == "attempt-waits"
    until(lambda: world.view(JOB).state is ClusterState.DRAINING)
    world.settle()
    assert host.ask("remove", JOB, 0, wait=30)["gone"]
    assert host.up(JOB, 0) == {"ok": True}
    world.put(JOB, SPEC)
    assert state(host, attempt=0)[0] == "waiting"


def test_a_run_that_was_never_announced_is_not_found(host: Agent) -> None:
    answer = host.ask("state", JOB)
    assert (answer["ok"], answer["error"]) == (False, "not-found")
    assert "send the request 'up' first" in answer["detail"]


def test_an_unknown_user_fails_the_job_with_a_reason(world: World, host: Agent) -> None:
    world.put(JOB, SPEC.model_copy(update={"owner": "alice-of-elsewhere"}), attempt=1)
    host.bridges.answering["br100"] = {"10.0.0.1", "10.0.0.2"}
    world.settle()
    host.ask("up", JOB, head=True, user="alice-of-elsewhere")
    answer = host.ask("state", JOB)
    assert answer["state"] == "failed"
    assert answer["reason"].startswith("user alice-of-elsewhere is not known on host ")


def test_a_job_missing_twice_is_removed(world: World, host: Agent) -> None:
    """The agent ends a run whose job is missing from the lists of running jobs for a grace period, here 0 s."""
    active(world, host)
    assert host.ask("running", clusters=[[JOB, 1]]) == {"ok": True}
    host.ask("running", clusters=[])
    assert world.view(JOB).state is ClusterState.ACTIVE
    host.ask("running", clusters=[])
    until(lambda: world.view(JOB).state is ClusterState.DRAINING)


def test_the_grace_period_restarts_after_a_gap_between_lists(
    world: World, live: Callable[..., Agent], monkeypatch: pytest.MonkeyPatch
) -> None:
    """If the agent receives no list for the grace period (120 s), the grace period starts again at the next list.

    The next list can be empty although the job continues: a MoM with an earlier version of the hook reports an empty
    list when the MoM starts.
    """
    now = [0.0]
    monkeypatch.setattr(
        bootstrap,
        "RequestHandler",
        lambda dependencies: RequestHandler(replace(dependencies, grace_s=120), clock=lambda: now[0]),
    )
    host = live()
    active(world, host)
    leaving = []
    for now[0] in (0, 1000, 1060, 1119, 1120):
        host.ask("running", clusters=[])
        leaving.append(host.ask("list")["clusters"][0]["leaving"])
    assert leaving == [False, False, False, False, True]
    until(lambda: world.view(JOB).state is ClusterState.DRAINING)


def test_an_agent_without_the_script_forgets_a_lost_run(world: World, host: Agent) -> None:
    """A run is lost if its job is missing from the lists of running jobs for a grace period, here 0 s.

    The agent of the script's host then ends the cluster. The agents of the job's other hosts only delete their records
    of the run. If one of these agents receives a removal request, the agent nevertheless ends the cluster.
    """
    active(world, host, head=False)
    host.ask("running", clusters=[])
    host.ask("running", clusters=[])
    assert host.ask("list")["clusters"] == []
    assert world.view(JOB).state is ClusterState.ACTIVE
    host.ask("remove", JOB)
    until(lambda: world.view(JOB).state is ClusterState.DRAINING)


def test_a_lost_run_leaves_no_files_of_a_former_attempt(world: World, host: Agent) -> None:
    """The script of attempt 1 ran on this host, the script of attempt 2 on another host."""
    active(world, host)
    host.ask("state", JOB)
    assert (host.settings.jobs / JOB / "hosts").exists()
    host.up(JOB, 2, head=False)
    host.ask("running", clusters=[])
    host.ask("running", clusters=[])
    assert (host.ask("list")["clusters"], list(host.settings.jobs.glob("*"))) == ([], [])


def test_a_member_has_the_networks_vlan_and_awaits_guests(world: World, host: Agent) -> None:
    root = {"name": "r1", "host": "praha-h1", "image": "x", "addresses": ["10.0.0.9/24"]}
    mine = {"name": "g1", "host": "brno-h1", "image": "x", "addresses": ["10.0.0.1/24"]}
    world.put("net", spec(owner="root", name="demo", guests=[root]))
    world.settle()
    world.put(JOB, spec(owner="root", joins="demo", guests=[mine]), attempt=1)
    world.settle()
    host.up(JOB)
    assert state(host) == ("waiting", ["guest g1 does not answer at 10.0.0.1"])
    host.bridges.answering["br100"] = {"10.0.0.1"}
    facts = host.ask("state", JOB)["facts"]
    assert (facts["VCLUSTER_VLAN"], facts["VCLUSTER_GUESTS"]) == ("100", "g1")
    assert end_run(world, host)["gone"]
    assert world.view("net").state is ClusterState.ACTIVE


@pytest.mark.parametrize("do", ["up", "state"])
def test_a_job_with_a_waiting_caller_is_not_missing(world: World, host: Agent, do: str) -> None:
    """The list of running jobs lacks the job: some batch systems list a job only when its script runs."""
    active(world, host)
    host.ask("running", clusters=[])
    host.ask(do, JOB)
    host.ask("running", clusters=[])
    assert host.ask("list")["clusters"][0]["leaving"] is False


def test_runs_wait_and_removals_are_stored_while_sbf_is_unreachable(world: World, live: Callable[..., Agent]) -> None:
    active(world, live())
    host = live(AWAY)
    assert state(host)[0] == "waiting"
    assert "SBF does not answer at unix:///nowhere/sbf.sock" in state(host)[1][0]
    answer = host.ask("remove", JOB)
    assert answer["gone"] is False
    until(lambda: "SBF does not answer at" in host.ask("remove", JOB)["missing"][0])
    host = live()
    until(lambda: world.view(JOB).state is ClusterState.DRAINING)
    world.settle()
    assert host.ask("remove", JOB, wait=30)["gone"]


@pytest.mark.parametrize("phase", ["asked", "up", "cancelled", "leaving", "gone"])
def test_a_restarted_agent_has_all_job_records(world: World, live: Callable[..., Agent], phase: str) -> None:
    host = live()
    active(world, host)
    if phase == "up":
        host.ask("state", JOB)
    if phase == "cancelled":
        host.ask("cancel", JOB, reason="qdel")
    if phase == "leaving":
        host.ask("remove", JOB)
    if phase == "gone":
        end_run(world, host)
    before = host.ask("list")
    host = live()
    assert host.ask("list") == before
    expected = {"asked": "up", "up": "up", "cancelled": "cancelled", "leaving": "ended", "gone": "ended"}
    assert host.ask("state", JOB)["state"] == expected[phase]


def test_a_running_jobs_files_are_restored_after_a_reboot(world: World, live: Callable[..., Agent]) -> None:
    host = live()
    active(world, host)
    host.ask("state", JOB)
    hosts = host.settings.jobs / JOB / "hosts"
    before = hosts.read_text()
    shutil.rmtree(host.settings.jobs)
    live(AWAY)
    until(lambda: hosts.exists() and hosts.read_text() != "")
    assert hosts.read_text() == before


def test_a_removal_completes_after_a_full_disk_has_room(
    world: World, host: Agent, monkeypatch: pytest.MonkeyPatch
) -> None:
    host.up("12.pbs")
    no_room = f"cannot store the record of cluster 12.pbs in {host.settings.state}/jobs: No space left on device"
    with monkeypatch.context() as full:
        *_, thread = (one for one in threading.enumerate() if one.name == "removals")  # the last thread is the newest
        full.setattr(
            job_record_store,
            "write_durably",
            lambda path, content: _full() if b'"gone"' in content else write_durably(path, content),
        )
        until(lambda: host.ask("remove", "12.pbs", wait=0.1)["missing"] == [no_room])
        assert thread.is_alive()
    assert host.ask("remove", "12.pbs", wait=30)["gone"]


def _full(*_: object) -> None:
    raise OSError(errno.ENOSPC, "No space left on device")
