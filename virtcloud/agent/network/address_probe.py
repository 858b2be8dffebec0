"""Address probes: find out which addresses are in use on a bridge. The host needs no address on the bridge.

The module sends and receives raw frames (packet(7)), because the host's IP stack does not use the bridge. For IPv4, the
module sends an ARP probe (RFC 826, RFC 5227 §2.1.1) from 0.0.0.0, so no ARP cache stores the sender. For IPv6, the
module sends a neighbour solicitation (RFC 4861 §4.3) from the bridge's link-local address (RFC 4291 appendix A). A
solicitation from the unspecified address ``::`` would be duplicate address detection. A guest that is about to use the
probed address would give up the address (RFC 4862 §5.4.3).
"""

import select
import socket
import struct
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, ExitStack
from dataclasses import dataclass
from ipaddress import IPv4Address, IPv6Address
from itertools import islice
from types import TracebackType
from typing import Protocol, Self

from virtcloud.agent.files import refuse_os_errors

IpAddress = IPv4Address | IPv6Address
RESEND_S = 0.5
ADDRESS_CLAIM_S = 6.0
"""Longest time in seconds from a guest's first probe to its announcement (RFC 5227: 2 * PROBE_MAX + ANNOUNCE_WAIT).

An ARP probe of the agent during this time would tell the guest that another host claims the address.
"""
MAX_FRAME, MAX_FRAMES = 2048, 1000
"""Maximum bytes of a frame, and maximum number of frames between two checks of the time limit."""
ARP, IPV6 = 0x0806, 0x86DD
BROADCAST = b"\xff" * 6
UNSPECIFIED = IPv4Address(0)
_ETHERNET = struct.Struct("!6s6sH")
_ARP = struct.Struct("!HHBBH6s4s6s4s")
_ARP_HEADER = (1, 0x0800, 6, 4)  # Ethernet, IPv4, the length of a MAC address, and the length of an IPv4 address
_REQUEST, _REPLY = 1, 2
_IPV6 = struct.Struct("!IHBB16s16s")
_ICMP = struct.Struct("!BBHI16s")
_ONES = 0xFFFF
_ICMPV6, _HOPS = 58, 255
_SOLICITATION, _ADVERTISEMENT = 135, 136
_SOURCE_LINK_ADDRESS = b"\x01\x01"


class AddressProber(Protocol):
    """Finds out which addresses are in use on a bridge."""

    def probe(self, addresses: Iterable[IpAddress], seconds: float) -> frozenset[IpAddress]:
        """Wait at most ``seconds`` for answers. Return the addresses that answered."""


OpenProber = Callable[[str], AbstractContextManager[AddressProber]]
"""Function that opens a prober on the bridge with a given name. Raises Refused if the host has no such bridge."""


class AddressProbe:
    """An `AddressProber` with two packet sockets. The kernel queues frames that arrive between two calls."""

    def __init__(self, bridge: str, clock: Callable[[], float] = time.monotonic) -> None:
        """Open sockets on ``bridge``. Raise Refused if the host has no such bridge."""
        self._bridge = bridge
        self._clock = clock
        self._claim_times: dict[IpAddress, float] = {}
        with self._refuse_errors(), ExitStack() as open_sockets:
            self._sockets = {
                ether_type: open_sockets.enter_context(_open_packet_socket(bridge, ether_type))
                for ether_type in (ARP, IPV6)
            }
            self._mac: bytes = self._sockets[ARP].getsockname()[4]
            self._open_sockets = open_sockets.pop_all()
        self._poll = select.poll()  # select() refuses descriptors greater than 1023
        for packet_socket in self._sockets.values():
            self._poll.register(packet_socket, select.POLLIN)

    def __enter__(self) -> Self:
        """Return the probe."""
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        """Close the sockets."""
        self._open_sockets.close()

    def probe(self, addresses: Iterable[IpAddress], seconds: float) -> frozenset[IpAddress]:
        """Wait at most ``seconds`` for answers. Return the addresses that answered.

        Raise Refused if the bridge was removed.
        """
        wanted, resend_at, deadline = frozenset(addresses), 0.0, self._clock() + seconds
        with self._refuse_errors():
            missing = wanted - self._receive(wanted, 0)
            while missing and (now := self._clock()) < deadline:
                if now >= resend_at:
                    self._send(address for address in missing if not self._is_claimed(address))
                    resend_at = now + RESEND_S
                missing -= self._receive(wanted, min(deadline, resend_at) - now)
        return wanted - missing

    def _refuse_errors(self) -> AbstractContextManager[None]:
        return refuse_os_errors(f"probe addresses on bridge {self._bridge} of this host")

    def _is_claimed(self, address: IpAddress) -> bool:
        return address in self._claim_times and self._clock() < self._claim_times[address] + ADDRESS_CLAIM_S

    def _send(self, addresses: Iterable[IpAddress]) -> None:
        for address in addresses:
            self._sockets[ARP].send(build_probe(self._mac, address))

    def _receive(self, wanted: frozenset[IpAddress], seconds: float) -> set[IpAddress]:
        """Return the wanted addresses that answered within ``seconds``.

        If a guest still checks whether a wanted address is free, record the time of the guest's first ARP probe.
        """
        self._poll.poll(max(seconds, 0) * 1000)
        frames = (
            frame
            for packet_socket in self._sockets.values()
            for frame in islice(_read_frames(packet_socket), MAX_FRAMES)
        )
        answers = [answer for frame in frames if (answer := parse_frame(frame)) and answer.address in wanted]
        self._claim_times = {answer.address: self._clock() for answer in answers if answer.claimed} | self._claim_times
        return {answer.address for answer in answers if not answer.claimed}


