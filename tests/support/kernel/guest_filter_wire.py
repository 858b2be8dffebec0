"""A guest and a switch on a bridge of the real kernel, and filters of guests."""

import os
import socket
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager, suppress

from support.hosts.guest_attacks import (
    OWN4,
    OWN6,
    build_address_attacks,
    build_ordinary_frames,
    build_service_attacks,
    build_switch_attacks,
)
from support.kernel import kernel_links
from virtcloud.agent.network import names
from virtcloud.agent.network.guest_filter_rules import RULES
from virtcloud.agent.network.guest_filters import DevicePort, FilteredPort, GuestPort, render_table
from virtcloud.agent.network.kernel import NetlinkKernel
from virtcloud.agent.network.nftables import _run

GUEST, SWITCH = "020000000001", "020000000009"
PORT, OTHER_PORT = names.guest_port_name("a", "g1", 100), names.guest_port_name("a", "g2", 100)
GUEST_MAC = "02:00:00:00:00:01"
GUEST_PORT = GuestPort(PORT, GUEST_MAC)
VPN_PORT = "vpn-udp.100"
DEVICE_PORT = DevicePort(VPN_PORT, guest_macs=("02:00:00:00:00:0a",))
ADDRESSED_DEVICES = DEVICE_PORT._replace(addresses=(f"{OWN4}/24", f"{OWN6}/64"))
SUBNETS = ("10.0.0.0/24", "fd00::/64")
DROPPED_BY_BRIDGES = {"LLDP", "LACP", "EAPOL", "a pause frame"}
"""The names of the frames that the kernel's bridge never forwards, because of the frames' destination addresses (IEEE
802.1Q-2018, table 8-1).
"""
BROADCAST, MULTICAST = "ffffffffffff", "333300000001"
SO_RCVBUFFORCE = 33  # asm-generic/socket.h
RECEIVE_BUFFER = 64 << 20  # bytes; a frame takes about 800 bytes in the kernel
TEST_FRAME = "88b5"
SWITCH_ATTACKS, SERVICE_ATTACKS, ADDRESS_ATTACKS, ORDINARY_FRAMES = (
    {name: bytes(frame).hex() for name, frame in build(GUEST_MAC).items()}
    for build in (build_switch_attacks, build_service_attacks, build_address_attacks, build_ordinary_frames)
)
ATTACKS = {**SWITCH_ATTACKS, **SERVICE_ATTACKS}


class Wire:
    """A guest and a switch on a bridge. A guest's frame reaches the switch unless the bridge or a filter drops it."""

    def __init__(self, guest: socket.socket, switch: socket.socket) -> None:
        self._guest, self._switch = guest, switch

    def passes(self, frame: str) -> bool:
        """As the guest, send ``frame`` and then a harmless frame. Return whether ``frame`` reaches the switch."""
        serial = os.urandom(8)
        self._guest.send((bytes.fromhex(frame) + serial).ljust(60, b"\0"))
        return serial in self._frames_until(BROADCAST + GUEST + TEST_FRAME)

    def count_arrivals(self, number: int, group: str, content: str = TEST_FRAME) -> int:
        """As the guest, send a frame ``number`` times. Return how many of these frames reach the switch.

        ``content`` is the frame's content from its type on.
        """
        serial = os.urandom(8)
        for _ in range(number):
            self._guest.send((bytes.fromhex(group + GUEST + content) + serial).ljust(60, b"\0"))
        return self._frames_until(SWITCH + GUEST + TEST_FRAME).count(serial)

    def _frames_until(self, last: str) -> bytes:
        mark, received = os.urandom(8), [b""]
        self._guest.send((bytes.fromhex(last) + mark).ljust(60, b"\0"))
        with suppress(TimeoutError):
            while mark not in received[-1]:
                received.append(self._switch.recv(2048))
        return b"".join(received)


@contextmanager
def connected(port: str = PORT) -> Iterator[Wire]:
    with closing(NetlinkKernel()) as kernel:
        bridge = kernel.add_bridge("br100")
        for name, peer in (("guest", port), ("switch", "uplink")):
            kernel_links.link("add", ifname=name, kind="veth", peer=peer)
            kernel.disable_host_ip(kernel_links.find_index(name), name)
            kernel.change(kernel_links.find_index(name), up=True)
            kernel.change(kernel_links.find_index(peer), master=bridge, up=True)
        kernel.change(bridge, up=True)
        with (
            socket.socket(socket.AF_PACKET, socket.SOCK_RAW) as guest,
            socket.socket(socket.AF_PACKET, socket.SOCK_RAW, socket.ntohs(3)) as switch,
        ):
            switch.setsockopt(socket.SOL_SOCKET, SO_RCVBUFFORCE, RECEIVE_BUFFER)
            guest.bind(("guest", 0))
            switch.bind(("switch", 0))
            switch.settimeout(0.2)
            wire = Wire(guest, switch)
            deadline = time.monotonic() + 10
            while not wire.passes(BROADCAST + GUEST + TEST_FRAME):  # a new port does not forward frames immediately
                assert time.monotonic() < deadline
            switch.settimeout(10)
            yield wire


def set_filters(*removed: str, port: FilteredPort = GUEST_PORT) -> None:
    rules = {
        chain: tuple(rule for rule in of_chain if not any(part in rule for part in removed))
        for chain, of_chain in RULES.items()
    }
    _run(render_table([port], rules))


def find_passing(wire: Wire, frames: dict[str, str]) -> list[str]:
    return [name for name, frame in frames.items() if wire.passes(frame)]
