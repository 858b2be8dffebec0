"""Torque's scripts in the lab, run as Torque's MoMs run them, with real agents, guests, switches and SBF."""

import time
from collections.abc import Iterator

import pytest
from batch_fakes.torque_moms import FACTS, MOM_PRIV, USER, TorqueJob, TorqueMoms, await_that, moms
from click.testing import CliRunner
from lab_clusters import ended, pings, until

import sbf_command
from virtcloud.client.sbf import SbfClient
from virtcloud.lab import Lab
from virtcloud.lab.snapshot import take_snapshot
from virtcloud.model.cluster import ClusterState
from virtcloud.model.errors import NotFound

pytestmark = pytest.mark.lab

HOSTS = ("brno-h1", "brno-h2", "praha-h1")
REQUEST = "other=vcluster=image=busybox:subnet=10.0.0.0/24"


@pytest.fixture(scope="module")
def client(lab: Lab) -> Iterator[SbfClient]:
    with SbfClient(f"unix://{lab.sbf_socket}") as made:
        yield made


@pytest.fixture(scope="module")
def torque(lab: Lab, client: SbfClient) -> Iterator[TorqueMoms]:
    with moms(lab, client, *HOSTS) as made:
        yield made


def job(number: int, *hosts: str, request: str = REQUEST) -> TorqueJob:
    return TorqueJob(f"{number}.Torque", hosts, f"neednodes=x,nodes={len(hosts)}:ppn=2,walltime=01:00:00,{request}")


def state(client: SbfClient, wanted: TorqueJob) -> ClusterState | None:
    try:
        return client.cluster(wanted.key).state
    except NotFound:
        return None


def gone(client: SbfClient, wanted: TorqueJob) -> bool:
    return ended(until(client, wanted.key, ended))


def test_a_cluster_lasts_from_prologue_to_epilogue(torque: TorqueMoms, lab: Lab, client: SbfClient) -> None:
    """A job over two sites leaves nothing, and each script can be run again."""
    mine, before = job(1, "brno-h1", "praha-h1"), take_snapshot(lab, lab.topology)
    started = torque.start(mine)
    assert (started.returncode, started.stderr) == (0, "")
    view = client.cluster(mine.key)
    assert (view.state, view.spec.owner, view.spec.all_hosts) == (ClusterState.ACTIVE, USER, ("brno-h1", "praha-h1"))
    assert pings(lab, view, 0, "-c", "1", "-W", "5", "10.0.0.2")
    assert f"export MAGRATHEA_VLANID={view.vlans['brno']}\n" in torque.facts(mine)
    assert "export VCLUSTER_GUESTS='g1 g2'\n" in torque.facts(mine)
    assert torque.end(mine) == [0, 0]
    assert gone(client, mine)
    assert torque.end(mine) == [0, 0]
    assert torque.shell("brno-h1", f"ls {FACTS}") == ""
    assert take_snapshot(lab, lab.topology).describe_changes(before) == ""


def test_the_next_run_removes_what_a_killed_prologue_left(torque: TorqueMoms, client: SbfClient) -> None:
    """Torque kills a prologue at its time limit, perhaps without an epilogue, and runs the job again on other hosts."""
    first = job(2, "brno-h1", "brno-h2")
    torque.sisters(first)
    killed = torque.threads.submit(torque.script, "brno-h1", "prologue", first)
    await_that(lambda: state(client, first) is not None, "the cluster", lambda: time.sleep(0.02))
    torque.shell("brno-h1", f"kill -9 $(pgrep -f '{MOM_PRIV}/[p]rologue 2.Torque')")
    assert killed.result().returncode != 0
    again = job(2, "brno-h2", "praha-h1")
    assert torque.start(again).returncode == 0
    view = client.cluster(again.key)
    assert (view.attempt, view.state, view.spec.all_hosts) == (2, ClusterState.ACTIVE, ("brno-h2", "praha-h1"))
    torque.end(again)
    assert gone(client, again)


