"""A guest with root inside attacks the site's switch. The switch receives only the guest's ordinary frames."""

import sys
import time
from collections.abc import Iterator

import pytest
from lab_capture import capturing
from lab_clusters import create, pings, remove

from virtcloud.agent.network import names
from virtcloud.client.sbf import SbfClient
from virtcloud.lab import Lab
from virtcloud.lab.demo.context import ENTER_CONTAINER
from virtcloud.lab.snapshot import read_guests
from virtcloud.model.cluster import ClusterSpec, ClusterState, Guest
from virtcloud.model.views import ClusterView

pytestmark = pytest.mark.lab

HOST, SWITCH, PORT = "brno-h1", "brno-sw1", "p1"
LIMIT_S = 90.0
"""The agent reads its host every 30 s."""
ENTER_NETWORK = ENTER_CONTAINER.replace(" -n -m -u ", " -n ")
ATTACK = """
import socket
guest = socket.socket(socket.AF_PACKET, socket.SOCK_RAW)
guest.bind(("eth0", 0))
own, foreign, other = guest.getsockname()[4].hex(), "02000000bad1", "02000000bad2"
frames = [
    "0180c2000000" + own + "0026424203" + "00" * 35,
    "01000ccccccd" + own + "0032aaaa0300000c010b" + "00" * 42,
    "01000ccccccc" + own + "0020aaaa0300000c2000" + "00" * 24,
    other + own + "88cc",
    other + own + "8809",
    other + own + "81000065" + "88b5",
    other + own + "88a80065" + "88b5",
    other + foreign + "88b5",
    other + own + "88b5",
]
for frame in frames:
    guest.send(bytes.fromhex(frame).ljust(60, b"\\0"))
"""
PARTS = (
    "01:80:c2:00:00:00",
    "01:00:0c:cc:cc:cd",
    "01:00:0c:cc:cc:cc",
    "0x88cc",
    "Slow Protocols",
    ", vlan 101,",
    "02:00:00:00:ba:d1",
)
"""What tcpdump prints of the forbidden frames. Both tagged frames have VLAN ID 101 below the cluster's tag."""


@pytest.fixture(scope="module")
def client(lab: Lab) -> Iterator[SbfClient]:
    with SbfClient(f"unix://{lab.sbf_socket}", timeout=60) as client:
        yield client


@pytest.fixture(scope="module")
def cluster(client: SbfClient) -> Iterator[ClusterView]:
    """A cluster with a guest at each of two sites."""
    hosts = (HOST, "praha-h1")
    guests = tuple(
        Guest(name=f"n{i}", host=host, image="busybox", memory_mb=32, addresses=(f"10.0.0.{i}/24",))
        for i, host in enumerate(hosts, 1)
    )
    yield create(client, "attacker", ClusterSpec(owner="eva", guests=guests))
    remove(client, "attacker")


def attack(lab: Lab, cluster: ClusterView) -> str:
    """Send each frame from the guest on brno-h1. Return the frames that the switch receives."""
    (domain,) = (name for name in read_guests(lab, HOST) if cluster.id in name)
    with capturing(lab, SWITCH, PORT, "ether host 02:00:00:00:ba:d2 or ether[0] = 1") as capture:
        lab.run(HOST, ("sh", "-c", ENTER_NETWORK, domain, sys.executable, "-c", ATTACK), check=True)
    return capture.text


def test_no_forbidden_frame_of_a_guest_reaches_the_switch(lab: Lab, cluster: ClusterView) -> None:
    received = attack(lab, cluster)
    assert [part for part in PARTS if part in received] == []
    assert received.count("> 02:00:00:00:ba:d2") == 1, received
    assert pings(lab, cluster, 0, "-c", "2", "-W", "3", "10.0.0.2")


def test_filters_that_somebody_flushes_are_set_again(lab: Lab, client: SbfClient, cluster: ClusterView) -> None:
    """Without filters, the switch receives every forbidden frame. So the frames of the attack are the right ones."""
    lab.run(HOST, ["nft", "flush", "ruleset"], check=True)
    received = attack(lab, cluster)
    assert [part for part in PARTS if part not in received] == []
    deadline = time.monotonic() + LIMIT_S
    port = names.guest_port_name(cluster.id, "n1", cluster.vlans["brno"])
    while f'"{port}" . ' not in lab.run(HOST, ["nft", "list", "ruleset"], check=True).stdout:
        assert time.monotonic() < deadline
        time.sleep(1)
    view = client.cluster("attacker")
    while view.state is not ClusterState.ACTIVE:
        assert time.monotonic() < deadline, view.reason
        view = client.cluster("attacker", after=view.version, wait=5)
    assert pings(lab, cluster, 0, "-c", "2", "-W", "3", "10.0.0.2")


def test_no_filter_remains_after_the_cluster(lab: Lab, client: SbfClient, cluster: ClusterView) -> None:
    client.delete_cluster("attacker")
    remove(client, "attacker")
    assert "virtcloud" not in lab.run(HOST, ["nft", "list", "tables"], check=True).stdout
