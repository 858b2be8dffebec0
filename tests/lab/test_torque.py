import time
from collections.abc import Iterator

import pytest
from click.testing import CliRunner
from support.batch_fakes.torque_moms import FACTS, MOM_PRIV, USER, TorqueJob, TorqueMoms, await_that, moms
from support.lab.clusters import ended, pings, until

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


def state_of(client: SbfClient, wanted: TorqueJob) -> ClusterState | None:
    try:
        return client.cluster(wanted.key).state
    except NotFound:
        return None


def has_ended(client: SbfClient, wanted: TorqueJob) -> bool:
    return ended(until(client, wanted.key, ended))


def test_the_prologue_creates_a_cluster_and_the_epilogue_ends_it(
    torque: TorqueMoms, lab: Lab, client: SbfClient
) -> None:
    own_job, before = job(1, "brno-h1", "praha-h1"), take_snapshot(lab, lab.topology)
    started = torque.start(own_job)
    assert (started.returncode, started.stderr) == (0, "")
    view = client.cluster(own_job.key)
    assert (view.state, view.spec.owner, view.spec.all_hosts) == (ClusterState.ACTIVE, USER, ("brno-h1", "praha-h1"))
    assert pings(lab, view, 0, "-c", "1", "-W", "5", "10.0.0.2")
    assert f"export MAGRATHEA_VLANID={view.vlans['brno']}\n" in torque.facts(own_job)
    assert "export VCLUSTER_GUESTS='g1 g2'\n" in torque.facts(own_job)
    assert torque.end(own_job) == [0, 0]
    assert has_ended(client, own_job)
    assert torque.end(own_job) == [0, 0]
    assert torque.shell("brno-h1", f"ls {FACTS}") == ""
    assert take_snapshot(lab, lab.topology).describe_changes(before) == ""


def test_the_next_run_removes_the_remains_of_a_killed_prologue(torque: TorqueMoms, client: SbfClient) -> None:
    """Torque kills a prologue at its time limit, may omit the epilogue, and runs the job again on other hosts."""
    first = job(2, "brno-h1", "brno-h2")
    torque.sisters(first)
    killed = torque.threads.submit(torque.script, "brno-h1", "prologue", first)
    await_that(lambda: state_of(client, first) is not None, "the cluster", lambda: time.sleep(0.02))
    torque.shell("brno-h1", f"kill -9 $(pgrep -f '{MOM_PRIV}/[p]rologue 2.Torque')")
    assert killed.result().returncode != 0
    again = job(2, "brno-h2", "praha-h1")
    assert torque.start(again).returncode == 0
    view = client.cluster(again.key)
    assert (view.attempt, view.state, view.spec.all_hosts) == (2, ClusterState.ACTIVE, ("brno-h2", "praha-h1"))
    torque.end(again)
    assert has_ended(client, again)


def test_a_job_that_is_deleted_during_set_up_never_runs(torque: TorqueMoms, lab: Lab, client: SbfClient) -> None:
    own_job = job(3, "brno-h1", "brno-h2")
    lab.service("brno-h2", "libvirtd").stop()
    try:
        starting = torque.start_in_thread(own_job)
        await_that(lambda: state_of(client, own_job) is not None, "the cluster", lambda: time.sleep(0.02))
        assert torque.precancel(own_job) == 0
        prologue = starting.result(30)
    finally:
        lab.service("brno-h2", "libvirtd").start()
    assert prologue.returncode == 1
    assert "the job was deleted while its cluster was being set up" in prologue.stderr
    assert torque.end(own_job) == [0, 0]
    assert has_ended(client, own_job)


def test_the_epilogue_of_a_deleted_job_ends_the_prologues_wait(torque: TorqueMoms, lab: Lab, client: SbfClient) -> None:
    own_job = job(4, "brno-h1", "brno-h2")
    lab.service("brno-h2", "libvirtd").stop()
    try:
        starting = torque.start_in_thread(own_job)
        await_that(lambda: state_of(client, own_job) is not None, "the cluster", lambda: time.sleep(0.02))
        torque.script("brno-h1", "epilogue", own_job)
        prologue = starting.result(30)
    finally:
        lab.service("brno-h2", "libvirtd").start()
    assert prologue.returncode == 1
    assert has_ended(client, own_job)


def test_a_host_without_agent_is_named_and_the_job_requeued(torque: TorqueMoms, lab: Lab, client: SbfClient) -> None:
    own_job = job(5, "brno-h1", "brno-h2")
    torque.sisters(own_job)
    torque.set_patience("brno-h1", 4)
    lab.service("brno-h2", "agent").kill()
    try:
        prologue = torque.script("brno-h1", "prologue", own_job)
    finally:
        lab.service("brno-h2", "agent").start()
        torque.set_patience("brno-h1", 60)
    assert prologue.returncode == 2
    assert "host brno-h2 at brno has not confirmed" in prologue.stderr
    assert prologue.stderr.endswith("the job will be tried again\n")
    assert torque.end(own_job) == [0, 0]
    assert has_ended(client, own_job)


def test_a_job_with_the_old_resource_net_joins_a_network(torque: TorqueMoms, lab: Lab, client: SbfClient) -> None:
    root = job(6, "brno-h1", request=f"{REQUEST}:name=lab")
    other = job(7, "brno-h2", request="net=lab")
    assert torque.start(root).returncode == 0
    prologue = torque.start(other)
    assert (prologue.returncode, prologue.stderr) == (0, "")
    number = client.cluster(root.key).vlans["brno"]
    assert client.cluster(other.key).network == root.key
    assert f"export MAGRATHEA_VLANID={number}\n" in torque.facts(other)
    assert f"br{number}" in torque.shell("brno-h2", "ip -brief link")
    assert torque.end(other) == [0]
    assert state_of(client, root) is ClusterState.ACTIVE
    assert torque.end(root) == [0]
    assert has_ended(client, root)


def test_commands_of_an_old_scheduler_create_and_remove_a_network(lab: Lab, client: SbfClient) -> None:
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
