"""The nftables rules for a gateway's published ports. Pure.

On a gateway, each network with published ports has its own namespace, and a link (`outside_links`) that connects this
namespace with the gateway's main namespace. The destination of a packet from outside to a published port is translated
twice. First, the main namespace replaces the address by the address of the link's end in the network's namespace. Then
the network's namespace replaces the address and the port by the guest's address and port. If the gateway is the guest's
router for the packet's IP version, the source address remains the client's address. Otherwise the network's namespace
replaces the source address by the gateway's address in the network, so that the answers reach the gateway.

================================================  ====================================================================
packets from outside                              reach no guest, because
================================================  ====================================================================
to other ports of the gateway                     no rule translates them
to addresses of links, sent by a neighbour        they were not translated, so the chain ``forward`` drops them
of a connection whose publication ended           both namespaces check each packet against the present publications
of a UDP flow whose publication ended             as above, and the flow's entry is removed from the connection table
after the end of the lease                        the rules compare the kernel's clock with the end of the lease
================================================  ====================================================================

The rules accept packets of a guest as answers only if the packets belong to a translated connection. So a guest cannot
open a connection to the outside with packets that look like answers.
"""

from collections.abc import Iterable, Iterator
from ipaddress import ip_interface
from typing import Final

from virtcloud.agent.gateway.connection_table import Translation
from virtcloud.agent.network.owned_tables import OwnedChain
from virtcloud.model.gateway_access import PublishedPort, PublishedProtocol
from virtcloud.model.wanted import Segment

LOGS_PER_S: Final = 20
CONNECTIONS, CONNECTIONS_PER_S = 8192, 500
"""Limits of a network: open connections from outside, and new connections per second."""
TRANSLATED: Final = "ct status dnat"
_ICMP: Final = "ct state related meta l4proto { icmp, icmpv6 }"
_IPV4: Final = 4


def make_outer_chains(segments: Iterable[Segment], link_addresses: Iterable[tuple[str, ...]]) -> dict[str, OwnedChain]:
    """Return the main namespace's chains that publish guests, or {} without publications.

    ``link_addresses`` has the addresses of the link's end in the namespace of each network, in the order of
    ``segments``.
    """
    pairs = [pair for pair in zip(segments, link_addresses, strict=True) if pair[0].publications]
    if not pairs:
        return {}
    return {
        "prerouting": OwnedChain(
            tuple(rule for segment, addresses in pairs for rule in _outer_translations(segment, addresses)),
            "nat hook prerouting priority -100; policy accept",
        ),
        "published": OwnedChain(
            (f"{_ICMP} accept", *(rule for segment, _ in pairs for rule in _outer_rules(segment)), "drop")
        ),
    }


def _outer_translations(segment: Segment, link: tuple[str, ...]) -> Iterator[str]:
    for one in segment.publications:
        target = _find_address(link, one)
        family, bracketed = _describe(one, target)
        yield (
            f'iifname "{one.interface}" {family} daddr {one.address} {one.protocol} dport {one.port} '
            f"{_before_end(one)} "
            f"dnat {family} to {bracketed}:{one.port}"
        )


def _outer_rules(segment: Segment) -> Iterator[str]:
    name = f"vu{segment.vlan}"
    yield f'oifname "{name}" ct state new limit rate over {CONNECTIONS_PER_S}/second burst 1000 packets drop'
    yield f'oifname "{name}" ct state new ct count over {CONNECTIONS} drop'
    for one in segment.publications:
        family, _ = _describe(one, "")
        match = (
            f"ct original {family} daddr {one.address} meta l4proto {one.protocol} ct original proto-dst {one.port} "
            f"{_before_end(one)}"
        )
        log = f'limit rate {LOGS_PER_S}/second log prefix "virtcloud {segment.key[:64]} published {one.port}: "'
        yield f'iifname "{one.interface}" oifname "{name}" ct state new {match} {log}'
        yield f'oifname "{name}" {match} counter name {_name_counter(segment, one)} accept'
        yield f'iifname "{name}" {match} accept'


def list_counters(segment: Segment) -> Iterator[str]:
    """Yield the names of the counters of a network's publications."""
    return (_name_counter(segment, one) for one in segment.publications)


def _name_counter(segment: Segment, published: PublishedPort) -> str:
    return f"p{segment.vlan}_{published.port}{'_udp' if published.protocol is PublishedProtocol.UDP else ''}"


def list_translations(segment: Segment, link: tuple[str, ...]) -> Iterator[Translation]:
    """Yield two translations for each publication: in the main namespace, then in the network's namespace.

    ``link`` are the addresses of the link's end in the network's namespace.
    """
    for one in segment.publications:
        target = _find_address(link, one)
        yield Translation(one.protocol, str(one.address), one.port, target, one.port)
        yield Translation(one.protocol, target, one.port, str(one.guest_address), one.guest_port)


def list_inner_translations(segment: Segment, link: tuple[str, ...], outside: str) -> Iterator[str]:
    """Yield the rules of the chain ``prerouting`` in a network's namespace.

    ``outside`` is the interface of the link's end in this namespace.
    """
    for one in segment.publications:
        family, guest = _describe(one, str(one.guest_address))
        yield (
            f'iifname "{outside}" {family} daddr {_find_address(link, one)} {one.protocol} dport {one.port} '
            f"{_before_end(one)} "
            f"dnat {family} to {guest}:{one.guest_port}"
        )


def list_inner_rules(segment: Segment) -> Iterator[str]:
    """Yield the rules of the chain ``forward`` in a network's namespace."""
    if not segment.publications:
        return
    yield f"{_ICMP} accept"
    for one in segment.publications:
        family, _ = _describe(one, "")
        yield (
            f"{TRANSLATED} meta l4proto {one.protocol} ct original proto-dst {one.port} ct reply {family} saddr "
            f"{one.guest_address} ct reply proto-src {one.guest_port} {_before_end(one)} accept"
        )
    yield f"{TRANSLATED} drop"


def list_inner_sources(segment: Segment, device: str) -> Iterator[str]:
    """Yield rules that replace clients' addresses by the gateway's address in the network.

    The rules are for packets to guests whose router is not this gateway.
    """
    routers = [ip_interface(text) for text in (segment.router.addresses if segment.router else ())]
    for one in segment.publications:
        if any(one.guest_address in router.network for router in routers):
            continue
        own = [ip_interface(text) for text in segment.gateway_addresses]
        source = next((address.ip for address in own if one.guest_address in address.network), None)
        if source is not None:
            family, _ = _describe(one, "")
            yield f'oifname "{device}" {TRANSLATED} {family} daddr {one.guest_address} snat {family} to {source}'


def _describe(published: PublishedPort, address: str) -> tuple[str, str]:
    return ("ip", address) if published.address.version == _IPV4 else ("ip6", f"[{address}]")


def _find_address(link: tuple[str, ...], published: PublishedPort) -> str:
    addresses = [ip_interface(text).ip for text in link]
    return next(str(address) for address in addresses if address.version == published.address.version)


def _before_end(published: PublishedPort) -> str:
    return f'meta time < "{int(published.expires_at.timestamp())}"'
