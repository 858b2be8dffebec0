import random
import shutil
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest
from support.lab.clusters import active, ended, remove, until

from virtcloud.client.sbf import SbfClient
from virtcloud.lab import Lab
from virtcloud.lab.snapshot import Snapshot, take_snapshot
from virtcloud.model.cluster import ENDED_STATES, LEAVING_STATES, ClusterRequest, ClusterSpec, ClusterState
from virtcloud.model.element_views import Pool
from virtcloud.model.errors import Conflict, NotFound, NoVlanFree, ServiceUnreachable
from virtcloud.model.guest_spec import Guest
from virtcloud.model.topology import Topology
from virtcloud.model.views import ClusterView

pytestmark = pytest.mark.lab

HOSTS = ("brno-h1", "praha-h1", "plzen-h1")
LIMIT_S = 60.0
KILLS = 20
KILLS_EACH = 4
"""The number of kills in one test. It is even, because kills during creation and deletion alternate."""


@pytest.fixture
def client(lab: Lab) -> Iterator[SbfClient]:
    with SbfClient(f"unix://{lab.sbf_socket}") as client:
        yield client


@pytest.fixture
def topology(client: SbfClient) -> Topology:
    return client.topology()


@pytest.fixture
def before(lab: Lab, client: SbfClient, topology: Topology) -> Snapshot:
    assert not [view.key for view in client.clusters()]
    return take_snapshot(lab, topology)


def spec(**changes: object) -> ClusterSpec:
    return ClusterSpec.model_validate({"owner": "alice", "hosts": HOSTS, "deadline_s": 60, **changes})


def guests() -> tuple[Guest, ...]:
    return tuple(
        Guest(name=f"n{i}", host=host, image="busybox", memory_mb=32, addresses=(f"10.0.0.{i}/24",))
        for i, host in enumerate(HOSTS, start=1)
    )


def changed_switches(seen: Snapshot, former: Snapshot) -> dict[str, dict[str, str]]:
    return {name: ports for name, ports in seen.switches.items() if ports != former.switches[name]}


def expected(view: ClusterView, topology: Topology) -> dict[str, dict[str, str]]:
    return {
        site.switches[0].name: {port: str(view.vlans[site.name]) for port in ("p1", "uplink")}
        for site in topology.sites
    }


@pytest.mark.parametrize("first", range(0, KILLS, KILLS_EACH))
def test_sbf_killed_at_random_moments_recovers_after_each_restart(
    lab: Lab, client: SbfClient, topology: Topology, before: Snapshot, first: int
) -> None:
    generator = random.Random(2009)
    moments = [generator.uniform(0, 1.2) for _ in range(KILLS)]
    key = f"k{first}"
    sbf = lab.service("station", "sbf")
    request = ClusterRequest(spec=spec())
    for round_number in range(first, first + KILLS_EACH):
        creating = round_number % 2 == 0
        with ThreadPoolExecutor() as pool:
            call = (
                pool.submit(client.put_cluster, key, request) if creating else pool.submit(client.delete_cluster, key)
            )
            time.sleep(moments[round_number])  # a random moment
            sbf.kill()
            lost = isinstance(call.exception(), ServiceUnreachable)
        sbf.start()
        if creating:
            assert client.put_cluster(key, request).attempt == (round_number - first) // 2
            view = until(client, key, active)
            assert changed_switches(take_snapshot(lab, topology), before) == expected(view, topology), (
                f"round {round_number}, answer lost: {lost}"
            )
        else:
            remove(client, key)
            assert take_snapshot(lab, topology) == before, f"round {round_number}, answer lost: {lost}"


def test_ten_of_fifty_clusters_are_refused_with_forty_vlan_ids(
    lab: Lab, client: SbfClient, topology: Topology, before: Snapshot
) -> None:
    pools = {site.name: client.pool(site.name) for site in topology.sites}
    for site in pools:
        client.put_pool(site, Pool.model_validate({"vlans": "120-159"}))
    keys = [f"c{number}" for number in range(50)]

    def create(key: str) -> str | None:
        with SbfClient(f"unix://{lab.sbf_socket}", timeout=60) as own:
            try:
                own.put_cluster(key, ClusterRequest(spec=spec(deadline_s=300)))
            except NoVlanFree as refusal:
                return str(refusal)
        return None

    try:
        with ThreadPoolExecutor(max_workers=50) as pool:
            answers = list(pool.map(create, keys))
        refusals = [answer for answer in answers if answer]
        assert len(refusals) == 10
        assert all(refusal.startswith("no VLAN is free at every site (brno, praha, plzen): ") for refusal in refusals)
        accepted = [key for key, answer in zip(keys, answers, strict=True) if not answer]
        views = [until(client, key, active) for key in accepted]
        assert sorted(view.vlans["brno"] for view in views) == list(range(120, 160))
        assert all(len(set(view.vlans.values())) == 1 for view in views)
        for name, ports in changed_switches(take_snapshot(lab, topology), before).items():
            assert ports == {"p1": "120-159", "uplink": "120-159"}, name
    finally:
        for view in client.clusters():
            client.delete_cluster(view.key)
        for view in client.clusters():
            until(client, view.key, ended)
        for site, former_pool in pools.items():
            client.put_pool(site, former_pool)
    assert take_snapshot(lab, topology) == before


def test_an_agent_killed_during_creation_continues_after_its_restart(
    lab: Lab, client: SbfClient, topology: Topology, before: Snapshot
) -> None:
    agent = lab.service("praha-h1", "agent")
    view = client.put_cluster("a", ClusterRequest(spec=spec(guests=guests())))
    agent.kill()
    agent.start()
    view = until(client, "a", active)
    assert len(take_snapshot(lab, topology).guests["praha-h1"]) == 1
    remove(client, view.key)
    assert take_snapshot(lab, topology) == before


