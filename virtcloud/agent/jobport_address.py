"""Which addresses a job's port takes: one in each subnet of the cluster, from its end backwards, that nobody has."""

from collections.abc import Callable, Iterable, Iterator
from ipaddress import IPv4Address, IPv4Network, IPv6Address, IPv6Network, ip_interface
from itertools import islice
from typing import Protocol
from zlib import crc32

from virtcloud.agent.jobport import Opening
from virtcloud.model.cluster import Guest

IP = IPv4Address | IPv6Address
Network = IPv4Network | IPv6Network
AT_ONCE, ROUNDS = 8, 4
ASK_S = 0.15
"""For an answer from the farthest site. Each is asked twice: the first question may have been lost."""
ANYCAST = 128
"""So many addresses at an IPv6 subnet's end are reserved (RFC 2526)."""


class Asking(Protocol):
    """An ear on a bridge."""

    def ask(self, addresses: Iterable[IP], seconds: float) -> frozenset[IP]:
        """Give those that somebody was heard to have."""


def subnets(guests: Iterable[Guest]) -> tuple[Network, ...]:
    """PURE. Give the networks of the guests' addresses, each once, in order."""
    return tuple(dict.fromkeys(ip_interface(one).network for guest in guests for one in guest.addresses))


def free_addresses(ear: Asking, opening: Opening) -> list[str]:
    """Give an address with its prefix length in each subnet that has a free one.

    Those whose hosts ask at the same moment begin at different places, for each would find the same address free.
    """
    waiting = {network: candidates(network, opening) for network in subnets(opening.guests)}
    found: dict[Network, IP] = {}
    for _ in range(ROUNDS):
        asked = {one: list(islice(rest, AT_ONCE)) for one, rest in waiting.items() if one not in found}
        every = [address for some in asked.values() for address in some]
        if not every:
            break
        taken = ear.ask(every, ASK_S) | ear.ask(every, ASK_S)
        found |= {one: free for one, some in asked.items() for free in [_first(some, taken)] if free is not None}
    return [f"{found[network]}/{network.prefixlen}" for network in waiting if network in found]


def candidates(network: Network, opening: Opening) -> Iterator[IP]:
    """PURE. Give the subnet's addresses from its end, but guests' ones; the first few turned by the job's key."""
    taken = {ip_interface(one).ip for guest in opening.guests for one in guest.addresses}
    make: Callable[[int], IP] = type(network.network_address)
    every = (one for one in map(make, _numbers(network)) if one not in taken)
    first = list(islice(every, AT_ONCE))
    turn = crc32(opening.key.encode()) % len(first) if first else 0
    yield from (*first[turn:], *first[:turn])
    yield from every


def _numbers(network: Network) -> range:
    lowest, highest = int(network.network_address), int(network.broadcast_address)
    if isinstance(network, IPv6Network) and network.num_addresses > 2 * ANYCAST:
        highest -= ANYCAST
    elif isinstance(network, IPv4Network) and network.num_addresses > 2:  # noqa: PLR2004 - RFC 3021: of two, both are hosts'
        highest -= 1
    return range(highest, lowest if network.num_addresses > 2 else lowest - 1, -1)  # noqa: PLR2004 - as above


def _first(some: Iterable[IP], taken: frozenset[IP]) -> IP | None:
    return next((one for one in some if one not in taken), None)
