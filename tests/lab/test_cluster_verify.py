"""Tests of the check of a cluster's paths in the lab, with a low MTU and a removed VLAN."""

from collections.abc import Iterator
from contextlib import contextmanager

import pytest
from support.lab.clusters import create, remove

from virtcloud.client.sbf import SbfClient
from virtcloud.lab import Lab
from virtcloud.lab.snapshot import take_snapshot
from virtcloud.model.cluster import ClusterSpec
from virtcloud.model.path_check import ClusterVerification, PathResult
from virtcloud.model.views import ClusterView

pytestmark = pytest.mark.lab

HOSTS = ("brno-h1", "brno-h2", "praha-h1")


@pytest.fixture(scope="module")
def cluster(client: SbfClient) -> Iterator[ClusterView]:
    spec = ClusterSpec.model_validate({"owner": "alice", "hosts": HOSTS, "deadline_s": 60})
    yield create(client, "checked", spec)
    remove(client, "checked")


def verify(client: SbfClient) -> dict[tuple[str, str], PathResult]:
    return failed(client.verify_cluster("checked"))


def failed(found: ClusterVerification) -> dict[tuple[str, str], PathResult]:
    assert not found.unverified
    return {(path.source, path.target): path.result for path in found.failed}


@contextmanager
def mtu(lab: Lab, node: str, port: str, octets: int) -> Iterator[None]:
    former = lab.run(node, ["cat", f"/sys/class/net/{port}/mtu"], check=True).stdout.strip()
    lab.run(node, ["ip", "link", "set", port, "mtu", str(octets)], check=True)
    try:
        yield
    finally:
        lab.run(node, ["ip", "link", "set", port, "mtu", former], check=True)


def test_full_packets_pass_between_all_hosts(client: SbfClient, cluster: ClusterView) -> None:
    found = client.verify_cluster(cluster.key)
    assert (failed(found), len(found.paths), found.mtu) == ({}, 6, 1500)


def test_the_check_leaves_nothing_on_hosts_and_switches(lab: Lab, client: SbfClient, cluster: ClusterView) -> None:
    before = take_snapshot(lab, lab.topology)
    client.verify_cluster(cluster.key)
    assert take_snapshot(lab, lab.topology) == before


def test_a_lower_mtu_fails_all_paths_across_the_link(lab: Lab, client: SbfClient, cluster: ClusterView) -> None:
    assert cluster
    with mtu(lab, "praha-sw1", "uplink", 1400):
        found = client.verify_cluster("checked")
    assert {path.result for path in found.failed} == {PathResult.ONLY_SMALL}
    assert {path.source for path in found.failed} | {path.target for path in found.failed} == set(HOSTS)
    assert ("brno-h1", "brno-h2") not in failed(found)
    (section,) = [path.section for path in found.failed if (path.source, path.target) == ("praha-h1", "brno-h1")]
    assert section is not None
    assert "praha-sw1:uplink" in section.ports


def test_the_check_locates_a_vlan_that_was_removed_by_hand(lab: Lab, client: SbfClient, cluster: ClusterView) -> None:
    vlan = cluster.vlans["brno"]
    for _ in range(5):  # if SBF corrects the switch before the check, the next pass removes the VLAN again
        lab.run("brno-sw1", ["bridge", "vlan", "del", "dev", "p1", "vid", str(vlan)], check=True)
        found = client.verify_cluster("checked")
        if found.failed:
            break
    lost = [("brno-h1", "brno-h2"), ("brno-h1", "praha-h1"), ("brno-h2", "brno-h1"), ("praha-h1", "brno-h1")]
    assert failed(found) == dict.fromkeys(lost, PathResult.NOTHING_PASSES)
    assert found.notes == (
        f"switch brno-sw1: VLAN {vlan} is missing on p1; SBF corrects this when it next reads the device",
    )
    client.reconcile("brno-sw1")
    assert verify(client) == {}
