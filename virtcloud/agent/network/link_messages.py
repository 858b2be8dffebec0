"""PURE. The content of rtnetlink's messages about interfaces and addresses (linux/if_link.h, linux/if_addr.h).

The numbers are part of the kernel's interface to programs. They do not change.
"""

import socket
import struct
from collections.abc import Container
from dataclasses import dataclass
from enum import IntEnum
from ipaddress import IPv6Address
from types import MappingProxyType
from typing import Final

from virtcloud.agent.network.interfaces import KernelInterface
from virtcloud.agent.network.netlink import (
    Attributes,
    Values,
    decode_attributes,
    decode_integer,
    decode_text,
    encode_attributes,
    nested,
    text,
    u32,
)

UP: Final = 1
"""The flag IFF_UP of an interface (linux/if.h)."""
SCOPE_LINK: Final = 253
"""RT_SCOPE_LINK (linux/rtnetlink.h). An address with this scope or a higher scope is valid on one link only."""
NO_STATISTICS: Final = u32(8)
"""The value of EXT_MASK with which the kernel omits the counters of interfaces (RTEXT_FILTER_SKIP_STATS)."""
_LINK: Final = struct.Struct("=BxHiII")
_ADDRESS: Final = struct.Struct("=BBBBI")
_RP_FILTER, _ARP_IGNORE, _DISABLE_IPV6 = 7, 18, 26
"""Positions in the lists of IPv4 (IPV4_DEVCONF_*, minus 1; linux/ip.h) and of IPv6 (DEVCONF_*; linux/ipv6.h)."""
_CONF: Final = {socket.AF_INET: 1, socket.AF_INET6: 2}
"""The attributes IFLA_INET_CONF and IFLA_INET6_CONF, by address family."""


class LinkAttribute(IntEnum):
    """Attributes of an interface (IFLA_*)."""

    ADDRESS = 1
    IFNAME = 3
    MTU = 4
    LINK = 5
    MASTER = 10
    PROTINFO = 12
    LINKINFO = 18
    NET_NS_PID = 19
    IFALIAS = 20
    AF_SPEC = 26
    EXT_MASK = 29


class LinkInfo(IntEnum):
    """Attributes of an interface's kind (IFLA_INFO_*)."""

    KIND = 1
    DATA = 2
    SLAVE_KIND = 4
    SLAVE_DATA = 5


class VlanData(IntEnum):
    """Attributes of an 802.1Q interface (IFLA_VLAN_*)."""

    ID = 1


class VethData(IntEnum):
    """Attributes of a veth pair (linux/veth.h)."""

    PEER = 1


class BridgeData(IntEnum):
    """Attributes of a bridge (IFLA_BR_*)."""

    STP_STATE = 5
    MCAST_SNOOPING = 23
    NF_CALL_IPTABLES = 36
    NF_CALL_IP6TABLES = 37
    NF_CALL_ARPTABLES = 38


class PortData(IntEnum):
    """Attributes of a bridge's port (IFLA_BRPORT_*)."""

    MODE = 4
    ISOLATED = 33


FILTERS = (BridgeData.NF_CALL_IPTABLES, BridgeData.NF_CALL_IP6TABLES, BridgeData.NF_CALL_ARPTABLES)
_NO_ATTRIBUTES: Final[Values] = MappingProxyType({})


@dataclass(frozen=True, slots=True)
class InterfaceAddress:
    """An address of an interface. ``address`` has the octets of the packet's field."""

    index: int
    scope: int
    prefix_length: int
    address: bytes


def encode_link(
    index: int = 0,
    attributes: Values = _NO_ATTRIBUTES,
    *,
    up: bool | None = None,
    family: int = socket.AF_UNSPEC,
) -> bytes:
    """Return a message about an interface. ``up`` changes the state of the interface; None: the state stays."""
    flags, changed = UP if up else 0, 0 if up is None else UP
    return _LINK.pack(family, 0, index, flags, changed) + encode_attributes(attributes)


