"""Tests of a job's cluster through a host's agent, with a real job socket and an SBF that authenticates the agent."""

import errno
import shutil
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from datetime import timedelta
from pathlib import Path

import pytest
import uvicorn
from job_socket_agent import Agent, FakeBridges, FakeProber, agent, settings_in
from pydantic import SecretStr
from sbf_fakes.http_calls import app_of
from sbf_fakes.world import World, spec

from sbf_service.store import error_reports, guest_power
from virtcloud.agent.job_socket import job_record_store
from virtcloud.agent.network.address_probe import IpAddress
from virtcloud.agent.settings import AgentSettings
from virtcloud.client.sbf import SbfClient
from virtcloud.model.access import Role
from virtcloud.model.cluster import ClusterState
from virtcloud.model.guests import GuestPower, GuestPowerRequest

JOB = "12.pbs"
SPEC = spec(
    "brno-h1",
    "praha-h1",
    owner="root",
    name="demo",
    guests=[
        {"name": "g1", "host": "brno-h1", "image": "x", "cpus": 2, "addresses": ["10.0.0.1/24"]},
        {"name": "g2", "host": "praha-h1", "image": "x", "addresses": ["10.0.0.2/24", "fd00::2/64"]},
    ],
)
AWAY = "unix:///nowhere/sbf.sock"


@pytest.fixture
def database(sqlite_database: str) -> str:
    """These tests run on SQLite only."""
    return sqlite_database


@contextmanager
def serving(world: World) -> Iterator[str]:
    """Run SBF on TCP, without reconcilers."""
    server = uvicorn.Server(uvicorn.Config(app_of(world.service), port=0, lifespan="off", log_config=None))
    thread = threading.Thread(target=server.run)
    thread.start()
    while not server.started:
        time.sleep(0.005)
    try:
        yield f"http://127.0.0.1:{server.servers[0].sockets[0].getsockname()[1]}"
    finally:
        server.should_exit = True
        world.service.change_feed.close()
        thread.join()


@pytest.fixture
def settings(tmp_path: Path) -> AgentSettings:
    return settings_in(tmp_path / "agent", timing={"job_grace": 0})


@pytest.fixture
def live(world: World, settings: AgentSettings) -> Iterator[Callable[..., Agent]]:
    """Return a function that starts an agent of brno-h1. First, the function stops the former agent."""
    with ExitStack() as all_lives:
        url = all_lives.enter_context(serving(world))
        token = world.token(Role.AGENT, "brno-h1")
        bridges = FakeBridges({"br100": set()})
        life = all_lives.enter_context(ExitStack())

        def start(url: str = url) -> Agent:
            life.close()
            sbf = life.enter_context(SbfClient(url, 3, token=lambda: SecretStr(token)))
            return life.enter_context(agent(settings, sbf, bridges))

        yield start


@pytest.fixture
def host(live: Callable[..., Agent]) -> Agent:
    return live()


def state(host: Agent, wait: float = 0, attempt: int = 1) -> tuple[str, list[str]]:
    answer = host.ask("state", JOB, attempt, wait=wait)
    assert answer["ok"], answer
    return answer["state"], answer["missing"]


def until(reached: Callable[[], bool]) -> None:
    ends = time.monotonic() + 30
    while not reached():
        assert time.monotonic() < ends
        time.sleep(0.01)


def test_the_barrier_names_what_is_missing_until_every_guest_answers(world: World, host: Agent) -> None:
    """First the elements confirm their revisions. Then the guests answer one after the other.

    The answer with state ``up`` contains the facts of the job.
    """
    world.put(JOB, SPEC, attempt=1)
    assert host.up(JOB) == {"ok": True}
    waits = "{} has not confirmed".format
    names = ("switch brno-sw1 at brno", "host brno-h1 at brno", "host praha-h1 at praha", "switch praha-sw1 at praha")
    assert (state(host)[0], sorted(state(host)[1])) == ("waiting", sorted(map(waits, names)))
    world.converge_switches()
    assert sorted(state(host)[1]) == sorted(map(waits, names[1:3]))
    world.confirm_hosts()
    world.sweep()
    guests = ["guest g1 does not answer at 10.0.0.1", "guest g2 does not answer at 10.0.0.2 or fd00::2"]
    assert state(host) == ("waiting", guests)
    host.bridges.answering["br100"] |= {"10.0.0.1"}
    assert state(host) == ("waiting", guests[1:])
    host.bridges.answering["br100"] |= {"fd00::2"}
    answer = host.ask("state", JOB, 1)
    folder = host.settings.jobs / JOB
    assert answer == {
        "ok": True,
        "state": "up",
        "missing": [],
        "reason": None,
        "facts": {
            "VCLUSTER_ID": JOB,
            "VCLUSTER_NAME": "demo",
            "VCLUSTER_VLAN": "100",
            "VCLUSTER_GUESTS": "g1 g2",
            "VCLUSTER_HOSTS": str(folder / "hosts"),
            "VCLUSTER_HOSTFILE": str(folder / "hostfile"),
            "VCLUSTER_SSH_CONFIG": str(folder / "ssh_config"),
            "VCLUSTER_KNOWN_HOSTS": str(folder / "known_hosts"),
        },
    }
    assert (folder / "hostfile").read_text() == "g1 slots=2\ng2 slots=1\n"


