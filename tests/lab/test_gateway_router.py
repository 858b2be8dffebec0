"""A gateway of a real lab is the router of two identical clusters.

The lab's kernel has nftables for bridges only. Therefore these tests do not check which external destinations a guest
reaches. `tests/unit/agent/gateway/test_outside_routing.py` contains the tests of external destinations.
"""

import time
from collections.abc import Iterator

import pytest
from support.lab.clusters import create, pings, remove
from support.lab.vpn import GATEWAY, GUEST, GUEST_MAC, HOST

from virtcloud.client.sbf import SbfClient
from virtcloud.lab import Lab
from virtcloud.lab.demo.context import ENTER_CONTAINER
from virtcloud.lab.snapshot import read_guests
from virtcloud.model.cluster import ClusterSpec
from virtcloud.model.guest_spec import Guest
from virtcloud.model.values import Address
from virtcloud.model.views import ClusterView

pytestmark = pytest.mark.lab

ROUTER, SUBNETS = "10.0.0.250", ("10.0.0.0/24",)
KEYS = "router-a", "router-b"
LIMIT_S = 60.0
LIST = "ls /run/virtcloud/namespaces; ip -br link | grep -o '^vg[0-9]*'; true"


def make_spec() -> ClusterSpec:
    guest = Guest(
        name="g1", host=HOST, image="busybox", memory_mb=64, mac=GUEST_MAC, addresses=(Address(f"{GUEST}/24"),)
    )
    addresses = (Address(f"{ROUTER}/24"),)
    return ClusterSpec(owner="alice", guests=(guest,), subnets=SUBNETS, router="gateway", router_addresses=addresses)


@pytest.fixture(scope="module")
def clusters(client: SbfClient) -> Iterator[list[ClusterView]]:
    yield [create(client, key, make_spec()) for key in KEYS]
    remove(client, *(key for key in KEYS if client.cluster(key).placements))


def reaches(lab: Lab, view: ClusterView) -> bool:
    return bool(pings(lab, view, 0, "-c1", "-W1", ROUTER))


def wait_until_reached(lab: Lab, view: ClusterView) -> None:
    deadline = time.monotonic() + LIMIT_S
    while not reaches(lab, view):
        assert time.monotonic() < deadline, lab.run(GATEWAY, ("sh", "-c", LIST)).stdout
        time.sleep(0.2)


def test_a_guest_has_a_default_route_to_the_router(lab: Lab, clusters: list[ClusterView]) -> None:
    domain = next(name for name in read_guests(lab, HOST) if clusters[0].id in name)
    route = lab.run(HOST, ("sh", "-c", ENTER_CONTAINER, domain, "/bin/ip", "route"), check=True).stdout
    assert f"default via {ROUTER} dev eth0" in route


def test_identical_clusters_have_routers_of_their_own(lab: Lab, clusters: list[ClusterView]) -> None:
    first = f"/run/virtcloud/namespaces/{clusters[0].id}"
    assert [reaches(lab, view) for view in clusters] == [True, True]
    lab.run(GATEWAY, ("nsenter", f"--net={first}", "ip", "link", "set", "eth0", "down"), check=True)
    assert [reaches(lab, view) for view in clusters] == [False, True]
    lab.run(GATEWAY, ("nsenter", f"--net={first}", "ip", "link", "set", "eth0", "up"), check=True)


def test_a_router_answers_while_its_agent_is_dead(lab: Lab, clusters: list[ClusterView]) -> None:
    lab.service(GATEWAY, "agent").stop()
    answers = [reaches(lab, view) for view in clusters]
    lab.service(GATEWAY, "agent").start()
    assert answers == [True, True]


def test_a_router_answers_again_after_a_reboot(lab: Lab, clusters: list[ClusterView]) -> None:
    lab.power_off(GATEWAY)
    lab.power_on(GATEWAY)
    for view in clusters:
        wait_until_reached(lab, view)
    assert [reaches(lab, view) for view in clusters] == [True, True]


def test_ended_clusters_leave_nothing_on_the_gateway(lab: Lab, client: SbfClient, clusters: list[ClusterView]) -> None:
    remove(client, *KEYS)
    assert lab.run(GATEWAY, ("sh", "-c", LIST)).stdout == ""
