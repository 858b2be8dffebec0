"""Hosts join and leave a running network in the lab without loss of frames."""

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest
from support.lab.clusters import active, create, remove, until
from support.lab.pings import pinging

from virtcloud.client.sbf import SbfClient
from virtcloud.lab import Lab
from virtcloud.lab.snapshot import Snapshot, take_snapshot
from virtcloud.model.cluster import ENDED_STATES, ClusterRequest, ClusterSpec
from virtcloud.model.views import ClusterView

pytestmark = pytest.mark.lab


@pytest.fixture(scope="module")
def before(lab: Lab, client: SbfClient) -> Snapshot:
    assert not client.clusters()
    return take_snapshot(lab, lab.topology)


@pytest.fixture
def network(client: SbfClient, before: Snapshot) -> Iterator[ClusterView]:
    """A network of two hosts at Brno. Its VLAN ID is free at all sites, so hosts of any site can join."""
    assert before
    yield create(client, "root", spec("brno-h1", "brno-h2", first=1, name="ring", vlan=125))
    remove(client, "root")
    assert not client.clusters()


def spec(*hosts: str, first: int, **changes: object) -> ClusterSpec:
    guests = [
        {"name": f"n{i}", "host": host, "image": "busybox", "memory_mb": 32, "addresses": [f"10.0.0.{i}/24"]}
        for i, host in enumerate(hosts, start=first)
    ]
    return ClusterSpec.model_validate({"owner": "alice", "guests": guests, "deadline_s": 60} | changes)


def member(*hosts: str, first: int) -> ClusterSpec:
    return spec(*hosts, first=first, joins="ring")


def test_no_frame_is_lost_while_members_join_and_leave(
    lab: Lab, client: SbfClient, network: ClusterView, before: Snapshot
) -> None:
    without_members = take_snapshot(lab, lab.topology)
    with pinging(lab, network, 0, "10.0.0.2") as pings, ThreadPoolExecutor() as pool:
        here = pool.submit(create, client, "here", member("brno-h1", first=11))
        there = pool.submit(create, client, "there", member("praha-h1", first=21))
        assert here.result().vlans["brno"] == there.result().vlans["praha"] == network.vlans["brno"]
        with pinging(lab, there.result(), 0, "10.0.0.1") as pings_of_member:
            removal = pool.submit(remove, client, "here")
            create(client, "far", member("plzen-h1", "brno-h2", first=31))
            removal.result()
        remove(client, "there", "far")
    assert (pings.lost, pings.sent > 25) == ([], True)
    assert (pings_of_member.lost, pings_of_member.sent > 0) == ([], True)
    assert take_snapshot(lab, lab.topology) == without_members
    create(client, "last", member("praha-h1", first=41))
    remove(client, "root")
    assert client.cluster("last").state in ENDED_STATES
    assert take_snapshot(lab, lab.topology) == before


def test_no_frame_is_lost_while_sbf_and_agents_fail(lab: Lab, client: SbfClient, network: ClusterView) -> None:
    sbf, agent = lab.service("station", "sbf"), lab.service("praha-h1", "agent")
    with pinging(lab, network, 0, "10.0.0.2") as pings:
        agent.stop()
        client.put_cluster("dead", ClusterRequest(spec=spec("praha-h1", first=11, joins="ring", deadline_s=2)))
        until(client, "dead", lambda view: view.state in {"failing", *ENDED_STATES})
        client.put_cluster("joins", ClusterRequest(spec=member("praha-h2", "plzen-h1", first=21)))
        sbf.kill()
        sbf.start()
        until(client, "joins", active)
        client.delete_cluster("joins")
        sbf.kill()
        sbf.start()
        agent.start()
        remove(client, "joins", "dead")
    assert (pings.lost, pings.sent > 25) == ([], True)
