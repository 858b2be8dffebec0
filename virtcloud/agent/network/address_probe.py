"""PURE. The frames that ask whether a guest is up, from a machine without an address there, and their answers.

IPv4 is asked by an ARP probe (RFC 826, RFC 5227 §2.1.1): its sender is 0.0.0.0, so no cache learns from it. IPv6
is asked by a neighbour solicitation (RFC 4861 §4.3) from the bridge's own link-local address (RFC 4291 appendix A). One
from the unspecified address, which duplicate address detection sends, would be the end of an address that its guest is
just about to take (RFC 4862 §5.4.3).

An ear on a cluster's bridge: asks guests whether they are up, and hears them.

The machine has no address there and stays hushed: frames are sent and read as they are (packet(7)).
"""

import select
import socket
import struct
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from ipaddress import IPv4Address, IPv6Address
from itertools import islice
from types import TracebackType
from typing import Self

from virtcloud.model.errors import Refused

IpAddress = IPv4Address | IPv6Address
ARP, IPV6 = 0x0806, 0x86DD
BROADCAST = b"\xff" * 6
UNSPECIFIED = IPv4Address(0)
_ETHERNET = struct.Struct("!6s6sH")
_ARP = struct.Struct("!HHBBH6s4s6s4s")
_ARP_IS = (1, 0x0800, 6, 4)  # Ethernet, IPv4, and the lengths of their addresses
_REQUEST, _REPLY = 1, 2
_IPV6 = struct.Struct("!IHBB16s16s")
_ICMP = struct.Struct("!BBHI16s")
_ONES = 0xFFFF
_ICMPV6, _HOPS = 58, 255
_SOLICITATION, _ADVERTISEMENT = 135, 136
_SOURCE_LINK_ADDRESS = b"\x01\x01"


@dataclass(frozen=True, slots=True)
class AddressAnswer:
    """What a frame tells of an address: somebody has it, or (``claimed``) is finding out whether it may."""

    address: IpAddress
    claimed: bool = False


def build_probe(mac: bytes, address: IpAddress) -> bytes:
    """Write the frame that asks for ``address`` from the interface with this MAC address."""
    return _arp_probe(mac, address) if isinstance(address, IPv4Address) else _solicitation(mac, address)


def parse_frame(frame: bytes) -> AddressAnswer | None:
    """Read a frame; None for one that tells nothing, is cut short or damaged."""
    if len(frame) < _ETHERNET.size:
        return None
    kind = _ETHERNET.unpack_from(frame)[2]
    read = {ARP: _read_arp, IPV6: _read_ipv6}.get(kind)
    return read(frame[_ETHERNET.size :]) if read else None


def _arp_probe(mac: bytes, address: IPv4Address) -> bytes:
    body = _ARP.pack(*_ARP_IS, _REQUEST, mac, UNSPECIFIED.packed, bytes(6), address.packed)
    return _ETHERNET.pack(BROADCAST, mac, ARP) + body


def _solicitation(mac: bytes, address: IPv6Address) -> bytes:
    source, to = _link_local(mac), IPv6Address("ff02::1:ff00:0").packed[:13] + address.packed[13:]
    unchecked = _ICMP.pack(_SOLICITATION, 0, 0, 0, address.packed) + _SOURCE_LINK_ADDRESS + mac
    body = unchecked[:2] + struct.pack("!H", _checksum(source, to, unchecked)) + unchecked[4:]
    header = _IPV6.pack(6 << 28, len(body), _ICMPV6, _HOPS, source, to)
    return _ETHERNET.pack(b"\x33\x33" + to[12:], mac, IPV6) + header + body


def _link_local(mac: bytes) -> bytes:
    identifier = bytes([mac[0] ^ 2]) + mac[1:3] + b"\xff\xfe" + mac[3:]
    return bytes.fromhex("fe80000000000000") + identifier


def _read_arp(packet: bytes) -> AddressAnswer | None:
    if len(packet) < _ARP.size:
        return None
    *kind, operation, _, sender, _, target = _ARP.unpack_from(packet)
    if tuple(kind) != _ARP_IS or operation not in {_REQUEST, _REPLY}:
        return None
    if sender != UNSPECIFIED.packed:
        return AddressAnswer(IPv4Address(sender))
    return AddressAnswer(IPv4Address(target), claimed=True) if operation == _REQUEST else None


