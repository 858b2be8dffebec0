"""Addresses of guests: the subnets of a network, and the assignment of their addresses to guests. Pure.

If no guest of a request has an address, SBF assigns addresses:

================================================  ==================================================================
request                                           addresses of its guests
================================================  ==================================================================
a new network with ``subnets``                    the lowest free addresses of each subnet
a new network without ``subnets``                 addresses of ``10.0.0.0/24`` (for many guests, of a larger subnet)
                                                  and of an IPv6 subnet (RFC 4193)
a member of a network with ``subnets``            the addresses after the highest address of a guest; after the end of a
                                                  subnet, its lowest free addresses
a member of a network without ``subnets``         the addresses after the highest address of a guest, in the subnets to
                                                  which the addresses of the network's guests belong
a request with empty ``subnets``                  none
a request of a batch job without ``subnets``      none; hooks assign addresses (``virtcloud/jobs/address_plan.py``)
================================================  ==================================================================

If a request lists an address of a guest, but no ``subnets``, SBF assigns no address. If a new network's request lists
``subnets`` and some addresses, SBF assigns addresses to the other guests.
"""

import hashlib
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass
from ipaddress import IPv4Address, IPv4Network, IPv6Address, IPv6Network, ip_address, ip_interface, ip_network
from itertools import chain, islice
from typing import Final

from virtcloud.model.cluster import ClusterSpec
from virtcloud.model.errors import BadInput, NoAddressFree
from virtcloud.model.guest_spec import Guest
from virtcloud.model.message_text import count_of
from virtcloud.model.values import Address

IPV4_SUBNET = IPv4Network("10.0.0.0/24")
RESERVED_ADDRESSES = 16
"""The minimum number of addresses that stay free for hosts (job access) and users' computers, if SBF chooses the
subnet.
"""
_IPV4 = 4
HOST_ADDRESSES = 8
"""The number of addresses at the end of a subnet for hosts (job access). Users' devices (VPN) get these addresses last.
"""
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

Hooks refuse them in requests of jobs (``virtcloud/jobs/request_values.py``).
"""
_SPECIAL = tuple((ip_network(text), text, kind) for text, kind in SPECIAL_NETWORKS.items())

_IpAddress = IPv4Address | IPv6Address


@dataclass(frozen=True, slots=True)
class NetworkIdentity:
    """The values from which a network's IPv6 subnet is derived. No two clusters of one SBF have the same values."""

    owner: str
    key: str
    attempt: int


@dataclass(frozen=True, slots=True)
class NetworkAddresses:
    """The addresses of a running network. ``root`` is the current spec of the cluster that created the network.

    ``guests`` are the guests of all clusters of the network.
    """

    identity: NetworkIdentity
    root: ClusterSpec
    guests: tuple[Guest, ...]
    devices: tuple[str, ...] = ()
    """The addresses of devices with valid VPN profiles, without prefix length."""
    gateways: tuple[str, ...] = ()
    """The addresses of gateways, without prefix length."""

    @property
    def subnets(self) -> tuple[Address, ...]:
        """The subnets from which members get addresses."""
        if self.root.subnets is not None:
            return self.root.subnets
        return find_subnets(self.guests) if self.guests else make_subnets(self.identity, 0)

    def list_used(self) -> dict[str, None]:
        """Return the addresses of guests, devices, gateways and the router as keys, without prefix length."""
        return _list_used(self.guests) | dict.fromkeys((*self.devices, *self.gateways, *list_router(self.root)))


def plan_network(spec: ClusterSpec, identity: NetworkIdentity, *, batch: bool) -> ClusterSpec:
    """Return the spec of a new network with its subnets and the addresses of its guests.

    Raise BadInput if a subnet has too few addresses for the guests, or if the router cannot have its addresses.
    """
    if spec.subnets is None and (batch or not spec.guests or _has_addresses(spec)):
        return _plan_router(spec, find_subnets(spec.guests) if spec.guests else make_subnets(identity, 0))
    subnets = make_subnets(identity, len(spec.guests)) if spec.subnets is None else spec.subnets
    spec = _plan_router(spec, subnets)
    used = _list_used(spec.guests) | dict.fromkeys(list_router(spec))
    count = _count_unaddressed(spec)
    found = [_take(subnet, _Subnet.of(subnet).from_start(), used, count) for subnet in subnets]
    for subnet, free in zip(subnets, found, strict=True):
        if len(free) < count:
            raise BadInput(f"spec.subnets: {_describe_shortage(subnet, len(free), count)}")
    return _assign(spec.model_copy(update={"subnets": subnets}), found)


