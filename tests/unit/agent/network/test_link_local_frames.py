"""Tests of the forwarding of frames to link-local MAC addresses by a cluster's bridge, on the real kernel.

The link-local MAC addresses of 802.1Q are 01-80-C2-00-00-00 to 01-80-C2-00-00-0F (table 8-1). Of the frames to these
addresses, the bridge forwards only frames to the first address, which the spanning tree protocol uses.
"""

import os
import socket
import time
from contextlib import closing, suppress

from support.kernel import kernel_links
from support.kernel.network_namespaces import Run

from virtcloud.agent.network.kernel import NetlinkKernel

GROUP = "0180c20000"
SPANNING_TREE, LLDP = f"{GROUP}00", f"{GROUP}0e"
CISCO = "01000ccccccc"
"""The common address of CDP, VTP and DTP."""
BROADCAST = "ffffffffffff"
SENDER, EXPERIMENTAL = "020000000009", "88b5"
TIMEOUT_S = 10.0


def forwarded(addresses: list[str]) -> list[str]:
    with closing(NetlinkKernel()) as kernel:
        bridge = kernel.add_bridge("br100")
        kernel.disable_host_ip(bridge, "br100")
        for name, peer in (("guest", "port1"), ("uplink", "port2")):
            kernel_links.link("add", ifname=name, kind="veth", peer=peer)
            kernel.change(kernel_links.find_index(name), up=True)
            kernel.change(kernel_links.find_index(peer), master=bridge, up=True)
        kernel.change(bridge, up=True)
        with (
            socket.socket(socket.AF_PACKET, socket.SOCK_RAW) as guest,
            socket.socket(socket.AF_PACKET, socket.SOCK_RAW, socket.ntohs(3)) as uplink,
        ):
            guest.bind(("guest", 0))
            uplink.bind(("uplink", 0))
            uplink.settimeout(0.2)
            deadline = time.monotonic() + TIMEOUT_S
            while not _is_forwarded(guest, uplink, BROADCAST):  # a new port does not forward frames immediately
                assert time.monotonic() < deadline
            uplink.settimeout(TIMEOUT_S)
            return [address for address in addresses if _is_forwarded(guest, uplink, address)]


def _is_forwarded(guest: socket.socket, uplink: socket.socket, address: str) -> bool:
    """Send a frame to ``address``, and then a broadcast.

    Return whether the frame to ``address`` arrives before the broadcast.
    """
    serial = os.urandom(8)
    for target in (address, BROADCAST):
        guest.send((bytes.fromhex(target + SENDER + EXPERIMENTAL) + serial).ljust(60, b"\0"))
    with suppress(TimeoutError):
        while serial not in (frame := uplink.recv(100)):
            continue
        return frame[:6].hex() == address
    return False


def test_only_spanning_tree_frames_to_link_local_addresses_are_forwarded(in_namespace: Run) -> None:
    addresses = [f"{GROUP}{number:02x}" for number in range(16)]
    assert LLDP in addresses
    assert in_namespace(lambda: forwarded(addresses)) == [SPANNING_TREE]


def test_frames_to_ciscos_protocols_are_forwarded(in_namespace: Run) -> None:
    """A bridge forwards these frames like any other multicast. Only the filters of guests drop them."""
    assert in_namespace(lambda: forwarded([CISCO])) == [CISCO]
