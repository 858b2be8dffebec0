"""Assigns addresses to those guests of a job for which the request lists no addresses.

=====================================  ========================================================================
the request contains                   the guests get
=====================================  ========================================================================
a network (``10.0.0.0/24``)            addresses of this network, beginning with the lowest
an address (``10.0.0.50/24``)          addresses of its network, beginning with this address
no subnet, for a new network           addresses of ``10.0.0.0/24``; the subnet is widened until all guests fit
no subnet, for a running network       addresses of its subnets, above the highest address of a guest; when these
                                       addresses are used up, the lowest free addresses of the subnets. In a network
                                       that was created with an empty list of subnets, guests get no addresses
=====================================  ========================================================================

The assignment skips addresses that a guest, a gateway, a user's device or the router of the network has. The assignment
also skips addresses that the request lists for a guest.
"""

import ipaddress
from itertools import chain, islice
from typing import Collection, Iterable, Iterator, List, Optional, Sequence, Tuple

from virtcloud.jobs.request_values import RequestError

DEFAULT_SUBNET = "10.0.0.0/24"
RESERVED_ADDRESSES = 16
"""Number of addresses of a default subnet that are reserved for hosts and users' computers."""
WIDEST_PREFIX = 8
IPV4 = 4


class AddressesInUse(RequestError):
    """A subnet is large enough for the guests, but too few of its addresses are free now."""


class RequestedSubnet:
    """A subnet of a request, and the address at which the assignment starts."""

    def __init__(self, text: str) -> None:
        """Parse ``address/prefix``. Raise ValueError for another text."""
        interface = ipaddress.ip_interface(text)
        self.text = text
        self.network = interface.network
        lowest, highest = int(self.network.network_address), int(self.network.broadcast_address)
        if highest - lowest > 1:  # RFC 3021 and RFC 6164: if a subnet has two addresses, both are usable
            lowest, highest = lowest + 1, highest - (1 if self.network.version == IPV4 else 0)
        self.lowest, self.highest = lowest, highest
        self.start = max(lowest, int(interface.ip))

    def free(self, start: int, used: Collection[str]) -> Iterator[str]:
        """Yield the addresses from the integer address ``start`` on, except ``used``, each with its prefix length."""
        return self._format_free(range(start, self.highest + 1), used)

    def after(self, used: Collection[str], skipped: Collection[str]) -> Iterator[str]:
        """Yield the addresses above the highest address in ``used``, then the lower addresses, except ``skipped``."""
        inside = [int(address) for address in map(ipaddress.ip_address, used) if address in self.network]
        top = max(inside, default=self.lowest - 1)
        return self._format_free(chain(range(top + 1, self.highest + 1), range(self.lowest, top + 1)), skipped)

    def _format_free(self, integers: Iterable[int], used: Collection[str]) -> Iterator[str]:
        address_type = type(self.network.network_address)
        for address in (str(address_type(integer)) for integer in integers):
            if address not in used:
                yield "%s/%d" % (address, self.network.prefixlen)


def plan_addresses(  # noqa: PLR0913, PLR0917 - the addresses and subnets of a request and of a network
    count: int,
    subnets: Sequence[str],
    used: Collection[str],
    own: Optional[Sequence[str]] = None,
    default: Optional[str] = None,
    others: Collection[str] = (),
) -> List[Tuple[str, ...]]:
    """Return the addresses of ``count`` guests, in order.

    - ``subnets``: the subnets of the request.
    - ``used``: the addresses that guests already have, without prefix length.
    - ``own``: the subnets of the running network that the job joins. None: the network is new, or its subnets are
      unknown. If ``own`` is empty and the request has no subnet, the guests get no addresses.
    - ``default``: the subnet to use if ``own`` is None and the request has no subnet. None stands for `DEFAULT_SUBNET`.
    - ``others``: the addresses of gateways, users' devices and the router, without prefix length.

    Raise RequestError if a subnet is too small, and AddressesInUse if too few of its addresses are free.
    """
    if count == 0:
        return []
    used = frozenset(used)
    skipped = used.union(others)
    if subnets:
        rows = [
            _take(RequestedSubnet(subnet).free(RequestedSubnet(subnet).start, skipped), count, subnet)
            for subnet in subnets
        ]
    elif own is not None:
        if not own:
            return [()] * count
        rows = [_take(RequestedSubnet(subnet).after(used, skipped), count, subnet) for subnet in own]
    else:
        widened = _widen(default or DEFAULT_SUBNET, count + len(used) + RESERVED_ADDRESSES)
        rows = [_take(widened.free(widened.start, skipped), count, widened.text)]
    return list(zip(*rows))


def find_subnets(addresses: Iterable[str]) -> Tuple[str, ...]:
    """Return the subnet of the first address of each IP version. Each address in ``addresses`` has a prefix length.

    A guest gets one address of each returned subnet.
    """
    networks = [ipaddress.ip_interface(address).network for address in addresses]
    first = {network.version: str(network) for network in reversed(networks)}
    return tuple(first[version] for version in sorted(first))


def _take(free: Iterator[str], count: int, subnet: str) -> List[str]:
    addresses = list(islice(free, count))
    if len(addresses) < count:
        size = RequestedSubnet(subnet).highest - RequestedSubnet(subnet).start + 1
        raise (AddressesInUse if size >= count else RequestError)(
            "subnet: expected %d free addresses for guests, got %s with %d" % (count, subnet, len(addresses))
        )
    return addresses


def _widen(text: str, count: int) -> RequestedSubnet:
    subnet = RequestedSubnet(text)
    while subnet.highest - subnet.start + 1 < count and subnet.network.prefixlen > WIDEST_PREFIX:
        subnet = RequestedSubnet(str(subnet.network.supernet()))
    return subnet
