"""A job's access to its cluster's guests: the description, the script's environment, and the relay's addresses.

A job's relay (`relay_program`) has one address in each subnet of the cluster. The agent searches each subnet for a free
address, in the order of `list_host_addresses`.
"""

from collections.abc import Callable, Iterable, Iterator
from ipaddress import IPv4Network, IPv6Network, ip_interface
from itertools import islice
from typing import Annotated, Protocol
from zlib import crc32

from pydantic import Field

from virtcloud.agent.network.address_probe import AddressProber, IpAddress
from virtcloud.model.document import Document
from virtcloud.model.guest_seed import Peer
from virtcloud.model.guest_spec import Guest
from virtcloud.model.values import ClusterKey, LoginName, Name, VlanId

ScriptEnvironment = dict[str, str]
"""Environment variables of a job's script (`virtcloud.jobs.script_variables`): values by name."""
IpNetwork = IPv4Network | IPv6Network
BATCH_SIZE, MAX_BATCHES = 8, 4
"""Number of addresses that are probed at once (a batch), and limit of batches in each subnet."""
MAX_ROTATED = 256
"""Maximum number of addresses of a subnet that `list_host_addresses` rotates if ``first_candidate`` is None. In this
case, the job's search begins with one of these addresses.
"""
PROBE_S = 0.15
"""Time limit of a probe in seconds. Even guests at the farthest site answer within this time. A second probe follows,
because a frame may be lost.
"""
RESERVED_ANYCAST = 128
"""Number of reserved anycast addresses at the end of an IPv6 subnet (RFC 2526)."""


class JobAccess(Document):
    """The description of a job's access.

    The description is stored in the job's record, so that a restarted agent can open the access again. ``user`` is the
    job's user on this host. ``vlan`` is the VLAN ID at this host's site. ``peers`` are the guests of the cluster's
    network with their public host keys. ``login`` is the user name in the cluster's guests, or None if unknown.
    ``network`` is the ID of the cluster whose network the guests use, or None if unknown. ``first_candidate`` is the
    index of the address at which the search begins (`list_host_addresses`), or None if the job's key determines this
    address.
    """

    key: ClusterKey
    user: Annotated[str, Field(min_length=1, max_length=64)]
    vlan: VlanId
    network: str | None = None
    name: Name | None = None
    guests: tuple[Guest, ...] = ()
    login: LoginName | None = None
    peers: tuple[Peer, ...] = ()
    first_candidate: int | None = None


class JobAccessProvider(Protocol):
    """Opens and closes the access of jobs. All methods are idempotent, even after an interrupted call."""

    def open(self, access: JobAccess) -> ScriptEnvironment:
        """Open the access. Return environment variables for the script.

        Raise Refused with a remedy if the access cannot be opened.
        """

    def close(self, key: str) -> None:
        """Remove the access if it exists. Raise Refused if a part of the access cannot be removed."""

    def is_lost(self, key: str) -> bool:
        """Return whether an opened access has ended by itself, and can be opened again without harm to connections."""


def guest_subnets(guests: Iterable[Guest]) -> tuple[IpNetwork, ...]:
    """Return the subnets of the guests' addresses without duplicates, in the order of the guests. Pure."""
    return tuple(dict.fromkeys(ip_interface(address).network for guest in guests for address in guest.addresses))


def find_free_addresses(prober: AddressProber, access: JobAccess) -> list[str]:
    """Find a free address in each subnet of the guests. Return the found addresses with prefix lengths.

    Omit a subnet if none of the probed addresses is free. Searches for different jobs usually begin with different
    addresses, so that two hosts do not choose the same address.
    """
    candidates = {network: list_host_addresses(network, access) for network in guest_subnets(access.guests)}
    chosen: dict[IpNetwork, IpAddress] = {}
    for _ in range(MAX_BATCHES):
        batches = {
            network: list(islice(addresses, BATCH_SIZE))
            for network, addresses in candidates.items()
            if network not in chosen
        }
        probed = [address for batch in batches.values() for address in batch]
        if not probed:
            break
        used = prober.probe(probed, PROBE_S) | prober.probe(probed, PROBE_S)
        chosen |= {
            network: free
            for network, batch in batches.items()
            for free in [_find_free(batch, used)]
            if free is not None
        }
    return [f"{chosen[network]}/{network.prefixlen}" for network in candidates if network in chosen]


def list_host_addresses(network: IpNetwork, access: JobAccess) -> Iterator[IpAddress]:
    """Yield the addresses of a subnet, except the guests' addresses, in the order of a job's search. Pure.

    The addresses are first listed in descending order, and this list is then rotated. If ``access.first_candidate`` is
    an index, the address with this index comes first, and the addresses that preceded this address in the list come
    last. If ``access.first_candidate`` is None, only the first part of the list is rotated, by a checksum of the job's
    key. This part has the highest addresses: an eighth of the subnet's size, but at least `BATCH_SIZE` and at most
    `MAX_ROTATED` addresses. The other addresses follow in descending order.
    """
    guest_addresses = {ip_interface(address).ip for guest in access.guests for address in guest.addresses}
    address_type: Callable[[int], IpAddress] = type(network.network_address)
    all_addresses = (address for address in map(address_type, _host_range(network)) if address not in guest_addresses)
    if access.first_candidate is not None:
        start = access.first_candidate % max(1, network.num_addresses - len(guest_addresses) - 2)
        last = list(islice(all_addresses, start))
        yield from all_addresses
        yield from last
        return
    first = list(islice(all_addresses, max(BATCH_SIZE, min(network.num_addresses // 8, MAX_ROTATED))))
    start = crc32(access.key.encode()) % len(first) if first else 0
    yield from (*first[start:], *first[:start])
    yield from all_addresses


def _host_range(network: IpNetwork) -> range:
    lowest, highest = int(network.network_address), int(network.broadcast_address)
    if isinstance(network, IPv6Network) and network.num_addresses > 2 * RESERVED_ANYCAST:
        highest -= RESERVED_ANYCAST
    elif isinstance(network, IPv4Network) and network.num_addresses > 2:  # noqa: PLR2004 - RFC 3021: a /31 has two hosts
        highest -= 1
    return range(highest, lowest if network.num_addresses > 2 else lowest - 1, -1)  # noqa: PLR2004 - as above


def _find_free(addresses: Iterable[IpAddress], used: frozenset[IpAddress]) -> IpAddress | None:
    return next((address for address in addresses if address not in used), None)
