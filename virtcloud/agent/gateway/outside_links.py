"""The links between a gateway's main namespace and the namespaces of networks, and the links' packet filter. Pure.

The router of a network sends packets to allowed destinations through a veth pair. One end is `OUTSIDE` in the network's
namespace. The other end is ``vu<vlan>`` in the gateway's main namespace. Each end has one address in `LINKS4` and one
in `LINKS6`. Guests of different clusters may have the same address. Therefore the network's namespace replaces a
packet's source address by the address of `OUTSIDE`, and the main namespace replaces this address by the gateway's own
address.

====================================  ================================================================================
packets from a cluster to             are dropped, because
====================================  ================================================================================
the gateway                           the chain ``input`` drops packets from links, except neighbour discovery
SBF, the management network           the rules accept only packets that leave through `OutsideLink.interface`
other clusters, link-local addresses  the chain ``from_clusters`` drops them before it checks the destinations
destinations that are not allowed     the chain ``from_clusters`` accepts only the cluster's allowed destinations
====================================  ================================================================================

A destination with FQDNs has a set of addresses for each IP version. From outside, only answers and packets to published
ports (`published_ports`) reach a cluster. The kernel logs new connections, up to a limit. For each network and
destination, counters count connections, and bytes in each direction.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from ipaddress import IPv4Interface, IPv6Interface, ip_address, ip_network
from typing import Final

from virtcloud.agent.gateway.connection_table import Translation
from virtcloud.agent.gateway.published_ports import (
    TRANSLATED,
    list_counters,
    list_inner_rules,
    list_inner_sources,
    list_inner_translations,
    list_translations,
    make_outer_chains,
)
from virtcloud.agent.network.owned_tables import OwnedChain, OwnedSet, OwnedTable
from virtcloud.model.gateway_access import Destination, GatewayRouter, OutsideLink
from virtcloud.model.values import PortName
from virtcloud.model.wanted import Segment

OUTSIDE: Final = "out0"
TABLE: Final = ("inet", "virtcloud_outside")
LINKS: Final = "vu*"
"""The pattern of nft(8) for the names ``vu<vlan>`` of the links' interfaces in the gateway's main namespace."""
LINKS4, LINKS6 = ip_network("100.64.0.0/19"), ip_network("fd76:6372:7463:6c64::/112")
"""The ranges of the links' addresses. In each range, each VLAN ID has two addresses.

RFC 6598 reserves 100.64.0.0/10 for networks behind NAT.
"""
FORBIDDEN4: Final = "0.0.0.0/8, 127.0.0.0/8, 169.254.0.0/16, 224.0.0.0/3"
FORBIDDEN6: Final = "::/127, fe80::/10, fec0::/10, ff00::/8"
NEIGHBOURS: Final = "icmpv6 type { 135, 136 } ip6 hoplimit 255 accept"
"""The rule that accepts neighbour discovery (RFC 4861) on a link. Hop limit 255: no router forwarded the packet."""
DIRECTIONS: Final = {"sent": "d", "received": "s"}
"""The directions in which packets are counted. Each value is the first letter of the field with the destination's
address: ``daddr`` in sent packets, ``saddr`` in received packets.
"""
LOGS_PER_S: Final = 20
CONNECTIONS, CONNECTIONS_PER_S = 8192, 500
"""Limits of each network: open connections, and new connections per second. All networks share one connection table."""
_IPV4: Final = 4
ListAdmitted = Callable[[Destination], Iterable[str]]
"""A function that returns those addresses of a destination's FQDNs that the packet filter admits."""


def admit_none(_destination: Destination) -> Iterable[str]:
    """Return no addresses, for tables that are compared without the addresses of FQDNs."""
    return ()


@dataclass(frozen=True, slots=True)
class LinkAddresses:
    """The addresses of both ends of a link, each with its prefix length, such as "100.64.0.0/31"."""

    gateway: tuple[str, ...]
    namespace: tuple[str, ...]


def find_link_addresses(vlan: int) -> LinkAddresses:
    """Return the link addresses of the network with this VLAN ID."""
    first4, first6 = LINKS4.network_address + 2 * vlan, LINKS6.network_address + 2 * vlan
    ends4 = [IPv4Interface((int(first4) + end, 31)) for end in (0, 1)]
    ends6 = [IPv6Interface((int(first6) + end, 127)) for end in (0, 1)]
    return LinkAddresses(*((str(one), str(other)) for one, other in zip(ends4, ends6, strict=True)))


def has_link(segment: Segment) -> bool:
    """Return whether a network needs a link to the outside: for destinations, or for a published port."""
    return bool(segment.publications) or (segment.router is not None and bool(segment.router.every_destination))


