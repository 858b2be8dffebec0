"""Removes connections of ended publications from the kernel's connection table (ctnetlink, nf_conntrack_netlink.h).

A publication is a port of the gateway that leads to a guest. A connection's entry remains while the client sends
packets, even after the publication's end. If the port is later published for another guest, a UDP client with the same
source port would reach the former guest.

`namespace_program` uses this module too, so the module imports only the standard library.
"""

import os
import socket
import struct
from collections.abc import Collection, Iterator
from ipaddress import IPv4Network, IPv6Network, ip_address
from typing import Any, Final, NamedTuple

from virtcloud.agent.network.libnftables import NETLINK_NETFILTER

CT_GET, CT_DELETE = 0x101, 0x102
"""Message types: NFNL_SUBSYS_CTNETLINK in the high byte, IPCTNL_MSG_CT_GET or IPCTNL_MSG_CT_DELETE in the low byte."""
REQUEST, ACK, DUMP = 0x1, 0x4, 0x300
ERROR, DONE = 2, 3
HEADER: Final = struct.Struct("=IHHII")
ATTRIBUTE: Final = struct.Struct("=HH")
GENERAL: Final = struct.Struct("!BBH")
NESTED: Final = 0x8000
TUPLE_ORIGINAL, TUPLE_REPLY, STATUS, ZONE = 1, 2, 3, 18
TUPLE_IP, TUPLE_PROTOCOL = 1, 2
SOURCE, DESTINATION = (1, 3), (2, 4)
"""The types of the attributes with the source and the destination address: for each, the IPv4 and the IPv6 type."""
NUMBER, SOURCE_PORT, DESTINATION_PORT = 1, 2, 3
TRANSLATED: Final = 1 << 5  # IPS_DST_NAT
PROTOCOLS: Final = {socket.IPPROTO_TCP: "tcp", socket.IPPROTO_UDP: "udp"}
RECEIVE_S: Final = 10.0
BUFFER: Final = 1 << 18
Links = Collection[IPv4Network | IPv6Network]


class Translation(NamedTuple):
    """The translation (DNAT) of a destination, from ``address`` and ``port`` to ``target`` and ``target_port``."""

    protocol: str
    address: str
    port: int
    target: str
    target_port: int


def remove_ended_connections(current: Collection[Translation], links: Links) -> int:
    """Remove the entries of connections whose translation is not in ``current``. Return the number of removed entries.

    Keep entries whose destinations are both outside the networks of ``links``. Raise OSError if the kernel has no
    connection table, or refuses a removal.
    """
    removed = 0
    for family in (socket.AF_INET, socket.AF_INET6):
        with socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, NETLINK_NETFILTER) as table:
            table.settimeout(RECEIVE_S)
            for connection in list(_list_connections(table, family)):
                found = _read_translation(connection)
                if found is not None and found not in current and _is_published(found, links):
                    removed += _remove(table, family, connection)
    return removed


def _is_published(found: Translation, links: Links) -> bool:
    ends = [ip_address(text) for text in (found.address, found.target)]
    return any(end in network for end in ends for network in links if end.version == network.version)


def _list_connections(table: socket.socket, family: int) -> Iterator[dict[int, bytes]]:
    table.send(_make_message(CT_GET, REQUEST | DUMP, family))
    while True:
        for kind, payload in _split_messages(table.recv(BUFFER)):
            if kind == DONE:
                return
            if kind == ERROR:
                _raise_error(payload)
            yield dict(_split_attributes(payload[GENERAL.size :]))


def _remove(table: socket.socket, family: int, connection: dict[int, bytes]) -> int:
    named = {TUPLE_ORIGINAL | NESTED: connection[TUPLE_ORIGINAL]}
    if ZONE in connection:
        named[ZONE] = connection[ZONE]
    table.send(_make_message(CT_DELETE, REQUEST | ACK, family, b"".join(map(_make_attribute, named, named.values()))))
    for _, payload in _split_messages(table.recv(BUFFER)):
        try:
            _raise_error(payload)
        except FileNotFoundError:
            return 0
    return 1


def _read_translation(connection: dict[int, bytes]) -> Translation | None:
    if not int.from_bytes(connection.get(STATUS, b"")) & TRANSLATED:
        return None
    original, reply = _read_tuple(connection[TUPLE_ORIGINAL]), _read_tuple(connection[TUPLE_REPLY])
    protocol = PROTOCOLS.get(original["protocol"])
    if protocol is None:
        return None
    return Translation(
        protocol, original["destination"], original["destination_port"], reply["source"], reply["source_port"]
    )


def _read_tuple(data: bytes) -> dict[str, Any]:
    parts = dict(_split_attributes(data))
    addresses, protocol = dict(_split_attributes(parts[TUPLE_IP])), dict(_split_attributes(parts[TUPLE_PROTOCOL]))
    return {
        "source": _read_address(addresses, SOURCE),
        "destination": _read_address(addresses, DESTINATION),
        "protocol": protocol[NUMBER][0],
        "source_port": int.from_bytes(protocol.get(SOURCE_PORT, b"")),
        "destination_port": int.from_bytes(protocol.get(DESTINATION_PORT, b"")),
    }


def _read_address(addresses: dict[int, bytes], kinds: tuple[int, int]) -> str:
    return str(next(ip_address(addresses[kind]) for kind in kinds if kind in addresses))


def _make_message(kind: int, flags: int, family: int, attributes: bytes = b"") -> bytes:
    payload = GENERAL.pack(family, 0, 0) + attributes
    return HEADER.pack(HEADER.size + len(payload), kind, flags, 0, 0) + payload


def _make_attribute(kind: int, value: bytes) -> bytes:
    return ATTRIBUTE.pack(ATTRIBUTE.size + len(value), kind) + value + bytes(-len(value) % 4)


def _split_messages(data: bytes) -> Iterator[tuple[int, bytes]]:
    while data:
        length, kind, *_ = HEADER.unpack_from(data)
        yield kind, data[HEADER.size : length]
        data = data[length + -length % 4 :]


def _split_attributes(data: bytes) -> Iterator[tuple[int, bytes]]:
    while data:
        length, kind = ATTRIBUTE.unpack_from(data)
        yield kind & ~NESTED, data[ATTRIBUTE.size : length]
        data = data[length + -length % 4 :]


def _raise_error(payload: bytes) -> None:
    (number,) = struct.unpack_from("=i", payload)
    if number:
        raise OSError(-number, os.strerror(-number))
