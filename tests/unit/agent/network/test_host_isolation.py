"""Tests on the real kernel that a guest on a bridge receives no frames from the host's IP stack."""

import socket
import struct
import time
from collections.abc import Iterator
from contextlib import closing, suppress
from ipaddress import IPv4Address, IPv6Address

from support.kernel import kernel_links
from support.kernel.network_namespaces import Run

from virtcloud.agent.network.kernel import NetlinkKernel

HOST = IPv4Address("192.0.2.1")
"""An address of the host. The host's interface with this address is not a port of the guest's bridge."""
GUEST, UNSPECIFIED = IPv4Address("192.0.2.9"), IPv4Address(0)
GUEST_IPV6, ALL_NODES = IPv6Address("fe80::9"), IPv6Address("ff02::1")
GUEST_MAC, BROADCAST_MAC = b"\x02\x00\x00\x00\x00\x09", b"\xff" * 6
ALL_NODES_MAC = b"\x33\x33\x00\x00\x00\x01"
ARP, IPV4, IPV6, UDP, PORT = 0x0806, 0x0800, 0x86DD, 17, 9999
ICMPV6, ECHO_REQUEST, NEIGHBOUR_DISCOVERY = 58, 128, range(133, 138)
ANSWER_WITHIN_S, LISTEN_S = 10.0, 3.0
"""Times in seconds. A test that expects frames waits at most ``ANSWER_WITHIN_S``.

A test that expects no frame listens for ``LISTEN_S``. Duplicate address detection (RFC 4862) would send its first frame
within this time.
"""


def test_a_guest_cannot_reach_the_host_through_its_bridge(in_namespace: Run) -> None:
    """The host answers neither ARP requests for its address nor echo requests to all nodes (RFC 4443)."""
    assert in_namespace(lambda: receive_frames(isolated=True, until=set(), seconds=LISTEN_S)) == set()


def test_without_isolation_a_guest_reaches_the_host(in_namespace: Run) -> None:
    """Control test: without isolation, the guest receives the frames that the previous test excludes."""
    expected = {"an ARP reply", "a datagram that the host received", "neighbour discovery"}
    received = in_namespace(lambda: receive_frames(isolated=False, until=expected, seconds=ANSWER_WITHIN_S))
    assert isinstance(received, set)
    assert expected <= received


def receive_frames(*, isolated: bool, until: set[str], seconds: float) -> set[str]:
    """Attach a guest to a bridge, and send the guest's requests repeatedly until ``seconds`` seconds have passed.

    Return descriptions of the frames that the guest received and of the datagram that the host received. Return earlier
    if ``until`` is not empty and everything in ``until`` was received.
    """
    received: set[str] = set()
    with closing(NetlinkKernel()) as kernel:
        bridge = build_bridge(kernel, isolated=isolated)
        deadline = time.monotonic() + seconds
        with (
            socket.socket(socket.AF_PACKET, socket.SOCK_RAW, socket.ntohs(3)) as guest,
            socket.socket(type=socket.SOCK_DGRAM) as host,
        ):
            guest.bind(("guest", 0))
            host.bind((str(HOST), PORT))
            host.setblocking(False)
            kernel.change(bridge, up=True)
            requests = (
                arp_request(GUEST),
                arp_request(UNSPECIFIED),
                echo_request(),
                datagram(mac_address_of(kernel, bridge)),
            )
            while time.monotonic() < deadline and not (until and until <= received):
                for frame in requests:
                    guest.send(frame)
                received |= {*frames(guest, 0.2), *datagrams(host)}
    return received


def build_bridge(kernel: NetlinkKernel, *, isolated: bool) -> int:
    bridge = kernel.add_bridge("br100")
    if isolated:
        kernel.disable_host_ip(bridge, "br100")
    kernel_links.link("add", ifname="port", kind="veth", peer="guest")
    indexes = {name: kernel_links.find_index(name) for name in ("port", "guest")}
    for name, index in indexes.items():
        # The kernel itself must not send frames on the guest's interface or on the bridge's port.
        kernel.disable_host_ip(index, name)
    kernel.change(indexes["port"], master=bridge, up=True)
    kernel.change(indexes["guest"], up=True)
    kernel_links.link("add", ifname="host0", kind="veth", peer="host1")
    host = kernel_links.find_index("host0")
    kernel_links.addr("add", index=host, address=str(HOST), prefixlen=24)
    kernel.change(host, up=True)
    return bridge


def frames(guest: socket.socket, seconds: float) -> Iterator[str]:
    deadline = time.monotonic() + seconds
    while (left := deadline - time.monotonic()) > 0:
        guest.settimeout(left)
        try:
            frame, (_, _, kind, *_) = guest.recvfrom(2048)
        except TimeoutError:
            return
        if kind != socket.PACKET_OUTGOING:
            yield describe_frame(frame)


def datagrams(host: socket.socket) -> Iterator[str]:
    with suppress(BlockingIOError):
        host.recv(100)
        yield "a datagram that the host received"


def mac_address_of(kernel: NetlinkKernel, index: int) -> bytes:
    return bytes.fromhex(kernel_links.link("get", index=index)[0].get_attr("IFLA_ADDRESS").replace(":", ""))


def describe_frame(frame: bytes) -> str:
    (kind,) = struct.unpack("!H", frame[12:14])
    if kind == ARP and frame[20:22] == b"\x00\x02" and frame[28:32] == HOST.packed:
        return "an ARP reply"
    if kind == IPV6 and frame[20] == ICMPV6 and frame[54] in NEIGHBOUR_DISCOVERY:
        return "neighbour discovery"
    return f"a frame of EtherType {kind:#06x}: {frame[14:60].hex()}"


def arp_request(sender: IPv4Address) -> bytes:
    """Return an ARP request for the host's address. With the sender 0.0.0.0, the request is a probe (RFC 5227)."""
    packet = struct.pack("!HHBBH", 1, IPV4, 6, 4, 1) + GUEST_MAC + sender.packed + bytes(6) + HOST.packed
    return BROADCAST_MAC + GUEST_MAC + struct.pack("!H", ARP) + packet


def datagram(destination_mac: bytes) -> bytes:
    message = struct.pack("!HHHH", PORT, PORT, 8 + 9, 0) + b"virtcloud"
    header = struct.pack("!BBHHHBBH", 0x45, 0, 20 + len(message), 0, 0, 64, UDP, 0) + GUEST.packed + HOST.packed
    header = header[:10] + struct.pack("!H", internet_checksum(header)) + header[12:]
    return destination_mac + GUEST_MAC + struct.pack("!H", IPV4) + header + message


def echo_request() -> bytes:
    body = struct.pack("!HH", 9, 1) + b"virtcloud"
    pseudo = GUEST_IPV6.packed + ALL_NODES.packed + struct.pack("!II", 4 + len(body), ICMPV6)
    checksum = internet_checksum(pseudo + struct.pack("!BBH", ECHO_REQUEST, 0, 0) + body)
    message = struct.pack("!BBH", ECHO_REQUEST, 0, checksum) + body
    header = struct.pack("!IHBB", 6 << 28, len(message), ICMPV6, 255) + GUEST_IPV6.packed + ALL_NODES.packed
    return ALL_NODES_MAC + GUEST_MAC + struct.pack("!H", IPV6) + header + message


def internet_checksum(data: bytes) -> int:
    """Return the Internet checksum (RFC 1071)."""
    padded = data + bytes(len(data) % 2)
    total = sum(struct.unpack(f"!{len(padded) // 2}H", padded))
    while total >> 16:
        total = (total & 0xFFFF) + (total >> 16)
    return ~total & 0xFFFF