@dataclass(frozen=True, slots=True)
class AddressAnswer:
    """An address in a frame. If ``claimed`` is false, the sender uses the address.

    If ``claimed`` is true, the sender still checks whether the address is free.
    """

    address: IpAddress
    claimed: bool = False


def build_probe(mac: bytes, address: IpAddress) -> bytes:
    """Return the frame that probes ``address`` from the interface with this MAC address."""
    return _arp_probe(mac, address) if isinstance(address, IPv4Address) else _solicitation(mac, address)


def parse_frame(frame: bytes) -> AddressAnswer | None:
    """Parse a frame. Return None if the frame contains no address, is truncated, or is damaged."""
    if len(frame) < _ETHERNET.size:
        return None
    ether_type = _ETHERNET.unpack_from(frame)[2]
    parse = {ARP: _parse_arp, IPV6: _parse_ipv6}.get(ether_type)
    return parse(frame[_ETHERNET.size :]) if parse else None


def _open_packet_socket(bridge: str, ether_type: int) -> socket.socket:
    packet_socket = socket.socket(
        socket.AF_PACKET, socket.SOCK_RAW, 0
    )  # with protocol 0, the socket receives no frames before bind()
    try:
        packet_socket.bind((bridge, ether_type))
        packet_socket.setblocking(False)
    except OSError:
        packet_socket.close()
        raise
    return packet_socket


def _read_frames(packet_socket: socket.socket) -> Iterator[bytes]:
    while True:
        try:
            yield packet_socket.recv(MAX_FRAME)
        except BlockingIOError:
            return


def _arp_probe(mac: bytes, address: IPv4Address) -> bytes:
    body = _ARP.pack(*_ARP_HEADER, _REQUEST, mac, UNSPECIFIED.packed, bytes(6), address.packed)
    return _ETHERNET.pack(BROADCAST, mac, ARP) + body


def _solicitation(mac: bytes, address: IPv6Address) -> bytes:
    source, destination = _link_local(mac), IPv6Address("ff02::1:ff00:0").packed[:13] + address.packed[13:]
    unchecked = _ICMP.pack(_SOLICITATION, 0, 0, 0, address.packed) + _SOURCE_LINK_ADDRESS + mac
    body = unchecked[:2] + struct.pack("!H", _checksum(source, destination, unchecked)) + unchecked[4:]
    header = _IPV6.pack(6 << 28, len(body), _ICMPV6, _HOPS, source, destination)
    return _ETHERNET.pack(b"\x33\x33" + destination[12:], mac, IPV6) + header + body


def _link_local(mac: bytes) -> bytes:
    identifier = bytes([mac[0] ^ 2]) + mac[1:3] + b"\xff\xfe" + mac[3:]
    return bytes.fromhex("fe80000000000000") + identifier


def _parse_arp(packet: bytes) -> AddressAnswer | None:
    if len(packet) < _ARP.size:
        return None
    *header, operation, _, sender, _, target = _ARP.unpack_from(packet)
    if tuple(header) != _ARP_HEADER or operation not in {_REQUEST, _REPLY}:
        return None
    if sender != UNSPECIFIED.packed:
        return AddressAnswer(IPv4Address(sender))
    return AddressAnswer(IPv4Address(target), claimed=True) if operation == _REQUEST else None


def _parse_ipv6(packet: bytes) -> AddressAnswer | None:
    """Parse a neighbour advertisement. Return None for an invalid advertisement (RFC 4861 §7.1.2) or another packet."""
    if len(packet) < _IPV6.size + _ICMP.size:
        return None
    _, length, following, hops, source, destination = _IPV6.unpack_from(packet)
    body = packet[_IPV6.size : _IPV6.size + length]
    if (
        (following, hops) != (_ICMPV6, _HOPS)
        or len(body) < max(length, _ICMP.size)
        or _checksum(source, destination, body)
    ):
        return None
    message_type, code, _, _, target = _ICMP.unpack_from(body)
    return AddressAnswer(IPv6Address(target)) if (message_type, code) == (_ADVERTISEMENT, 0) else None


def _checksum(source: bytes, destination: bytes, body: bytes) -> int:
    """Return the ICMPv6 checksum (RFC 4443 §2.3), or 0 for a body that already contains its correct checksum."""
    data = source + destination + struct.pack("!II", len(body), _ICMPV6) + body + b"\0" * (len(body) % 2)
    total: int = sum(struct.unpack(f"!{len(data) // 2}H", data))
    return _ONES - 1 - (total - 1) % _ONES  # add the carries, then complement (RFC 1071)