def encode_kind(kind: str, data: Values) -> Values:
    """Return the attribute with the kind of an interface and the attributes of that kind."""
    info = {LinkInfo.KIND: text(kind), nested(LinkInfo.DATA): encode_attributes(data)}
    return {nested(LinkAttribute.LINKINFO): encode_attributes(info)}


def encode_address(index: int, address: IPv6Address, prefix_length: int) -> bytes:
    """Return a message about an IPv6 address of an interface."""
    local_address = {1: address.packed}  # IFA_ADDRESS
    return _ADDRESS.pack(socket.AF_INET6, prefix_length, 0, 0, index) + encode_attributes(local_address)


def encode_address_query(family: int = socket.AF_UNSPEC) -> bytes:
    """Return a query for the addresses of a family, or of all families."""
    return _ADDRESS.pack(family, 0, 0, 0, 0)


def parse_address(message: memoryview) -> InterfaceAddress:
    """Parse a message about an address."""
    _, prefix_length, _, scope, index = _ADDRESS.unpack_from(message)
    address = decode_attributes(message[_ADDRESS.size :]).get(1, b"")
    return InterfaceAddress(index, scope, prefix_length, bytes(address))


def parse_index(message: memoryview) -> int:
    """Return the index of the interface in a message."""
    return int(_LINK.unpack_from(message)[2])


def parse_interface(message: memoryview, addressed: Container[int]) -> KernelInterface:
    """Parse a message about an interface. ``addressed`` are the indices of interfaces with addresses of this host."""
    _, _, index, flags, _ = _LINK.unpack_from(message)
    attributes = decode_attributes(message[_LINK.size :])
    info = _decode_nested(attributes, LinkAttribute.LINKINFO)
    kind = decode_text(info.get(LinkInfo.KIND))
    data = _decode_nested(info, LinkInfo.DATA) if kind in {"vlan", "bridge"} else {}
    return KernelInterface(
        index=index,
        name=decode_text(attributes[LinkAttribute.IFNAME]) or "",
        kind=kind,
        alias=decode_text(attributes.get(LinkAttribute.IFALIAS)),
        parent=decode_integer(attributes.get(LinkAttribute.LINK)),
        master=decode_integer(attributes.get(LinkAttribute.MASTER)),
        vlan=decode_integer(data.get(VlanData.ID)) if kind == "vlan" else None,
        mtu=decode_integer(attributes.get(LinkAttribute.MTU)) or 0,
        up=bool(flags & UP),
        host_ip_disabled=_is_host_ip_disabled(_decode_nested(attributes, LinkAttribute.AF_SPEC)),
        addressed=index in addressed,
        packet_filtered=kind == "bridge" and any(decode_integer(data.get(option)) for option in FILTERS),
        isolated=_has_port_flag(info, PortData.ISOLATED),
        hairpin=_has_port_flag(info, PortData.MODE),
    )


def _decode_nested(attributes: Attributes, kind: int) -> Attributes:
    return decode_attributes(attributes[kind]) if kind in attributes else {}


def _has_port_flag(info: Attributes, flag: PortData) -> bool:
    if decode_text(info.get(LinkInfo.SLAVE_KIND)) != "bridge":
        return False
    return bool(decode_integer(_decode_nested(info, LinkInfo.SLAVE_DATA).get(flag)))


def _is_host_ip_disabled(families: Attributes) -> bool:
    """Return whether the host's IP stack does not use the interface. A kernel without IPv6 has no list for IPv6."""
    ipv4, ipv6 = (_decode_nested(families, family).get(_CONF[family]) for family in (socket.AF_INET, socket.AF_INET6))
    return (ipv4 is None or (_setting(ipv4, _RP_FILTER), _setting(ipv4, _ARP_IGNORE)) == (1, 1)) and (
        ipv6 is None or _setting(ipv6, _DISABLE_IPV6) == 1
    )


def _setting(settings: memoryview, position: int) -> int:
    return int(struct.unpack_from("=i", settings, 4 * position)[0])