def list_published_translations(segments: Iterable[Segment]) -> frozenset[Translation]:
    """Return all translations of published ports: in the main namespace, and in the networks' namespaces."""
    return frozenset(
        found
        for segment in segments
        for found in list_translations(segment, find_link_addresses(segment.vlan).namespace)
    )


def list_outside_interfaces(segments: Iterable[Segment]) -> list[PortName]:
    """Return the gateway's interfaces towards the outside that these networks use."""
    listed = list(segments)
    routers = {segment.router.link.interface for segment in listed if segment.router is not None}
    return sorted(routers | {published.interface for segment in listed for published in segment.publications})


def list_destination_rules(router: GatewayRouter, prefix: str, suffix: str, side: str = "d") -> Iterator[str]:
    """Yield the rules of nft(8) for packets to the allowed destinations.

    A rule is ``prefix``, the conditions, and ``suffix``. The destination's name replaces "NAME". If ``side`` is "s",
    the rules are for packets from the destinations.
    """
    for destination in router.every_destination:
        for match in _match_networks(destination, side):
            for protocol in ("tcp", "udp"):
                ports = ", ".join(port.partition("/")[2] for port in destination.ports if port.startswith(protocol))
                if ports:
                    rule = f"{prefix}{match} {protocol} {side}port {{ {ports} }} {suffix}"
                    yield rule.replace("NAME", destination.name)


def _match_networks(destination: Destination, side: str) -> Iterator[str]:
    networks = [ip_network(text) for text in destination.networks]
    for version, family in ((4, "ip"), (6, "ip6")):
        texts = ", ".join(str(network) for network in networks if network.version == version)
        if texts:
            yield f"{family} {side}addr {{ {texts} }}"
        if destination.fqdns:  # an FQDN's address can also be in one of the networks: count each packet only once
            others = f" {family} {side}addr != {{ {texts} }}" if texts else ""
            yield f"{family} {side}addr @fqdns{version}.{destination.name}{others}"


def make_sets(segments: Iterable[Segment], list_admitted: ListAdmitted) -> dict[str, OwnedSet]:
    """Return the sets of the addresses of destinations with FQDNs, by name. All networks share the sets."""
    routers = [segment.router for segment in segments if segment.router is not None]
    destinations = {one.name: one for router in routers for one in router.named_destinations}
    return {
        f"fqdns{version}.{name}": OwnedSet(
            version, frozenset(text for text in list_admitted(one) if ip_address(text).version == version)
        )
        for name, one in destinations.items()
        for version in (4, 6)
    }


def make_gateway_sets(addresses: Iterable[str]) -> dict[str, OwnedSet]:
    """Return the sets of the gateway's own addresses, by name.

    Omit the addresses whose packets the rules of `_list_forbidding_rules` drop.
    """
    found = [ip_address(text) for text in addresses]
    links = [one for one in found if one in (LINKS4 if one.version == _IPV4 else LINKS6)]
    listed = [one for one in found if not (one in links or one.is_loopback or one.is_link_local)]
    return {
        f"gateway{version}": OwnedSet(version, frozenset(str(one) for one in listed if one.version == version))
        for version in (4, 6)
    }


def make_outside_table(segments: Sequence[Segment], list_admitted: ListAdmitted = admit_none) -> OwnedTable | None:
    """Return the packet filter between links and other interfaces, or None if no network has a link."""
    linked = [segment for segment in segments if has_link(segment)]
    if not linked:
        return None
    routers = [segment.router for segment in linked if segment.router is not None]
    interfaces = ", ".join(f'"{name}"' for name in list_outside_interfaces(linked))
    published = make_outer_chains(linked, [find_link_addresses(segment.vlan).namespace for segment in linked])
    return OwnedTable(
        *TABLE,
        {
            "input": OwnedChain(
                (f'iifname "{LINKS}" {NEIGHBOURS}', f'iifname "{LINKS}" drop'),
                "filter hook input priority 0; policy accept",
            ),
            "forward": OwnedChain(
                (
                    *_counting_rules(linked),
                    *(f'{way} "{LINKS}" {TRANSLATED} goto published' for way in ("iifname", "oifname") if published),
                    f'iifname "{LINKS}" goto from_clusters',
                    f'oifname "{LINKS}" ct state established,related accept',
                    f'oifname "{LINKS}" drop',
                    f"iifname {{ {interfaces} }} ct state new drop",
                ),
                "filter hook forward priority 0; policy accept",
            ),
            **published,
            "from_clusters": OwnedChain((*_common_rules(), *_allowing_rules(linked), "drop")),
            **_make_counting_chains(linked),
            "postrouting": OwnedChain(
                tuple(_source_rules(routers)), "nat hook postrouting priority 100; policy accept"
            ),
        },
        tuple(name for segment in linked for name in _list_counters(segment)),
        address_sets=make_sets(linked, list_admitted),
    )


