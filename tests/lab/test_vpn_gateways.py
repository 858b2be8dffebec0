"""A site with two gateways. A profile names both gateways, and a device moves to the other gateway after a failure."""

import re
import time
from collections.abc import Iterator

import pytest
from support.lab.clusters import create, remove
from support.lab.vpn import GUEST, find_addresses, make_profile

from virtcloud.client.sbf import SbfClient
from virtcloud.lab import Lab
from virtcloud.lab.laptop import CONNECTED, LaptopVpn
from virtcloud.model.cluster import ClusterSpec
from virtcloud.model.guest_spec import Guest

pytestmark = pytest.mark.lab

FIRST, SECOND = "brno-gw1", "brno-gw2"
SOON = ("--pull-filter", "ignore", "ping-restart", "--ping-restart", "15")
"""Options of a client that leaves a silent gateway after 15 s, instead of 60 s."""
ENDED = "process exiting"
REPLACED_S = 10.0
MOVED_S = 50.0


@pytest.fixture(scope="module")
def profile(mixed: Lab) -> Iterator[str]:
    guest = Guest(name="g1", host="brno-h1", image="busybox", memory_mb=32, addresses=(f"{GUEST}/24",))
    with SbfClient(f"unix://{mixed.sbf_socket}", timeout=60) as client:
        create(client, "doubled", ClusterSpec(owner="alice", guests=(guest,), vpn=True))
        yield make_profile(mixed, "doubled", "moving")
        remove(client, "doubled")


@pytest.fixture(scope="module")
def moving(mixed: Lab, profile: str) -> Iterator[LaptopVpn]:
    device = LaptopVpn(mixed, "moving", namespace=True)
    device.connect(profile, *SOON)
    assert device.logs(CONNECTED), device.log
    device.move_interface(*find_addresses(mixed, "doubled", "moving"))
    yield device
    device.disconnect()


def list_connections(lab: Lab) -> list[str]:
    with SbfClient(f"unix://{lab.sbf_socket}") as client:
        return [view.gateway for view in client.vpn_connections("doubled")]


def wait_for_connections(lab: Lab, *gateways: str) -> None:
    deadline = time.monotonic() + REPLACED_S
    while list_connections(lab) != list(gateways):
        assert time.monotonic() < deadline, list_connections(lab)
        time.sleep(0.2)


def only(profile: str, gateway: str) -> str:
    blocks = re.findall(r"<connection>.*?</connection>\n", profile, re.DOTALL)
    for block in blocks:
        if f"remote {gateway} " not in block:
            profile = profile.replace(block, "")
    return profile


def reaches_guest(device: LaptopVpn) -> bool:
    """Return whether the guest answers within 20 s.

    Switches learned the device's MAC address from the former gateway, and send the first answers there.
    """
    return device.run("ping", "-q", "-c", "1", "-w", "20", GUEST)[0] == 0


def count_connections(device: LaptopVpn) -> int:
    return device.log.count(CONNECTED)


def wait_until_moved(device: LaptopVpn, connections: int) -> None:
    deadline = time.monotonic() + MOVED_S
    while count_connections(device) <= connections:
        assert time.monotonic() < deadline, device.log
        time.sleep(0.5)


def test_a_profile_names_both_gateways(profile: str) -> None:
    assert re.findall(r"^remote (\S+) \d+ (\S+)", profile, re.MULTILINE) == [
        (FIRST, "udp"),
        (SECOND, "udp"),
        (FIRST, "tcp-client"),
        (SECOND, "tcp-client"),
    ]


def test_a_copied_profile_at_the_other_gateway_disconnects_the_original(mixed: Lab, profile: str) -> None:
    original, copy = (LaptopVpn(mixed, name, namespace=True) for name in ("original", "copy"))
    original.connect(only(profile, FIRST))
    assert original.logs(CONNECTED), original.log
    original.move_interface()
    wait_for_connections(mixed, FIRST)
    copy.connect(only(profile, SECOND))
    assert copy.logs(CONNECTED), copy.log
    assert original.logs(ENDED, REPLACED_S), original.log
    wait_for_connections(mixed, SECOND)
    assert ENDED not in copy.log
    copy.disconnect()
    original.disconnect()


def test_the_second_gateway_takes_over_when_openvpn_is_killed(mixed: Lab, moving: LaptopVpn) -> None:
    wait_for_connections(mixed, FIRST)
    connections = count_connections(moving)
    agent = mixed.service(FIRST, "agent")
    agent.stop()
    mixed.run(FIRST, ["pkill", "-KILL", "openvpn"], check=True)
    try:
        wait_until_moved(moving, connections)
        wait_for_connections(mixed, FIRST, SECOND)
        assert reaches_guest(moving)
    finally:
        agent.start()
    wait_for_connections(mixed, SECOND)


def test_the_first_gateway_takes_over_when_the_second_loses_power(mixed: Lab, moving: LaptopVpn) -> None:
    connections = count_connections(moving)
    mixed.power_off(SECOND)
    try:
        wait_until_moved(moving, connections)
        assert reaches_guest(moving)
    finally:
        mixed.power_on(SECOND)