def list_router(spec: ClusterSpec) -> list[str]:
    """Return the addresses of a network's router without prefix length."""
    return [address.partition("/")[0] for address in spec.router_addresses or ()]


def _plan_router(spec: ClusterSpec, subnets: Sequence[Address]) -> ClusterSpec:
    """Return the spec of a new network with its router's addresses.

    A router without requested addresses gets the first free address of each subnet in the order of ``from_end``.

    Raise BadInput if the network has no subnet, if a subnet is full, or if the router cannot have a requested address.
    """
    if spec.outside:
        spec = spec.model_copy(update={"router": "gateway"})
    if spec.router is None:
        return spec
    if spec.router_addresses is not None:
        _check_router_addresses(spec, subnets)
        return spec
    used = _list_used(spec.guests)
    found = [_take(subnet, _Subnet.of(subnet).from_end(), used, 1) for subnet in subnets]
    if not all(found) or not found:
        texts = ", ".join(subnets) or "none"
        raise BadInput(f"spec.router: expected a free address of each subnet for the router, got subnets: {texts}")
    return spec.model_copy(update={"router_addresses": tuple(address for free in found for address in free)})


def _check_router_addresses(spec: ClusterSpec, subnets: Sequence[Address]) -> None:
    networks = {ip_interface(subnet).network for subnet in subnets}
    used = _list_used(spec.guests)
    for address in spec.router_addresses or ():
        if address.partition("/")[0] in used:
            raise BadInput(f"spec.router_addresses: expected an address that no guest has, got {address}")
        if ip_interface(address).network not in networks:
            texts = ", ".join(map(str, networks)) or "none"
            raise BadInput(
                f"spec.router_addresses: expected an address in a subnet of the network ({texts}), got {address}"
            )


def plan_member(spec: ClusterSpec, network: NetworkAddresses, *, batch: bool) -> ClusterSpec:
    """Return the spec of a new member with the addresses of its guests.

    Raise NoAddressFree if a subnet of the network has too few free addresses.
    """
    if batch or spec.subnets is not None or not spec.guests or _has_addresses(spec):
        return spec
    used, count = network.list_used(), len(spec.guests)
    found = [
        _take(subnet, _Subnet.of(subnet).after(_list_used(network.guests)), used, count) for subnet in network.subnets
    ]
    for subnet, free in zip(network.subnets, found, strict=True):
        if len(free) < count:
            raise NoAddressFree(
                f"network {spec.joins}: {_describe_shortage(subnet, len(free), count)}, or list the addresses of the "
                "guests"
            )
    return _assign(spec, found)


def choose_device_addresses(network: NetworkAddresses, user: str = "the device") -> tuple[Address, ...]:
    """Return one address of each subnet for a device or gateway: the first free address in the order of ``from_end``.

    Return no addresses for a network without subnets. Raise NoAddressFree if a subnet has no free address.
    """
    used = network.list_used()
    found = [_take(subnet, _Subnet.of(subnet).from_end(), used, 1) for subnet in network.subnets]
    for subnet, free in zip(network.subnets, found, strict=True):
        if not free:
            raise NoAddressFree(
                f"expected 1 free address in subnet {subnet} for {user}, got 0: the subnet is used by "
                f"{count_of(len(network.guests), 'guest')} and {count_of(len(network.devices), 'address')} of devices"
                f"{f' and {len(network.gateways)} of gateways' if network.gateways else ''}; "
                "revoke VPN profiles with 'virtcloud access revoke', or create a cluster with a larger subnet"
            )
    return tuple(address for free in found for address in free)


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


