"""Subnets of networks: the choice of a subnet, and the order in which SBF assigns its addresses. Pure."""

import hashlib
from collections.abc import Collection, Iterable
from dataclasses import dataclass
from ipaddress import IPv4Network, IPv6Network, ip_address, ip_interface, ip_network
from itertools import chain, islice
from typing import Final

from virtcloud.model.cluster import ClusterSpec
from virtcloud.model.errors import BadInput
from virtcloud.model.guest_spec import Guest
from virtcloud.model.values import Address

IPV4_SUBNET = IPv4Network("10.0.0.0/24")
RESERVED_ADDRESSES = 16
"""The minimum number of addresses that stay free for hosts (job access) and users' computers, if SBF chooses the
subnet.
"""
_IPV4 = 4
HOST_ADDRESSES = 8
"""The number of addresses for hosts (job access) at the end of a subnet. Users' devices (VPN) get them last."""
RESERVED_ANYCAST = 128
"""The number of reserved anycast addresses at the end of an IPv6 subnet (RFC 2526)."""

SPECIAL_NETWORKS: Final = {
    "0.0.0.0/8": "unspecified",
    "127.0.0.0/8": "loopback",
    "169.254.0.0/16": "link-local",
    "224.0.0.0/4": "multicast",
    "240.0.0.0/4": "reserved",
    "::/96": "unspecified, loopback or IPv4-compatible",
    "::ffff:0:0/96": "IPv4-mapped",
    "fe80::/10": "link-local",
    "ff00::/8": "multicast",
}
"""The networks whose addresses no guest can use, with their kinds (RFC 6890; RFC 4291, sections 2.4 and 2.5).

Hooks refuse addresses of these networks in requests of jobs (``virtcloud/jobs/request_values.py``).
"""
_SPECIAL = tuple((ip_network(text), text, kind) for text, kind in SPECIAL_NETWORKS.items())


@dataclass(frozen=True, slots=True)
class NetworkIdentity:
    """The values from which a network's IPv6 subnet is derived, different for each cluster of one SBF."""

    owner: str
    key: str
    attempt: int


def make_subnets(identity: NetworkIdentity, guests: int) -> tuple[Address, ...]:
    """Return an IPv4 subnet with room for this many guests, and an IPv6 subnet derived from ``identity``.

    The IPv6 subnet is subnet 0 of a prefix whose global ID is a hash (RFC 4193, section 3.2).
    """
    ipv4 = IPV4_SUBNET
    while ipv4.num_addresses - 2 < guests + RESERVED_ADDRESSES:
        ipv4 = ipv4.supernet()
    digest = hashlib.sha256(f"{identity.owner}/{identity.key}/{identity.attempt}".encode()).digest()
    ipv6 = IPv6Network((bytes([0xFD]) + digest[:5] + bytes(10), 64))
    return Address(str(ipv4)), Address(str(ipv6))


def find_subnets(guests: Iterable[Guest]) -> tuple[Address, ...]:
    """Return the first subnet of each IP version in the addresses of these guests."""
    networks = [ip_interface(address).network for guest in guests for address in guest.addresses]
    first = {network.version: Address(str(network)) for network in reversed(networks)}
    return tuple(first[version] for version in sorted(first))


def check_addresses(spec: ClusterSpec) -> None:
    """Raise BadInput if a subnet of a request, or the subnet of a guest's address, has addresses of a special kind."""
    for subnet in spec.subnets or ():
        _check_ordinary("spec.subnets", subnet)
    for number, guest in enumerate(spec.guests):
        for address in guest.addresses:
            _check_ordinary(f"spec.guests.{number}.addresses", address)


def _check_ordinary(where: str, text: Address) -> None:
    network = ip_interface(text).network
    for special, known, kind in _SPECIAL:
        if network.overlaps(special):
            raise BadInput(
                f"{where}: expected a subnet for guests such as 10.0.0.0/24 or fd00::/64, got {text}, which has {kind} "
                f"addresses ({known}): choose another subnet"
            )


@dataclass(frozen=True, slots=True)
class Subnet:
    """The usable addresses of a subnet as integers, and the address at which the assignment starts."""

    network: IPv4Network | IPv6Network
    start: int
    highest: int

    @classmethod
    def of(cls, text: Address) -> "Subnet":
        """Return a subnet.

        ``10.0.0.0/24`` is the whole subnet; with ``10.0.0.9/24``, the assignment starts at ``10.0.0.9``.
        """
        interface = ip_interface(text)
        network = interface.network
        lowest, highest = int(network.network_address), int(network.broadcast_address)
        if highest - lowest > 1:  # RFC 3021 and RFC 6164: if a subnet has two addresses, both are usable
            lowest, highest = lowest + 1, highest - (network.version == _IPV4)
        return cls(network, max(lowest, int(interface.ip)), highest)

    def take_from_start(self, used: Collection[str], count: int) -> list[Address]:
        """Return the ``count`` lowest addresses that are not in ``used``."""
        return self._take(range(self.start, self.highest + 1), used, count)

    def take_after(self, others: Collection[str], used: Collection[str], count: int) -> list[Address]:
        """Return the next ``count`` addresses after the highest address in ``others``.

        At the end of the subnet, continue with the lowest addresses. No returned address is in ``used``.
        """
        inside = (int(address) for address in map(ip_address, others) if address in self.network)
        top = max(inside, default=self.start - 1)
        first = max(self.start, top + 1)
        return self._take(chain(range(first, self.highest + 1), range(self.start, first)), used, count)

    def take_from_end(self, used: Collection[str], count: int) -> list[Address]:
        """Return ``count`` addresses that are not in ``used``, in descending order.

        The highest addresses are reserved for hosts and, in an IPv6 subnet, anycast. Return reserved addresses only
        after all others.
        """
        last = HOST_ADDRESSES if self.network.version == _IPV4 else HOST_ADDRESSES + RESERVED_ANYCAST
        first_last = max(self.start, self.highest - last + 1)
        ordered = chain(range(first_last - 1, self.start - 1, -1), range(self.highest, first_last - 1, -1))
        return self._take(ordered, used, count)

    def _take(self, numbers: Iterable[int], used: Collection[str], count: int) -> list[Address]:
        kind = type(self.network.network_address)
        free = (text for text in (str(kind(number)) for number in numbers) if text not in used)
        return [Address(f"{text}/{self.network.prefixlen}") for text in islice(free, count)]
