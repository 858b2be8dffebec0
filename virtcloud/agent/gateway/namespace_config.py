"""PURE. The network namespace of a gateway in a network: its interface, its sysctls and its packet filter.

Clusters have identical addresses. Therefore a gateway has a namespace for each network in which it has addresses. The
interface `DEVICE` of the namespace is connected to the network's bridge. Guests and devices can ping the gateway's
addresses. All other packets to these addresses are dropped, unless they answer a connection of a program in the
namespace. The namespace forwards no packets.
"""

from dataclasses import dataclass
from hashlib import sha256
from typing import Any, Final

from virtcloud.agent.network.owned_tables import OwnedChain, OwnedTable
from virtcloud.model.values import Mac
from virtcloud.model.wanted import Segment

DEVICE: Final = "eth0"
"""The interface of a namespace in its network."""
PINGS_PER_S: Final = 100
_TABLE: Final = "virtcloud"
_NEIGHBOURS: Final = "nd-neighbor-solicit, nd-neighbor-advert"
_INPUT: Final = (
    'iifname "lo" accept',
    "ct state established,related accept",
    "ct state invalid drop",
    f"icmpv6 type {{ {_NEIGHBOURS} }} ip6 hoplimit 255 accept",
    f"icmp type echo-request limit rate {PINGS_PER_S}/second accept",
    f"icmpv6 type echo-request limit rate {PINGS_PER_S}/second accept",
)

_SYSCTLS: Final = {
    "ipv4/conf/all/forwarding": "0",
    "ipv6/conf/all/forwarding": "0",
    "ipv4/conf/all/rp_filter": "1",
    "ipv4/conf/all/arp_ignore": "1",
    "ipv4/conf/all/accept_redirects": "0",
    "ipv4/conf/all/send_redirects": "0",
    "ipv4/conf/all/accept_source_route": "0",
    f"ipv4/conf/{DEVICE}/accept_redirects": "0",
    f"ipv4/conf/{DEVICE}/send_redirects": "0",
    f"ipv6/conf/{DEVICE}/accept_ra": "0",
    f"ipv6/conf/{DEVICE}/accept_redirects": "0",
    f"ipv6/conf/{DEVICE}/accept_dad": "0",
    f"ipv6/conf/{DEVICE}/disable_ipv6": "0",
}
"""The sysctls in the order in which they are written: a change of ``forwarding`` resets others.

Duplicate address detection is off, because SBF assigns no address twice.
"""
SYSCTLS: Final = tuple(_SYSCTLS)


@dataclass(frozen=True, slots=True)
class NamespaceConfig:
    """What a namespace should have. ``addresses`` are those of `DEVICE`, ``sysctls`` are below ``/proc/sys/net``."""

    addresses: tuple[str, ...]
    sysctls: dict[str, str]
    table: OwnedTable

    def as_specification(self) -> dict[str, Any]:
        """Return the specification for `namespace_program`."""
        return {
            "device": DEVICE,
            "addresses": self.addresses,
            "sysctls": self.sysctls,
            "rules": self.table.render(),
            "removal": self.table.render_removal(),
        }


def make_namespace_config(segment: Segment) -> NamespaceConfig:
    """Return the configuration of a gateway's namespace in a network."""
    return NamespaceConfig(segment.gateway_addresses, _SYSCTLS, _make_table())


def derive_gateway_mac(segment: Segment) -> Mac:
    """Return the MAC address of a gateway in a network. It is the same after each creation of the interface."""
    octets = bytearray(sha256(f"{segment.id}/{segment.gateway_addresses[0]}".encode()).digest()[:6])
    octets[0] = octets[0] & 0x7C | 0x02  # locally administered and unicast (IEEE 802c), as guests' addresses
    return Mac(octets.hex(":"))


def _make_table() -> OwnedTable:
    return OwnedTable(
        "inet",
        _TABLE,
        {
            "input": OwnedChain(_INPUT, "filter hook input priority 0; policy drop"),
            "forward": OwnedChain((), "filter hook forward priority 0; policy drop"),
        },
    )