def _read_ipv6(packet: bytes) -> AddressAnswer | None:
    """Read an advertisement; RFC 4861 §7.1.2 says which to discard."""
    if len(packet) < _IPV6.size + _ICMP.size:
        return None
    _, length, following, hops, source, to = _IPV6.unpack_from(packet)
    body = packet[_IPV6.size : _IPV6.size + length]
    if (following, hops) != (_ICMPV6, _HOPS) or len(body) < max(length, _ICMP.size) or _checksum(source, to, body):
        return None
    kind, code, _, _, target = _ICMP.unpack_from(body)
    return AddressAnswer(IPv6Address(target)) if (kind, code) == (_ADVERTISEMENT, 0) else None


def _checksum(source: bytes, to: bytes, body: bytes) -> int:
    """Compute the checksum of ICMPv6 (RFC 4443 §2.3); 0 over a body that has its own in it."""
    data = source + to + struct.pack("!II", len(body), _ICMPV6) + body + b"\0" * (len(body) % 2)
    total: int = sum(struct.unpack(f"!{len(data) // 2}H", data))
    return _ONES - 1 - (total - 1) % _ONES  # carries added again, then the complement: RFC 1071


RESEND_S = 0.5
ADDRESS_CLAIM_S = 6.0
"""So long RFC 5227 takes from the first probe at most: two more with PROBE_MAX between them, and ANNOUNCE_WAIT.

A guest that finds out whether it may have its address would take our probe for another claim to it. It announces itself
afterwards.
"""
MAX_FRAME, MAX_FRAMES = 2048, 1000
"""Bytes of a frame, and frames that are read at a time: guests that never stop sending keep nobody from going on."""


class AddressProbe:
    """Open while one call waits. Frames that come between two questions are kept by the kernel."""

    def __init__(self, bridge: str, clock: Callable[[], float] = time.monotonic) -> None:
        """Listen on ``bridge``; raises Refused when this machine has none of that name."""
        self._bridge = bridge
        self._clock = clock
        self._claims: dict[IpAddress, float] = {}
        with _translate_errors(bridge), ExitStack() as opened:
            self._by_kind = {kind: opened.enter_context(_open_packet_socket(bridge, kind)) for kind in (ARP, IPV6)}
            self._mac: bytes = self._by_kind[ARP].getsockname()[4]
            self._opened = opened.pop_all()
        self._poll = select.poll()  # select() refuses descriptors past 1023
        for one in self._by_kind.values():
            self._poll.register(one, select.POLLIN)

    def __enter__(self) -> Self:
        """Use it as a context."""
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        """Stop listening."""
        self._opened.close()

    def ask(self, addresses: Iterable[IpAddress], seconds: float) -> frozenset[IpAddress]:
        """Give those that somebody was heard to have; returns when all were, or ``seconds`` are over.

        Raises Refused when the bridge went.
        """
        wanted, again, ends = frozenset(addresses), 0.0, self._clock() + seconds
        with _translate_errors(self._bridge):
            silent = wanted - self._listen(wanted, 0)
            while silent and (now := self._clock()) < ends:
                if now >= again:
                    self._send(one for one in silent if not self._is_claimed(one))
                    again = now + RESEND_S
                silent -= self._listen(wanted, min(ends, again) - now)
        return wanted - silent

    def _is_claimed(self, address: IpAddress) -> bool:
        return address in self._claims and self._clock() < self._claims[address] + ADDRESS_CLAIM_S

    def _send(self, addresses: Iterable[IpAddress]) -> None:
        for address in addresses:
            self._by_kind[ARP].send(build_probe(self._mac, address))

    def _listen(self, wanted: frozenset[IpAddress], seconds: float) -> set[IpAddress]:
        """Give who is heard next; nobody after ``seconds``. Of an address only the first claim counts."""
        self._poll.poll(max(seconds, 0) * 1000)
        frames = (frame for listener in self._by_kind.values() for frame in islice(_read_frames(listener), MAX_FRAMES))
        told = [one for frame in frames if (one := parse_frame(frame)) and one.address in wanted]
        self._claims = {one.address: self._clock() for one in told if one.claimed} | self._claims
        return {one.address for one in told if not one.claimed}


def _open_packet_socket(bridge: str, kind: int) -> socket.socket:
    made = socket.socket(socket.AF_PACKET, socket.SOCK_RAW, 0)  # of no kind: it hears nothing of other interfaces
    try:
        made.bind((bridge, kind))
        made.setblocking(False)
    except OSError:
        made.close()
        raise
    return made


def _read_frames(listener: socket.socket) -> Iterator[bytes]:
    while True:
        try:
            yield listener.recv(MAX_FRAME)
        except BlockingIOError:
            return


@contextmanager
def _translate_errors(bridge: str) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise Refused(f"cannot ask on bridge {bridge} of this machine: {error.strerror}") from error
