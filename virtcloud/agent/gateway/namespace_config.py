"""The network namespace of a gateway in a network: its interfaces, its sysctls and its packet filters. Pure.

Clusters may have identical addresses, so a gateway has a separate namespace for each network in which it has addresses.
The interface `DEVICE` of the namespace is a bridge, whose only port, `PORT`, is connected to the network's bridge. So
the packet filter can have the family ``bridge``: every kernel that can filter guests' frames supports this family.

Guests and devices can ping the gateway's addresses, and use the gateway's file server if there is one. At these
addresses, the filter accepts new TCP connections (SYN without ACK, RFC 9293) only to the file server. The filter drops
fragments, because their flags cannot be checked.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from ipaddress import ip_interface
from typing import Any, Final

from virtcloud.agent.file_servers.ganesha_config import PORT as NFS_PORT
from virtcloud.agent.gateway.connection_table import Translation
from virtcloud.agent.gateway.outside_links import (
    LINKS4,
    LINKS6,
    NEIGHBOURS,
    OUTSIDE,
    ListAdmitted,
    admit_none,
    find_link_addresses,
    has_link,
    list_published_translations,
    make_gateway_sets,
    make_inner_rules,
    make_sets,
)
from virtcloud.agent.network.owned_tables import OwnedChain, OwnedTable
from virtcloud.model.wanted import Segment

DEVICE: Final = "eth0"
"""The bridge in a namespace, with the gateway's addresses in the network."""
PORT: Final = "port0"
"""One end of a veth pair, and the only port of `DEVICE`. The other end is a port of the network's bridge."""
PINGS_PER_S: Final = 100
FILTER: Final = ("bridge", "virtcloud")
ROUTING: Final = ("inet", "virtcloud")
"""Family and name of the tables of a namespace. `ROUTING` exists only if the network has a link to the outside."""
_BASE_SYSCTLS: Final = {
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
    f"ipv6/conf/{PORT}/disable_ipv6": "1",
}
"""Duplicate address detection (``accept_dad``) is off, because SBF assigns each address only once."""
_FORWARDING: Final = ("ipv4/conf/all/forwarding", "ipv6/conf/all/forwarding")
"""These sysctls are written first: when they change, the kernel resets other sysctls."""
SYSCTLS: Final = (*_FORWARDING, *_BASE_SYSCTLS)


@dataclass(frozen=True, slots=True)
class NamespaceConfig:
    """The wanted configuration of a namespace. ``addresses`` maps an interface to its addresses with prefix lengths.

    ``sysctls`` maps a path below ``/proc/sys/net`` to a value.
    """

    addresses: dict[str, tuple[str, ...]]
    sysctls: dict[str, str]
    tables: tuple[OwnedTable, ...]
    routers: tuple[str, ...] = ()
    """The addresses of the next hops of default routes."""
    translations: tuple[Translation, ...] | None = None
    """The translations of published ports. The kernel's records of connections with any other translation are removed.

    The value is None if the network has no link to the outside.
    """

    def as_specification(self) -> dict[str, Any]:
        """Return the configuration as a request for `namespace_program`."""
        return {
            "bridge": {"name": DEVICE, "port": PORT},
            "addresses": self.addresses,
            "sysctls": self.sysctls,
            "tables": [(table.render_removal(), table.render()) for table in self.tables],
            "unwanted": OwnedTable(*ROUTING, {}).render_removal() if len(self.tables) == 1 else "",
            "routers": self.routers,
            "outside": OUTSIDE,
            "translations": self.translations,
            "links": (str(LINKS4), str(LINKS6)),
        }


