"""PURE. The frames that ask whether a guest is up, from a machine without an address there, and their answers.

IPv4 is asked by an ARP probe (RFC 826, RFC 5227 §2.1.1): its sender is 0.0.0.0, so no cache learns from it. IPv6
is asked by a neighbour solicitation (RFC 4861 §4.3) from the bridge's own link-local address (RFC 4291 appendix A). One
from the unspecified address, which duplicate address detection sends, would be the end of an address that its guest is
just about to take (RFC 4862 §5.4.3).
"""

import struct
from dataclasses import dataclass
from ipaddress import IPv4Address, IPv6Address

IP = IPv4Address | IPv6Address
ARP, IPV6 = 0x0806, 0x86DD
BROADCAST = b"\xff" * 6
NOBODY = IPv4Address(0)
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
class Heard:
    """What a frame tells of an address: somebody has it, or (``claimed``) is finding out whether it may."""

    address: IP
    claimed: bool = False


def probe(mac: bytes, address: IP) -> bytes:
    """Write the frame that asks for ``address`` from the interface with this MAC address."""
    return _arp_probe(mac, address) if isinstance(address, IPv4Address) else _solicitation(mac, address)


def heard(frame: bytes) -> Heard | None:
    """Read a frame; None for one that tells nothing, is cut short or damaged."""
    if len(frame) < _ETHERNET.size:
        return None
    kind = _ETHERNET.unpack_from(frame)[2]
    read = {ARP: _read_arp, IPV6: _read_ipv6}.get(kind)
    return read(frame[_ETHERNET.size :]) if read else None


def _arp_probe(mac: bytes, address: IPv4Address) -> bytes:
    body = _ARP.pack(*_ARP_IS, _REQUEST, mac, NOBODY.packed, bytes(6), address.packed)
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


def _read_arp(packet: bytes) -> Heard | None:
    if len(packet) < _ARP.size:
        return None
    *kind, operation, _, sender, _, target = _ARP.unpack_from(packet)
    if tuple(kind) != _ARP_IS or operation not in {_REQUEST, _REPLY}:
        return None
    if sender != NOBODY.packed:
        return Heard(IPv4Address(sender))
    return Heard(IPv4Address(target), claimed=True) if operation == _REQUEST else None


def _read_ipv6(packet: bytes) -> Heard | None:
    """Read an advertisement; RFC 4861 §7.1.2 says which to discard."""
    if len(packet) < _IPV6.size + _ICMP.size:
        return None
    _, length, following, hops, source, to = _IPV6.unpack_from(packet)
    body = packet[_IPV6.size : _IPV6.size + length]
    if (following, hops) != (_ICMPV6, _HOPS) or len(body) < max(length, _ICMP.size) or _checksum(source, to, body):
        return None
    kind, code, _, _, target = _ICMP.unpack_from(body)
    return Heard(IPv6Address(target)) if (kind, code) == (_ADVERTISEMENT, 0) else None


def _checksum(source: bytes, to: bytes, body: bytes) -> int:
    """Compute the checksum of ICMPv6 (RFC 4443 §2.3); 0 over a body that has its own in it."""
    data = source + to + struct.pack("!II", len(body), _ICMPV6) + body + b"\0" * (len(body) % 2)
    total: int = sum(struct.unpack(f"!{len(data) // 2}H", data))
    return _ONES - 1 - (total - 1) % _ONES  # carries added again, then the complement: RFC 1071