def active(world: World, host: Agent, attempt: int = 1, *, head: bool = True) -> None:
    """Create the cluster of a job's attempt, announce the run to the agent, and let the guests answer."""
    world.put(JOB, SPEC, attempt=attempt)
    host.bridges.answering["br100"] = {"10.0.0.1", "10.0.0.2"}
    world.settle()
    host.up(JOB, attempt, head=head)


def end_run(world: World, host: Agent, attempt: int = 1) -> dict[str, object]:
    """Remove the cluster of an attempt, and let all elements confirm the removal. Return the last answer."""
    first = host.ask("remove", JOB, attempt)
    until(lambda: world.view(JOB).state not in {ClusterState.CONFIGURING, ClusterState.ACTIVE})
    world.settle()
    return first if first["gone"] else host.ask("remove", JOB, attempt, wait=30)


def test_a_guest_that_its_user_stopped_delays_no_job(world: World, host: Agent) -> None:
    active(world, host)
    host.bridges.answering["br100"] = {"10.0.0.1"}
    missing = ("waiting", ["guest g2 does not answer at 10.0.0.2 or fd00::2"])
    assert state(host) == missing
    switch_guest(world, GuestPower.OFF)
    assert state(host) == ("up", [])
    switch_guest(world, GuestPower.ON)
    assert state(host) == missing


def switch_guest(world: World, power: GuestPower) -> None:
    """Stop or start the guest g2."""
    with world.store.change(who="root") as unit:
        guest_power.set_guest_power(unit, JOB, "g2", GuestPowerRequest(power=power))


def test_a_waiting_caller_is_answered_after_each_change(world: World, host: Agent) -> None:
    host.up(JOB)
    assert state(host) == ("waiting", [f"SBF has no cluster {JOB} on host brno-h1"])
    becoming = threading.Timer(0.2, lambda: active(world, host))
    becoming.start()
    until(lambda: state(host, wait=30)[0] == "up")
    becoming.join()


def test_a_waiting_caller_is_answered_when_fewer_parts_are_missing(world: World, host: Agent) -> None:
    """The agent answers the waiting caller as soon as the first guest answers, before the second guest answers.

    If the agent waited for both guests, the job's messages would claim for 30 s that both guests are unreachable.
    """
    active(world, host)
    answering = host.bridges.answering["br100"] = set()
    assert len(state(host)[1]) == 2
    threading.Timer(0.2, lambda: answering.add("10.0.0.1")).start()
    later = threading.Timer(6, lambda: answering.add("10.0.0.2"))
    later.start()
    assert state(host, wait=30) == ("waiting", ["guest g2 does not answer at 10.0.0.2 or fd00::2"])
    later.cancel()


def test_the_answer_contains_the_error_of_an_element(world: World, host: Agent) -> None:
    world.put(JOB, spec("brno-h1", "brno-h2", owner="root"), attempt=1)
    host.up(JOB)
    world.converge_switches()
    world.confirm("brno-h1", world.element("brno-h1").wanted_revision)
    with world.store.change(who="brno-h2") as unit:
        error_reports.record_error(unit, "brno-h2", "image debian\nis missing", timedelta(60))
    assert state(host) == ("waiting", ["host brno-h2 at brno has not confirmed (image debian is missing)"])


def test_a_cancelled_run_stays_cancelled_for_all_callers(world: World, host: Agent) -> None:
    """If the start barrier accepted a cancelled run, the MoM would start the script of a deleted job."""
    host.up(JOB)
    state(host)
    threading.Timer(0.2, lambda: host.ask("cancel", JOB, reason="qdel by alice")).start()
    answer = host.ask("state", JOB, wait=30)
    assert (answer["state"], answer["reason"]) == ("cancelled", "qdel by alice")
    active(world, host)
    assert host.ask("state", JOB)["state"] == "cancelled"


def test_a_run_cancelled_during_the_probes_is_not_up(
    world: World, host: Agent, monkeypatch: pytest.MonkeyPatch
) -> None:
    active(world, host)

    def deleted_meanwhile(_prober: FakeProber, addresses: frozenset[IpAddress], seconds: float) -> frozenset[IpAddress]:
        assert host.ask("cancel", JOB, reason="qdel")["ok"]
        return addresses

    monkeypatch.setattr(FakeProber, "probe", deleted_meanwhile)
    assert host.ask("state", JOB)["state"] == "cancelled"
    assert not host.settings.jobs.exists()


def test_an_impossible_cluster_fails_with_sbfs_reason(world: World, host: Agent) -> None:
    world.put(JOB, SPEC, attempt=1)
    host.up(JOB)
    world.clock.advance(121)
    world.sweep()
    answer = host.ask("state", JOB, wait=30)
    assert answer["state"] == "failed"
    assert answer["reason"].startswith(
        "not set up in time: host brno-h1 at brno has not confirmed (its agent has never called SBF);"
    )


