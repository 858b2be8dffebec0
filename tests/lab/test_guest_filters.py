import sys
import time
from collections.abc import Iterator

import pytest
from support.hosts.guest_attacks import (
    build_address_attacks,
    build_ordinary_frames,
    build_service_attacks,
    build_switch_attacks,
)
from support.lab.capture import capturing
from support.lab.clusters import create, pings, remove

from virtcloud.agent.network import names
from virtcloud.client.sbf import SbfClient
from virtcloud.lab import Lab
from virtcloud.lab.demo.context import ENTER_CONTAINER
from virtcloud.lab.snapshot import read_guests
from virtcloud.model.cluster import ClusterSpec, ClusterState
from virtcloud.model.guest_spec import Guest
from virtcloud.model.views import ClusterView

pytestmark = pytest.mark.lab

HOST, SWITCH, PORT = "brno-h1", "brno-sw1", "p1"
LIMIT_S = 90.0
"""The time limit of repairs in seconds. The agent reads its host every 30 s."""
ENTER_NETWORK = ENTER_CONTAINER.replace(" -n -m -u ", " -n ")
SEND = """
import socket, sys
guest = socket.socket(socket.AF_PACKET, socket.SOCK_RAW)
guest.bind(("eth0", 0))
for frame in sys.argv[1:]:
    guest.send(bytes.fromhex(frame).ljust(60, b"\\0"))
"""
GUEST_MAC = "02:00:00:00:00:a1"
FRAMES = {
    name: bytes(frame) + b"frame" + bytes([0xA7, number])
    for number, (name, frame) in enumerate(
        {
            **build_switch_attacks(GUEST_MAC),
            **build_service_attacks(GUEST_MAC),
            **build_address_attacks(GUEST_MAC),
            **build_ordinary_frames(GUEST_MAC),
        }.items()
    )
}
"""All attacks, and the ordinary frames. Each frame ends with its number, by which the test finds it in a capture."""
ORDINARY = build_ordinary_frames(GUEST_MAC).keys()
DROPPED_BY_BRIDGES = {"LLDP", "LACP", "EAPOL", "a pause frame"}


@pytest.fixture(scope="module")
def cluster(client: SbfClient) -> Iterator[ClusterView]:
    guests = (make_guest(1, HOST), make_guest(2, "praha-h1"))
    yield create(client, "attacker", ClusterSpec(owner="eva", guests=guests, filters="addresses"))
    remove(client, "attacker")


def make_guest(number: int, host: str) -> Guest:
    return Guest(
        name=f"n{number}",
        host=host,
        image="busybox",
        memory_mb=32,
        mac=f"02:00:00:00:00:a{number}",
        addresses=(f"10.0.0.{number}/24", f"fd00::{number}/64"),
    )


def attack(lab: Lab, cluster: ClusterView) -> set[str]:
    (domain,) = (name for name in read_guests(lab, HOST) if cluster.id in name)
    frames = [frame.hex() for frame in FRAMES.values()]
    # The snapshot length is short, so that all frames fit into the capture buffer.
    with capturing(lab, SWITCH, PORT, "-xx -s 512") as capture:
        lab.run(HOST, ("sh", "-c", ENTER_NETWORK, domain, sys.executable, "-c", SEND, *frames), check=True)
    lines = (line.partition(":")[2] for line in capture.text.splitlines() if line.startswith("\t0x"))
    octets = bytes.fromhex("".join(lines))
    return {name for name, frame in FRAMES.items() if frame[-7:] in octets}


@pytest.fixture(scope="module")
def received(lab: Lab, cluster: ClusterView) -> set[str]:
    return attack(lab, cluster)


@pytest.mark.parametrize("name", [name for name in FRAMES if name not in ORDINARY])
def test_no_forbidden_frame_of_a_guest_reaches_the_switch(received: set[str], name: str) -> None:
    assert name not in received


def test_ordinary_frames_of_a_guest_reach_the_switch(received: set[str], lab: Lab, cluster: ClusterView) -> None:
    assert received == ORDINARY
    assert pings(lab, cluster, 0, "-c", "2", "-W", "3", "10.0.0.2")


def test_a_restarted_agent_sets_flushed_filters_again(lab: Lab, cluster: ClusterView) -> None:
    """While the filters are flushed, the switch receives all forbidden frames except ``DROPPED_BY_BRIDGES``."""
    agent = lab.service(HOST, "agent")
    agent.kill()
    try:
        lab.run(HOST, ["nft", "flush", "ruleset"], check=True)
        assert attack(lab, cluster) == FRAMES.keys() - DROPPED_BY_BRIDGES
    finally:
        agent.start()
    deadline = time.monotonic() + LIMIT_S
    port = names.guest_port_name(cluster.id, "n1", cluster.vlans["brno"])
    while f'"{port}" . ' not in lab.run(HOST, ["nft", "list", "ruleset"], check=True).stdout:
        assert time.monotonic() < deadline
        time.sleep(1)
    assert attack(lab, cluster) == ORDINARY


def test_flushed_filters_are_set_again_without_sbf(lab: Lab, cluster: ClusterView) -> None:
    sbf = lab.service("station", "sbf")
    sbf.kill()
    try:
        lab.run(HOST, ["nft", "flush", "ruleset"], check=True)
        deadline = time.monotonic() + LIMIT_S
        port = names.guest_port_name(cluster.id, "n1", cluster.vlans["brno"])
        while f'"{port}" . ' not in lab.run(HOST, ["nft", "list", "ruleset"], check=True).stdout:
            assert time.monotonic() < deadline
            time.sleep(1)
        assert attack(lab, cluster) == ORDINARY
    finally:
        sbf.start()


def test_a_cluster_works_again_after_its_filters_were_flushed(
    lab: Lab, client: SbfClient, cluster: ClusterView
) -> None:
    lab.run(HOST, ["nft", "flush", "ruleset"], check=True)
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


def test_a_guest_with_any_ip_address_sends_no_forbidden_frame(lab: Lab, client: SbfClient) -> None:
    """The cluster does not use ``filters="addresses"``, so its rules differ from those of the attacker's cluster."""
    view = create(client, "free", ClusterSpec(owner="eva", guests=(make_guest(1, HOST),)))
    assert attack(lab, view) == ORDINARY | build_address_attacks(GUEST_MAC).keys()
    remove(client, "free")


def test_no_filter_remains_after_the_end_of_the_cluster(lab: Lab, client: SbfClient, cluster: ClusterView) -> None:
    client.delete_cluster("attacker")
    remove(client, "attacker")
    assert "virtcloud" not in lab.run(HOST, ["nft", "list", "tables"], check=True).stdout
