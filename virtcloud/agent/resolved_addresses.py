"""Addresses that no DNS name may have. Pure.

With such an address, the owner of a name could direct a host to internal services (DNS rebinding). The table in
`fqdn_answers` describes the forbidden addresses.
"""

from collections.abc import Iterator
from ipaddress import IPv4Address, IPv6Address, IPv6Network, ip_address, ip_network
from typing import Final

from virtcloud.agent.gateway.outside_links import FORBIDDEN4, FORBIDDEN6, LINKS4, LINKS6

METADATA: Final = ("100.100.100.200/32", "168.63.129.16/32", "192.0.0.0/24", "fd00:ec2::/32", "fd20:ce::/64")
_TUNNELS: Final = ("::/96", "::ffff:0:0/96", "64:ff9b:1::/48", "2001::/32", "2002::/16")
"""IPv6 networks whose addresses contain an IPv4 address (RFC 4291, 8215, 4380, 3056)."""
_NAT64: Final = IPv6Network("64:ff9b::/96")
_FORBIDDEN: Final = tuple(
    map(ip_network, (*FORBIDDEN4.split(", "), *FORBIDDEN6.split(", "), str(LINKS4), str(LINKS6), *METADATA, *_TUNNELS))
)


def find_forbidden(address: str) -> str | None:
    """Return why no name may have this address, or None if no forbidden network contains the address."""
    for form in list_forms(ip_address(address)):
        for network in _FORBIDDEN:
            if form in network:
                return f"{address} is in {network}, to which no name may lead"
    return None


def is_public(address: str) -> bool:
    """Return whether an address is globally reachable and not forbidden."""
    return find_forbidden(address) is None and all(form.is_global for form in list_forms(ip_address(address)))


def list_forms(address: IPv4Address | IPv6Address) -> Iterator[IPv4Address | IPv6Address]:
    """Yield an address and, if a NAT64 translator (RFC 6052) maps this address to an IPv4 address, the IPv4 address."""
    yield address
    if address in _NAT64:
        yield IPv4Address(int(address) & 0xFFFFFFFF)
