"""A user with root on the laptop attacks the cluster's network, other clusters, and the site's switch."""

import sys
from collections.abc import Iterator

import pytest
from scapy.layers.l2 import Ether
from support.hosts.guest_attacks import TEST_FRAME, build_ordinary_frames, build_service_attacks, build_switch_attacks
from support.lab.capture import capturing
from support.lab.vpn import GUEST, GUEST_MAC, connected, two_clusters

from virtcloud.agent.gateway.openvpn_config import MAX_MACS
from virtcloud.client.sbf import SbfClient
from virtcloud.lab import Lab
from virtcloud.lab.addressing import LAPTOP
from virtcloud.lab.laptop import LaptopVpn
from virtcloud.model.values import Name
from virtcloud.model.views import ClusterView

pytestmark = pytest.mark.lab

SWITCH, PORT = "brno-sw1", "p3"
OWN_MAC, SERVER_MAC = "02:00:00:00:00:d1", "02:00:00:00:ba:d2"
BRIDGED = "a foreign source address"
"""A frame that guests must not send, but VPN devices may send.

A device may bridge other machines of its user into the network, and so use their MAC addresses.
"""
PRIORITY_TAGGED = "TCP behind a priority tag"
"""A frame that guests must not send, but VPN devices may send: the frame has a tag with the VLAN ID 0.

OpenVPN replaces this VLAN ID by the cluster's VLAN ID, so the frame has one tag on the switch, as
each frame of a device.
"""
FLOOD = 3000
"""The number of frames, each with a different source MAC address."""
SEND = """
import socket, sys
device = socket.socket(socket.AF_PACKET, socket.SOCK_RAW)
device.bind((sys.argv[1], 0))
for frame in sys.stdin.read().split():
    device.send(bytes.fromhex(frame).ljust(60, b"\\0"))
"""
REFLECTED = "duplicate address detection"
"""An ordinary frame that the gateway drops.

If the gateway reflected the frame, the device would conclude that its address is in use.
"""
ATTACKS = {
    **{name: frame for name, frame in build_switch_attacks(OWN_MAC).items() if name not in {BRIDGED, PRIORITY_TAGGED}},
    **build_service_attacks(OWN_MAC),
    "a guest's source address": Ether(dst=SERVER_MAC, src=GUEST_MAC, type=TEST_FRAME),
}
ORDINARY = {PRIORITY_TAGGED: build_switch_attacks(OWN_MAC)[PRIORITY_TAGGED], **build_ordinary_frames(OWN_MAC)}
FRAMES = {
    name: bytes(frame) + b"frame" + bytes([0xB7, number])
    for number, (name, frame) in enumerate({**ATTACKS, **ORDINARY}.items())
}
"""All frames that the device sends: attacks and ordinary frames.

Each frame ends with a number of its own, by which the test finds the frame in a capture.
"""


@pytest.fixture(scope="module")
def clusters(client: SbfClient) -> Iterator[dict[str, ClusterView]]:
    with two_clusters(client, "attacked", "unseen") as views:
        yield views


@pytest.fixture(scope="module")
def device(lab: Lab, clusters: dict[str, ClusterView]) -> Iterator[LaptopVpn]:
    with connected(lab, "attacked", "attacker") as device:
        device.run("ip", "link", "set", device.interface, "address", OWN_MAC)
        yield device


def send(device: LaptopVpn, *frames: bytes) -> None:
    argv = ("ip", "netns", "exec", device.name, sys.executable, "-I", "-S", "-c", SEND, device.interface)
    device.lab.run(LAPTOP, argv, stdin=" ".join(frame.hex() for frame in frames), check=True)


def captured_frames(text: str) -> list[bytes]:
    frames: list[str] = []
    for line in text.splitlines():
        if line.startswith("\t0x0000:"):
            frames.append("")
        if line.startswith("\t0x"):
            frames[-1] += line.partition(":")[2]
    return [bytes.fromhex(frame) for frame in frames]


@pytest.fixture(scope="module")
def received(lab: Lab, device: LaptopVpn) -> list[bytes]:
    with capturing(lab, SWITCH, PORT, "-Q in -xx -s 512") as capture:
        send(device, *FRAMES.values())
    return captured_frames(capture.text)


@pytest.mark.parametrize("name", ATTACKS)
def test_no_forbidden_frame_of_a_device_reaches_the_switch(received: list[bytes], name: str) -> None:
    assert not [frame for frame in received if FRAMES[name][-7:] in frame]


def test_ordinary_frames_of_a_device_reach_the_switch(received: list[bytes]) -> None:
    found = {name for name, sent in FRAMES.items() for frame in received if sent[-7:] in frame}
    assert found == ORDINARY.keys() - {REFLECTED}


def test_frames_of_a_device_have_the_tag_of_its_cluster(
    received: list[bytes], clusters: dict[str, ClusterView]
) -> None:
    tags = {frame[12:16].hex() for frame in received if frame[6:12].hex(":") == OWN_MAC}
    assert tags == {f"8100{clusters['attacked'].vlans[Name('brno')]:04x}"}


def test_a_priority_tag_becomes_the_tag_of_the_cluster(received: list[bytes]) -> None:
    (frame,) = (frame for frame in received if FRAMES[PRIORITY_TAGGED][-7:] in frame)
    assert frame[16:18] == FRAMES[PRIORITY_TAGGED][16:18] == bytes.fromhex("0800")


def test_a_mac_flood_does_not_fill_the_switchs_table(lab: Lab, device: LaptopVpn) -> None:
    flood = [bytes.fromhex(f"{SERVER_MAC}02ff0000{number:04x}88b5".replace(":", "")) for number in range(FLOOD)]
    send(device, *flood)
    learned = lab.run(SWITCH, ["bridge", "fdb", "show", "br", "br0"], check=True).stdout.count("02:ff:00:00:")
    assert learned <= MAX_MACS
    assert device.run("ping", "-c", "3", "-W", "2", GUEST)[0] == 0