def make_namespace_config(
    segment: Segment, list_admitted: ListAdmitted = admit_none, gateway: Iterable[str] = ()
) -> NamespaceConfig:
    """Return the wanted configuration of a gateway's namespace in a network.

    ``list_admitted`` returns the addresses of a destination's FQDNs. ``gateway`` are the addresses of the gateway's own
    network stack, to which guests may not open connections.
    """
    own = (*segment.gateway_addresses, *(segment.router.addresses if segment.router else ()))
    if not has_link(segment):
        return NamespaceConfig({DEVICE: own}, _make_sysctls("0"), (_make_filter(segment),))
    link = find_link_addresses(segment.vlan)
    return NamespaceConfig(
        {DEVICE: own, OUTSIDE: link.namespace},
        _make_sysctls("1"),
        (_make_filter(segment, _list_routed(own)), make_routing(segment, list_admitted, gateway)),
        tuple(address.partition("/")[0] for address in link.gateway),
        tuple(sorted(list_published_translations((segment,)))),
    )


def _make_sysctls(forwarding: str) -> dict[str, str]:
    return {**dict.fromkeys(_FORWARDING, forwarding), **_BASE_SYSCTLS}


def _make_filter(segment: Segment, routed: tuple[str, ...] = ()) -> OwnedTable:
    rules = (
        "ether type arp accept",
        "icmpv6 type { 135, 136 } ip6 hoplimit 255 accept",
        "ip frag-off & 0x3fff != 0 drop",
        "exthdr frag exists drop",
        *routed,
        f"icmp type echo-request limit rate {PINGS_PER_S}/second accept",
        f"icmpv6 type echo-request limit rate {PINGS_PER_S}/second accept",
        "icmp type { echo-reply, destination-unreachable, time-exceeded } accept",
        "icmpv6 type { 1, 2, 3, 129 } accept",
        "meta l4proto tcp tcp flags & (syn | ack) != syn accept",
        *((f"tcp dport {NFS_PORT} accept",) if segment.nfs is not None else ()),
    )
    return OwnedTable(*FILTER, {"input": OwnedChain(rules, "filter hook input priority 0; policy drop")})


def _list_routed(own: tuple[str, ...]) -> tuple[str, ...]:
    """Return rules that accept packets to other addresses than ``own``, which the table `ROUTING` filters."""
    addresses = [ip_interface(text).ip for text in own]
    own4, own6 = (", ".join(str(one) for one in addresses if one.version == version) for version in (4, 6))
    return (
        f"meta pkttype host ether type ip {f'ip daddr != {{ {own4} }} ' if own4 else ''}accept",
        f"meta pkttype host ether type ip6 {f'ip6 daddr != {{ {own6}, fe80::/10 }}' if own6 else ''} accept",
    )


def make_routing(segment: Segment, list_admitted: ListAdmitted = admit_none, gateway: Iterable[str] = ()) -> OwnedTable:
    """Return the table `ROUTING`, which filters forwarded packets and translates their addresses.

    The table drops packets to ``gateway``, the addresses of the gateway's own network stack. The filter in the main
    namespace (`outside_links`) also drops these packets, but an administrator may remove that filter by mistake.
    """
    own = (*segment.gateway_addresses, *(segment.router.addresses if segment.router else ()))
    rules = make_inner_rules(segment, DEVICE)
    addresses = [ip_interface(text).ip for text in own]
    local = (
        'iifname "lo" accept',
        "ct state established,related accept",
        f'iifname "{DEVICE}" icmpv6 type {{ 133, 135, 136 }} accept',
        f'iifname "{OUTSIDE}" {NEIGHBOURS}',
        *(
            f'iifname "{DEVICE}" {"ip" if one.version == 4 else "ip6"} daddr {one} accept'  # noqa: PLR2004 - IPv4
            for one in addresses
        ),
    )
    return OwnedTable(
        *ROUTING,
        {
            "input": OwnedChain(local, "filter hook input priority 0; policy drop"),
            "forward": OwnedChain(rules.forward, "filter hook forward priority 0; policy drop"),
            "prerouting": OwnedChain(rules.prerouting, "nat hook prerouting priority -100; policy accept"),
            "postrouting": OwnedChain(rules.postrouting, "nat hook postrouting priority 100; policy accept"),
        },
        address_sets={**make_sets((segment,), list_admitted), **make_gateway_sets(gateway)},
    )