def test_a_job_that_is_deleted_during_set_up_never_runs(torque: TorqueMoms, lab: Lab, client: SbfClient) -> None:
    mine = job(3, "brno-h1", "brno-h2")
    lab.service("brno-h2", "libvirtd").stop()
    try:
        starting = torque.starting(mine)
        await_that(lambda: state(client, mine) is not None, "the cluster", lambda: time.sleep(0.02))
        assert torque.precancel(mine) == 0
        ran = starting.result(30)
    finally:
        lab.service("brno-h2", "libvirtd").start()
    assert ran.returncode == 1
    assert "the job was deleted while its cluster was being set up" in ran.stderr
    assert torque.end(mine) == [0, 0]
    assert gone(client, mine)


def test_an_epilogue_ends_the_wait_of_a_deleted_job(torque: TorqueMoms, lab: Lab, client: SbfClient) -> None:
    mine = job(4, "brno-h1", "brno-h2")
    lab.service("brno-h2", "libvirtd").stop()
    try:
        starting = torque.starting(mine)
        await_that(lambda: state(client, mine) is not None, "the cluster", lambda: time.sleep(0.02))
        torque.script("brno-h1", "epilogue", mine)
        ran = starting.result(30)
    finally:
        lab.service("brno-h2", "libvirtd").start()
    assert ran.returncode == 1
    assert gone(client, mine)


def test_a_late_host_is_named_and_the_job_requeued(torque: TorqueMoms, lab: Lab, client: SbfClient) -> None:
    mine = job(5, "brno-h1", "brno-h2")
    torque.sisters(mine)
    torque.set_patience("brno-h1", 4)
    lab.service("brno-h2", "agent").kill()
    try:
        ran = torque.script("brno-h1", "prologue", mine)
    finally:
        lab.service("brno-h2", "agent").start()
        torque.set_patience("brno-h1", 60)
    assert ran.returncode == 2
    assert "host brno-h2 at brno has not confirmed" in ran.stderr
    assert ran.stderr.endswith("the job will be tried again\n")
    assert torque.end(mine) == [0, 0]
    assert gone(client, mine)


def test_a_job_joins_a_running_network_with_the_old_resource(torque: TorqueMoms, lab: Lab, client: SbfClient) -> None:
    root = job(6, "brno-h1", request=f"{REQUEST}:name=lab")
    other = job(7, "brno-h2", request="net=lab")
    assert torque.start(root).returncode == 0
    ran = torque.start(other)
    assert (ran.returncode, ran.stderr) == (0, "")
    number = client.cluster(root.key).vlans["brno"]
    assert client.cluster(other.key).network == root.key
    assert f"export MAGRATHEA_VLANID={number}\n" in torque.facts(other)
    assert f"br{number}" in torque.shell("brno-h2", "ip -brief link")
    assert torque.end(other) == [0]
    assert state(client, root) is ClusterState.ACTIVE
    assert torque.end(root) == [0]
    assert gone(client, root)


def test_an_old_scheduler_creates_a_network_for_a_job(lab: Lab, client: SbfClient) -> None:
    before = take_snapshot(lab, lab.topology)

    def sbf(*words: str) -> tuple[int, str]:
        done = CliRunner().invoke(sbf_command.main, ["-q", "--url", f"unix://{lab.sbf_socket}", *words])
        return done.exit_code, done.stdout

    number = sbf("requestvlan", "Old4711")[1].strip()
    assert number == str(client.cluster("old4711").vlans["brno"])
    assert sbf("addhosts", "Old4711", "brno-h1", "praha-h1") == (0, "")
    assert f"br{number}" in lab.run("praha-h1", ("ip", "-brief", "link")).stdout
    assert sbf("addhosts", "Old4711", "brno-h1", "no-such")[0] != 0
    assert f"<tag>{number}</tag>\n    <host>brno-h1</host>\n    <host>praha-h1</host>\n" in sbf("dumpstate")[1]
    assert sbf("releasevlan", "Old4711")[0] == 1
    assert sbf("removehosts", "Old4711", "brno-h1") == (0, "")
    assert f"br{number}" not in lab.run("brno-h1", ("ip", "-brief", "link")).stdout
    assert sbf("forcereleasevlan", "Old4711") == sbf("forcereleasevlan", "Old4711") == (0, "")
    assert take_snapshot(lab, lab.topology).describe_changes(before) == ""