def list_guest_identities(guest: Guest) -> Iterator[str]:
    """Yield the name, the IP addresses and the MAC address of a guest, if the spec contains them.

    No other guest of the network may have the same name or address.
    """
    yield f"name {guest.name}"
    yield from (f"address {address}" for address in _list_used([guest]))
    if guest.mac is not None:
        yield f"MAC address {guest.mac}"


def check_guests_differ(guests: Sequence[Guest]) -> None:
    """Raise BadInput if two guests of a request have the same name, IP address or MAC address."""
    found = Counter(identity for guest in guests for identity in list_guest_identities(guest))
    for identity, times in found.items():
        if times > 1:
            names = [guest.name for guest in guests if identity in list_guest_identities(guest)]
            raise BadInput(
                f"spec.guests: expected each guest to have its own name and addresses, got {identity} for guests "
                f"{' and '.join(names)}"
            )


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
class _Subnet:
    """The usable addresses of a subnet as integers, and the address at which the assignment starts."""

    network: IPv4Network | IPv6Network
    start: int
    highest: int

    @classmethod
    def of(cls, text: Address) -> "_Subnet":
        """Return a subnet.

        ``10.0.0.0/24`` is the whole subnet; with ``10.0.0.9/24``, the assignment starts at ``10.0.0.9``.
        """
        interface = ip_interface(text)
        network = interface.network
        lowest, highest = int(network.network_address), int(network.broadcast_address)
        if highest - lowest > 1:  # RFC 3021 and RFC 6164: if a subnet has two addresses, both are usable
            lowest, highest = lowest + 1, highest - (network.version == _IPV4)
        return cls(network, max(lowest, int(interface.ip)), highest)

    def from_start(self) -> Iterator[_IpAddress]:
        return self._make(range(self.start, self.highest + 1))

    def after(self, used: Collection[str]) -> Iterator[_IpAddress]:
        """Yield the addresses after the highest address in use, then the lower addresses."""
        inside = (int(address) for address in map(ip_address, used) if address in self.network)
        top = max(inside, default=self.start - 1)
        first = max(self.start, top + 1)
        return self._make(chain(range(first, self.highest + 1), range(self.start, first)))

    def from_end(self) -> Iterator[_IpAddress]:
        """Yield the addresses in descending order. The addresses of hosts and the anycast addresses come last."""
        last = HOST_ADDRESSES if self.network.version == _IPV4 else HOST_ADDRESSES + RESERVED_ANYCAST
        first_last = max(self.start, self.highest - last + 1)
        return self._make(chain(range(first_last - 1, self.start - 1, -1), range(self.highest, first_last - 1, -1)))

    def _make(self, numbers: Iterable[int]) -> Iterator[_IpAddress]:
        kind = type(self.network.network_address)
        return (kind(number) for number in numbers)


def _take(subnet: Address, candidates: Iterable[_IpAddress], used: Collection[str], count: int) -> list[Address]:
    length = subnet.partition("/")[2]
    free = (address for address in candidates if str(address) not in used)
    return [Address(f"{address}/{length}") for address in islice(free, count)]


def _assign(spec: ClusterSpec, found: Sequence[Sequence[Address]]) -> ClusterSpec:
    rows = zip(*found, strict=True)
    guests = tuple(
        guest if guest.addresses or not found else guest.model_copy(update={"addresses": next(rows)})
        for guest in spec.guests
    )
    return spec.model_copy(update={"guests": guests})


def _has_addresses(spec: ClusterSpec) -> bool:
    return any(guest.addresses for guest in spec.guests)


def _count_unaddressed(spec: ClusterSpec) -> int:
    return sum(not guest.addresses for guest in spec.guests)


def _list_used(guests: Iterable[Guest]) -> dict[str, None]:
    """Return the addresses of guests as keys, without prefix length, in the order of the guests."""
    return {address.partition("/")[0]: None for guest in guests for address in guest.addresses}


def _describe_shortage(subnet: Address, free: int, needed: int) -> str:
    text = count_of(needed, "free address")
    return f"expected {text} in subnet {subnet} for {count_of(needed, 'guest')}, got {free}: choose a larger subnet"