def _common_rules() -> Iterator[str]:
    yield "ct state established,related accept"
    yield "ct state != new drop"
    yield f'oifname "{LINKS}" drop'
    yield from _list_forbidding_rules()


def _list_forbidding_rules(link: OutsideLink | None = None) -> Iterator[str]:
    own = link.addresses if link is not None else ()
    for version, family, forbidden, links in ((4, "ip", FORBIDDEN4, LINKS4), (6, "ip6", FORBIDDEN6, LINKS6)):
        texts = [forbidden, str(links), *(str(address) for address in own if address.version == version)]
        yield f"{family} daddr {{ {', '.join(texts)} }} drop"


def _allowing_rules(linked: Iterable[Segment]) -> Iterator[str]:
    for segment in linked:
        if segment.router is not None:
            yield f'iifname "vu{segment.vlan}" limit rate over {CONNECTIONS_PER_S}/second burst 1000 packets drop'
            yield f'iifname "vu{segment.vlan}" ct count over {CONNECTIONS} drop'
            link = f'iifname "vu{segment.vlan}" oifname "{segment.router.link.interface}" '
            log = f'limit rate {LOGS_PER_S}/second log prefix "virtcloud {segment.key[:64]} NAME: "'
            yield from list_destination_rules(segment.router, link, log)
            yield from list_destination_rules(
                segment.router, link, f"counter name connections.{segment.id}.NAME accept"
            )


def _counting_rules(linked: Iterable[Segment]) -> Iterator[str]:
    vlans = [segment.vlan for segment in linked if segment.router is not None]
    for match, direction in zip(("iifname", "oifname"), DIRECTIONS, strict=True):
        jumps = ", ".join(f'"vu{vlan}" : jump {direction}_{vlan}' for vlan in vlans)
        if jumps:
            yield f"{match} vmap {{ {jumps} }}"


def _make_counting_chains(linked: Iterable[Segment]) -> dict[str, OwnedChain]:
    return {
        f"{direction}_{segment.vlan}": OwnedChain(
            tuple(
                list_destination_rules(
                    segment.router,
                    "ct state established,related ",
                    f"counter name {direction}.{segment.id}.NAME",
                    side,
                )
            )
        )
        for segment in linked
        if segment.router is not None
        for direction, side in DIRECTIONS.items()
    }


def _list_counters(segment: Segment) -> Iterator[str]:
    yield from list_counters(segment)
    for destination in segment.router.every_destination if segment.router else ():
        for name in ("connections", *DIRECTIONS):
            yield f"{name}.{segment.id}.{destination.name}"


def _source_rules(routers: Iterable[GatewayRouter]) -> Iterator[str]:
    for link in sorted(
        {router.link.interface: router.link for router in routers}.values(), key=lambda one: one.interface
    ):
        addresses = {address.version: address for address in link.addresses}
        for version, family, range_ in ((4, "ip", LINKS4), (6, "ip6", LINKS6)):
            source = f"snat {family} to {addresses[version]}" if version in addresses else "masquerade"
            yield f'oifname "{link.interface}" {family} saddr {range_} {source}'


@dataclass(frozen=True, slots=True)
class InnerRules:
    """The rules in the namespace of a network with a link, by chain."""

    prerouting: tuple[str, ...] = ()
    forward: tuple[str, ...] = ()
    postrouting: tuple[str, ...] = ()


def make_inner_rules(segment: Segment, device: str) -> InnerRules:
    """Return the rules in the namespace of a linked network. ``device`` has the gateway's addresses in the network."""
    link = find_link_addresses(segment.vlan).namespace
    destinations: Iterable[str] = ()
    if segment.router is not None:
        destinations = (
            *_list_forbidding_rules(segment.router.link),
            "ip daddr @gateway4 drop",
            "ip6 daddr @gateway6 drop",
            *list_destination_rules(segment.router, f'iifname "{device}" oifname "{OUTSIDE}" ct state new ', "accept"),
        )
    return InnerRules(
        tuple(list_inner_translations(segment, link, OUTSIDE)),
        (*list_inner_rules(segment), "ct state established,related accept", *destinations),
        (*list_inner_sources(segment, device), f'oifname "{OUTSIDE}" masquerade'),
    )
