"""Addresses of guests: the choice of a network's subnets, and the assignment of the subnets' addresses. Pure.

If no guest of a request has an address, SBF assigns addresses:

================================================  ==================================================================
request                                           addresses of its guests
================================================  ==================================================================
a new network with ``subnets``                    the lowest free addresses of each subnet
a new network without ``subnets``                 addresses of ``10.0.0.0/24`` (for many guests, of a larger subnet)
                                                  and of an IPv6 subnet (RFC 4193)
a member of a network with ``subnets``            the addresses after the highest address of the network's guests;
                                                  after the end of a subnet, its lowest free addresses
a member of a network without ``subnets``         the addresses after the highest address of the network's guests, in
                                                  the subnets to which the addresses of the network's guests belong
a request with empty ``subnets``                  none
a request of a batch job without ``subnets``      none; hooks assign addresses (``virtcloud/jobs/address_plan.py``)
================================================  ==================================================================

If a request lists an address of a guest, but no ``subnets``, SBF assigns no address. If a new network's request lists
``subnets`` and some addresses, SBF assigns addresses to the other guests.
"""

from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass
from ipaddress import ip_interface

from sbf_service.domain.subnets import NetworkIdentity, Subnet, find_subnets, make_subnets
from virtcloud.model.cluster import ClusterSpec
from virtcloud.model.errors import BadInput, NoAddressFree
from virtcloud.model.guest_spec import Guest
from virtcloud.model.message_text import count_of
from virtcloud.model.values import Address


@dataclass(frozen=True, slots=True)
class NetworkAddresses:
    """The addresses of a running network.

    ``root`` is the current spec of the cluster that created the network, and ``guests`` are the guests of all clusters
    of the network.
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

    Raise BadInput if a subnet has too few addresses for the guests, or if the router cannot get its addresses.
    """
    if spec.subnets is None and (batch or not spec.guests or _has_addresses(spec)):
        return _plan_router(spec, find_subnets(spec.guests) if spec.guests else make_subnets(identity, 0))
    subnets = make_subnets(identity, len(spec.guests)) if spec.subnets is None else spec.subnets
    spec = _plan_router(spec, subnets)
    used = _list_used(spec.guests) | dict.fromkeys(list_router(spec))
    count = _count_unaddressed(spec)
    found = [Subnet.of(subnet).take_from_start(used, count) for subnet in subnets]
    for subnet, free in zip(subnets, found, strict=True):
        if len(free) < count:
            shortage = _describe_shortage(subnet, len(free), count)
            raise BadInput(f"spec.subnets: {shortage}{_suggest_start(subnet, used, count)}")
    return _assign(spec.model_copy(update={"subnets": subnets}), found)


def list_router(spec: ClusterSpec) -> list[str]:
    """Return the addresses of a network's router without prefix length."""
    return [address.partition("/")[0] for address in spec.router_addresses or ()]


def _plan_router(spec: ClusterSpec, subnets: Sequence[Address]) -> ClusterSpec:
    """Return the spec of a new network with its router's addresses.

    A router without requested addresses gets one address of each subnet (``Subnet.take_from_end``).

    Raise BadInput if the network has no subnet, if a subnet is full, or if a requested address is not usable.
    """
    if spec.outside:
        spec = spec.model_copy(update={"router": "gateway"})
    if spec.router is None:
        return spec
    if spec.router_addresses is not None:
        _check_router_addresses(spec, subnets)
        return spec
    used = _list_used(spec.guests)
    found = [Subnet.of(subnet).take_from_end(used, 1) for subnet in subnets]
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
    others = _list_used(network.guests)
    found = [Subnet.of(subnet).take_after(others, used, count) for subnet in network.subnets]
    for subnet, free in zip(network.subnets, found, strict=True):
        if len(free) < count:
            raise NoAddressFree(
                f"network {spec.joins}: {_describe_shortage(subnet, len(free), count)}, or list the addresses of the "
                "guests"
            )
    return _assign(spec, found)


def choose_device_addresses(network: NetworkAddresses, user: str = "the device") -> tuple[Address, ...]:
    """Return one address of each subnet for a device or gateway (``Subnet.take_from_end``).

    Return no addresses for a network without subnets. Raise NoAddressFree, with ``user`` in its message, if a subnet
    has no free address.
    """
    used = network.list_used()
    found = [Subnet.of(subnet).take_from_end(used, 1) for subnet in network.subnets]
    for subnet, free in zip(network.subnets, found, strict=True):
        if not free:
            raise NoAddressFree(
                f"expected 1 free address in subnet {subnet} for {user}, got 0: the network has "
                f"{_describe_network(network)}; "
                "revoke VPN profiles with 'virtcloud access revoke', or create a cluster with a larger subnet"
            )
    return tuple(address for free in found for address in free)


def list_guest_identities(guest: Guest) -> Iterator[str]:
    """Yield the name, the IP addresses and the MAC address of a guest, if the spec contains them.

    Each of these values must be unique in the network.
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
    return {address.partition("/")[0]: None for guest in guests for address in guest.addresses}


def _describe_network(network: NetworkAddresses) -> str:
    guests, devices = count_of(len(network.guests), "guest"), count_of(len(network.devices), "device address")
    if not network.gateways:
        return f"{guests} and {devices}"
    return f"{guests}, {devices} and {count_of(len(network.gateways), 'gateway address')}"


def _suggest_start(subnet: Address, used: Collection[str], count: int) -> str:
    whole = Address(str(ip_interface(subnet).network))
    is_enough = len(Subnet.of(whole).take_from_start(used, count)) == count
    return f", or begin with a lower address: {whole}" if is_enough else ""


def _describe_shortage(subnet: Address, free: int, needed: int) -> str:
    text = count_of(needed, "free address")
    return f"expected {text} in subnet {subnet} for {count_of(needed, 'guest')}, got {free}: choose a larger subnet"
