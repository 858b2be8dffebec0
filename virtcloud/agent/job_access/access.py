"""A job's access to the guests of its cluster: its description, the script's environment, and the forwarding addresses.

A job's relay uses one forwarding address in each subnet of the cluster: usually the last address that no host uses.
"""

from collections.abc import Callable, Iterable, Iterator
from ipaddress import IPv4Network, IPv6Network, ip_interface
from itertools import islice
from typing import Annotated, Protocol
from zlib import crc32

from pydantic import Field

from virtcloud.agent.network.address_probe import AddressProber, IpAddress
from virtcloud.model.cluster import Guest
from virtcloud.model.document import Document
from virtcloud.model.values import ClusterKey, Name, VlanId

ScriptEnvironment = dict[str, str]
"""Environment variables of a job's script. The names are those of `SCRIPT_VARIABLES`."""
SCRIPT_VARIABLES = {
    "VCLUSTER_ID": "the cluster's key",
    "VCLUSTER_NAME": "the cluster's name, if it has a name",
    "VCLUSTER_VLAN": "the cluster's VLAN ID at this host's site",
    "VCLUSTER_GUESTS": "the names of the cluster's guests, separated by spaces",
    "VCLUSTER_HOSTS": "a file in the format of `/etc/hosts`: the guests' addresses and names",
    "VCLUSTER_HOSTFILE": "a file for `mpirun --hostfile`: each guest with its number of processors as slots",
    "VCLUSTER_SSH_CONFIG": "a file for `ssh -F`, with which ssh reaches the guests by their names",
}
IpNetwork = IPv4Network | IPv6Network
BATCH_SIZE, ROUNDS = 8, 4
PROBE_S = 0.15
"""Seconds for an answer from the farthest site. Each address is probed twice, since the first probe may be lost."""
RESERVED_ANYCAST = 128
"""Number of reserved addresses at the end of an IPv6 subnet (RFC 2526)."""


class JobAccess(Document):
    """Description of a job's access.

    It is stored in the job's record, so that a restarted agent opens the access again.

    ``user`` is the job's user on this host, ``vlan`` the VLAN ID at this host's site.
    """

    key: ClusterKey
    user: Annotated[str, Field(min_length=1, max_length=64)]
    vlan: VlanId
    name: Name | None = None
    guests: tuple[Guest, ...] = ()


class JobAccessProvider(Protocol):
    """Opens and closes jobs' access. Both methods are idempotent, even after an earlier call was interrupted."""

    def open(self, access: JobAccess) -> ScriptEnvironment:
        """Open the access and return the script's variables.

        Raise Refused with a remedy for the user or an administrator.
        """

    def close(self, key: str) -> None:
        """Remove the access. An absent access is success. Raise Refused when a part of the access cannot be removed."""


def guest_subnets(guests: Iterable[Guest]) -> tuple[IpNetwork, ...]:
    """PURE. Return the networks of the guests' addresses without duplicates, in the order of the guests."""
    return tuple(dict.fromkeys(ip_interface(one).network for guest in guests for one in guest.addresses))


def find_free_addresses(prober: AddressProber, access: JobAccess) -> list[str]:
    """Return a free address with its prefix length for each subnet that has a free address.

    Each job begins with another address, because hosts that probe at the same time would find the same address free.
    """
    remaining = {network: list_host_addresses(network, access) for network in guest_subnets(access.guests)}
    found: dict[IpNetwork, IpAddress] = {}
    for _ in range(ROUNDS):
        batches = {one: list(islice(rest, BATCH_SIZE)) for one, rest in remaining.items() if one not in found}
        every = [address for batch in batches.values() for address in batch]
        if not every:
            break
        used = prober.probe(every, PROBE_S) | prober.probe(every, PROBE_S)
        found |= {one: free for one, batch in batches.items() for free in [_find_free(batch, used)] if free is not None}
    return [f"{found[network]}/{network.prefixlen}" for network in remaining if network in found]


def list_host_addresses(network: IpNetwork, access: JobAccess) -> Iterator[IpAddress]:
    """PURE. Yield a subnet's addresses from its end, without the guests' addresses.

    The first `BATCH_SIZE` addresses are rotated by a checksum of the job's key.
    """
    guests = {ip_interface(one).ip for guest in access.guests for one in guest.addresses}
    make: Callable[[int], IpAddress] = type(network.network_address)
    every = (one for one in map(make, _host_range(network)) if one not in guests)
    first = list(islice(every, BATCH_SIZE))
    start = crc32(access.key.encode()) % len(first) if first else 0
    yield from (*first[start:], *first[:start])
    yield from every


def _host_range(network: IpNetwork) -> range:
    lowest, highest = int(network.network_address), int(network.broadcast_address)
    if isinstance(network, IPv6Network) and network.num_addresses > 2 * RESERVED_ANYCAST:
        highest -= RESERVED_ANYCAST
    elif isinstance(network, IPv4Network) and network.num_addresses > 2:  # noqa: PLR2004 - RFC 3021: both of two are hosts
        highest -= 1
    return range(highest, lowest if network.num_addresses > 2 else lowest - 1, -1)  # noqa: PLR2004 - as above


def _find_free(addresses: Iterable[IpAddress], used: frozenset[IpAddress]) -> IpAddress | None:
    return next((one for one in addresses if one not in used), None)
