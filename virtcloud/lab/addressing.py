"""Names and addresses that the lab itself uses (RFC 2544 gives 198.18.0.0/15 to test networks)."""

from ipaddress import IPv4Address
from typing import Final

STATION: Final = "station"
USER: Final = "user"
RESERVED_NODES: Final = frozenset({STATION, USER, "fabric"})
RESERVED_PORTS: Final = frozenset({"up", "all", "lo", "br0", "mgmt0", "outside0", "default", "none"})

STATION_ADDRESS: Final = "198.18.0.1"
FABRIC_ADDRESS: Final = "198.18.0.2"
FABRIC_PORT: Final = 7000
SBF_PORT: Final = 8800
SBF_SOCKET: Final = "/run/virtcloud/sbf.sock"
CREDENTIAL: Final = "lab"
SWITCH_ACCOUNT: Final = "switch"
PREFIX: Final = 16
USERS: Final = {"alice": 2001, "bob": 2002}
"""Batch users, and their numbers."""

_FIRST_NODE: Final = IPv4Address("198.18.1.0")
_FIRST_OUTSIDE: Final = IPv4Address("198.19.1.0")
_FABRIC: Final = IPv4Address("192.0.2.0")  # TEST-NET-1 (RFC 5737): wires between edges and the core of an EVPN fabric


def management_address(number: int) -> str:
    """Give the management address of the lab's node ``number`` (from 1)."""
    return str(_FIRST_NODE + number)


def outside_address(number: int) -> str:
    """Give the address of node ``number`` on the network outside."""
    return str(_FIRST_OUTSIDE + number)


def fabric_addresses(number: int) -> tuple[IPv4Address, IPv4Address]:
    """Give the addresses of both ends of wire ``number`` (from 0) of an EVPN fabric, the core's first (RFC 3021)."""
    return _FABRIC + 2 * number, _FABRIC + 2 * number + 1