def test_a_dead_guest_is_restarted(lab: Lab, client: SbfClient, topology: Topology, before: Snapshot) -> None:
    client.put_cluster("g", ClusterRequest(spec=spec(guests=guests())))
    until(client, "g", active)
    running = take_snapshot(lab, topology)
    domain = running.guests["brno-h1"][0]
    agent = lab.service("brno-h1", "agent")
    agent.kill()
    lab.run("brno-h1", ["virsh", "-c", "lxc:///system", "destroy", domain], check=True)
    agent.start()
    deadline = time.monotonic() + LIMIT_S
    while take_snapshot(lab, topology).guests != running.guests:
        assert time.monotonic() < deadline, "the guest was not started again"
        time.sleep(0.5)  # more snapshots would delay the agent: each takes a second of processor time
    until(client, "g", active)
    remove(client, "g")
    assert take_snapshot(lab, topology) == before


def test_a_vlan_id_stays_quarantined_while_a_switch_is_unreachable(
    lab: Lab, client: SbfClient, topology: Topology, before: Snapshot
) -> None:
    view = client.put_cluster("q", ClusterRequest(spec=spec()))
    view = until(client, "q", active)
    vlan = view.vlans["brno"]
    lab.run("praha-sw1", ["ip", "link", "set", "mgmt0", "down"], check=True)
    try:
        client.delete_cluster("q")
        view = until(client, "q", lambda seen: seen.state in ENDED_STATES | LEAVING_STATES)
        assert all(vlan not in site.free for site in client.sites())
    finally:
        lab.run("praha-sw1", ["ip", "link", "set", "mgmt0", "up"], check=True)
    until(client, "q", ended)
    assert all(vlan in site.free for site in client.sites())
    assert take_snapshot(lab, topology) == before


def test_a_failed_removal_at_a_host_delays_no_new_cluster(
    lab: Lab, client: SbfClient, topology: Topology, before: Snapshot
) -> None:
    old = client.put_cluster("old", ClusterRequest(spec=spec()))
    old = until(client, "old", active)
    bridge = f"br{old.vlans['brno']}"
    lab.run("brno-h1", ["ip", "link", "add", "foreign0", "master", bridge, "type", "dummy"], check=True)
    try:
        client.delete_cluster("old")
        client.put_cluster("new", ClusterRequest(spec=spec(owner="bob")))
        new = until(client, "new", lambda seen: seen.state not in {ClusterState.REQUESTED, ClusterState.CONFIGURING})
        (trouble,) = (part.trouble for part in client.cluster("old").placements if part.element == "brno-h1")
        assert (new.state, client.cluster("old").state) == (ClusterState.ACTIVE, ClusterState.DRAINING)
        assert "foreign0" in str(trouble)
        assert set(old.vlans.values()).isdisjoint(new.vlans.values())
    finally:
        lab.run("brno-h1", ["ip", "link", "delete", "foreign0"], check=True)
    until(client, "old", ended)
    remove(client, "new")
    assert take_snapshot(lab, topology) == before


def test_a_repeated_call_is_idempotent_and_another_spec_conflicts(client: SbfClient, before: Snapshot) -> None:
    first = client.put_cluster("same", ClusterRequest(spec=spec()))
    until(client, "same", active)
    again = client.put_cluster("same", ClusterRequest(spec=spec()))
    assert (again.id, again.attempt, again.vlans) == (first.id, first.attempt, first.vlans)
    with pytest.raises(Conflict, match="lease_s"):
        client.put_cluster("same", ClusterRequest(spec=spec(lease_s=60)))
    remove(client, "same")


def test_an_unknown_host_is_refused_without_a_claim(client: SbfClient, before: Snapshot) -> None:
    with pytest.raises(NotFound, match="host ostrava-h1 is not known"):
        client.put_cluster("x", ClusterRequest(spec=spec(hosts=("ostrava-h1",))))
    assert not any(site.claimed for site in client.sites())


def test_a_missing_image_fails_the_cluster_before_its_deadline(
    lab: Lab, client: SbfClient, topology: Topology, before: Snapshot
) -> None:
    wrong = Guest(name="n1", host="brno-h1", image="nosuch")
    client.put_cluster("w", ClusterRequest(spec=spec(guests=(wrong,), deadline_s=3600)))
    view = until(client, "w", ended)
    assert view.state is ClusterState.FAILED
    assert view.reason.startswith("host brno-h1 at brno refused: could not start n1: image nosuch: cannot read ")
    assert take_snapshot(lab, topology) == before


def test_a_malformed_image_fails_the_cluster_before_its_deadline(
    lab: Lab, client: SbfClient, topology: Topology, before: Snapshot
) -> None:
    broken = lab.state.folder / "images/broken"
    broken.mkdir(exist_ok=True)
    (broken / "image.yaml").write_text("kind: qcow2\n")
    wrong = Guest(name="n1", host="brno-h1", image="broken")
    started_at = time.monotonic()
    try:
        client.put_cluster("m", ClusterRequest(spec=spec(guests=(wrong,), deadline_s=3600)))
        view = until(client, "m", ended)
    finally:
        shutil.rmtree(broken)  # other test modules use the same lab
    assert view.state is ClusterState.FAILED
    assert "image broken: its description is malformed: " in str(view.reason)
    assert "kind: expected 'lxc' or 'qemu', got 'qcow2'" in str(view.reason)
    assert time.monotonic() - started_at < 30, (
        "expected the cluster to fail within 30 s, not at its deadline of an hour; a busy machine takes a few seconds"
    )
    assert take_snapshot(lab, topology) == before