def test_a_cluster_ended_by_its_user_is_reported_as_ended(world: World, host: Agent) -> None:
    active(world, host)
    world.delete(JOB)
    answer = host.ask("state", JOB, wait=30)
    assert (answer["state"], answer["reason"]) == ("ended", "ended by its user")


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
    assert world.view(JOB).state is ClusterState.DRAINING, "other elements have not confirmed the removal"


def test_an_unknown_cluster_is_gone(host: Agent) -> None:
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


def test_a_run_is_gone_when_sbf_has_a_later_one(world: World, host: Agent) -> None:
    host.up(JOB, 1)
    world.put(JOB, SPEC, attempt=2)
    detail = f"cluster {JOB}: attempt 1 is over; SBF has attempt 2"
    assert host.ask("state", JOB, 1, wait=30) == {"ok": False, "error": "gone", "detail": detail}
    assert host.ask("remove", JOB, 1, wait=30)["gone"]
    assert world.view(JOB).state is ClusterState.CONFIGURING, "the later attempt has a cluster"


def test_a_late_call_about_a_reused_job_number_changes_nothing(world: World, host: Agent) -> None:
    """The batch system was reinstalled and assigned job ID 12 again.

    A late call about the former job 12 must not change the present job 12.
    """
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
    detail = f"cluster {JOB}: at SBF, the key belongs to a cluster of another user, not of bob"
    assert host.ask("state", JOB, 4, user="bob") == {"ok": False, "error": "gone", "detail": detail}


def former(world: World, host: Agent) -> None:
    """Create and end attempt 3 of another user's job with the same ID."""
    world.put(JOB, spec("brno-h1", owner="bob"), attempt=3)
    host.ask("up", JOB, 3, user="bob")
    world.delete(JOB)
    world.settle()
    assert world.view(JOB).state is ClusterState.RELEASED


def test_a_run_waits_for_the_request_of_its_cluster(world: World, host: Agent) -> None:
    active(world, host, 1)
    host.up(JOB, 2)
    assert state(host, attempt=2) == ("waiting", [f"cluster {JOB}: SBF still has attempt 1, not yet attempt 2"])


def test_a_removed_run_cannot_be_announced_again(world: World, host: Agent) -> None:
    active(world, host)
    end_run(world, host)
    assert host.up(JOB)["error"] == "gone"
    assert host.ask("state", JOB)["state"] == "ended"


def test_an_uncounted_run_is_announced_again_after_its_removal(world: World, host: Agent) -> None:
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


def test_a_host_without_the_script_has_no_job_files(world: World, host: Agent) -> None:
    world.put(JOB, SPEC, attempt=1)
    world.settle()
    host.bridges.answering["br100"] = {"10.0.0.1", "10.0.0.2"}
    host.up(JOB, head=False)
    assert set(host.ask("state", JOB)["facts"]) == {"VCLUSTER_ID", "VCLUSTER_NAME", "VCLUSTER_VLAN", "VCLUSTER_GUESTS"}
    assert not host.settings.jobs.exists()


def test_an_announced_job_wakes_the_reconciler(host: Agent) -> None:
    host.up(JOB)
    assert host.wake_calls == ["wake"]


def test_a_job_missing_twice_is_removed(world: World, host: Agent) -> None:
    """The grace period is 0 s in this test. Another test checks the length of the grace period."""
    active(world, host)
    assert host.ask("running", clusters=[[JOB, 1]]) == {"ok": True}
    host.ask("running", clusters=[])
    assert world.view(JOB).state is ClusterState.ACTIVE
    host.ask("running", clusters=[])
    until(lambda: world.view(JOB).state is ClusterState.DRAINING)


def test_an_agent_without_the_script_forgets_a_lost_run(world: World, host: Agent) -> None:
    """For a lost run, the agent of the script's host ends the cluster. The other agents only forget the run.

    If an agent without the script receives a removal request, it nevertheless ends the cluster.
    """
    active(world, host, head=False)
    host.ask("running", clusters=[])
    host.ask("running", clusters=[])
    assert host.ask("list")["clusters"] == []
    assert world.view(JOB).state is ClusterState.ACTIVE
    host.ask("remove", JOB)
    until(lambda: world.view(JOB).state is ClusterState.DRAINING)


def test_a_lost_run_leaves_no_files_of_a_former_attempt(world: World, host: Agent) -> None:
    """The script of attempt 1 ran on this host. The script of attempt 2 runs on another host."""
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
    """The list of running jobs lacks the job, because some batch systems do not list a job before its script runs."""
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
    with monkeypatch.context() as full:
        thread = next(one for one in threading.enumerate() if one.name == "removals")
        full.setattr(
            job_record_store,
            "write_durably",
            lambda path, content: _full() if b'"gone"' in content else real(path, content),
        )
        assert host.ask("remove", "12.pbs", wait=2)["missing"] == [NO_ROOM]
        assert thread.is_alive()
    assert host.ask("remove", "12.pbs", wait=30)["gone"]


NO_ROOM = "cannot store the record of cluster 12.pbs: No space left on device"
real = job_record_store.write_durably


def _full(*_: object) -> None:
    raise OSError(errno.ENOSPC, "No space left on device")
