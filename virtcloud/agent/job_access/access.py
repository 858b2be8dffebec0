"""A batch job's place on its cluster: what is opened when the cluster is up, and closed when it goes.

Which addresses a job's port takes: one in each subnet of the cluster, from its end backwards, that nobody has.
"""

from collections.abc import Callable, Iterable, Iterator
from ipaddress import IPv4Address, IPv4Network, IPv6Address, IPv6Network, ip_interface
from itertools import islice
from typing import Annotated, Protocol
from zlib import crc32

from pydantic import Field

from virtcloud.model.cluster import Guest
from virtcloud.model.document import Document
from virtcloud.model.values import ClusterKey, Name, VlanId

ScriptEnvironment = dict[str, str]
"""The environment of the job's script, by the names of :data:`FACTS`."""
SCRIPT_VARIABLES = {
    "VCLUSTER_ID": "the cluster's key",
    "VCLUSTER_NAME": "its name, if it has one",
    "VCLUSTER_VLAN": "its VLAN number at this host's site",
    "VCLUSTER_GUESTS": "the names of its guests, with spaces between them",
    "VCLUSTER_HOSTS": "a file in the manner of `/etc/hosts`: the guests' addresses and names",
    "VCLUSTER_HOSTFILE": "a file for `mpirun --hostfile`: each guest with its processors as slots",
    "VCLUSTER_SSH_CONFIG": "a file for `ssh -F`: the way to the guests by their names",
}


class JobAccess(Document):
    """What a job's place is made of. It is kept on disk with the job, so that a restarted agent opens it again.

    ``vlan`` is the number at this host's site (`bridge_name` names the bridge), ``user`` whose
    job it is on this machine.
    """

    key: ClusterKey
    user: Annotated[str, Field(min_length=1, max_length=64)]
    vlan: VlanId
    name: Name | None = None
    guests: tuple[Guest, ...] = ()


class JobAccessProvider(Protocol):
    """Opens and closes the places of jobs. Both may be repeated, also by an agent that was killed in between."""

    def open(self, opening: JobAccess) -> ScriptEnvironment:
        """Make the place and give its facts; raises Refused with what the user or the administrator can do."""

    def close(self, key: str) -> None:
        """Remove all of it; nothing there is success. Raises Refused when something cannot be removed."""


IpAddress = IPv4Address | IPv6Address
IpNetwork = IPv4Network | IPv6Network
BATCH_SIZE, ROUNDS = 8, 4
PROBE_S = 0.15
"""For an answer from the farthest site. Each is asked twice: the first question may have been lost."""
RESERVED_ANYCAST = 128
"""So many addresses at an IPv6 subnet's end are reserved (RFC 2526)."""


class AddressProber(Protocol):
    """An ear on a bridge."""

    def ask(self, addresses: Iterable[IpAddress], seconds: float) -> frozenset[IpAddress]:
        """Give those that somebody was heard to have."""


def guest_subnets(guests: Iterable[Guest]) -> tuple[IpNetwork, ...]:
    """PURE. Give the networks of the guests' addresses, each once, in order."""
    return tuple(dict.fromkeys(ip_interface(one).network for guest in guests for one in guest.addresses))


def find_free_addresses(ear: AddressProber, opening: JobAccess) -> list[str]:
    """Give an address with its prefix length in each subnet that has a free one.

    Those whose hosts ask at the same moment begin at different places, for each would find the same address free.
    """
    waiting = {network: list_host_addresses(network, opening) for network in guest_subnets(opening.guests)}
    found: dict[IpNetwork, IpAddress] = {}
    for _ in range(ROUNDS):
        asked = {one: list(islice(rest, BATCH_SIZE)) for one, rest in waiting.items() if one not in found}
        every = [address for some in asked.values() for address in some]
        if not every:
            break
        taken = ear.ask(every, PROBE_S) | ear.ask(every, PROBE_S)
        found |= {one: free for one, some in asked.items() for free in [_find_free(some, taken)] if free is not None}
    return [f"{found[network]}/{network.prefixlen}" for network in waiting if network in found]


def list_host_addresses(network: IpNetwork, opening: JobAccess) -> Iterator[IpAddress]:
    """PURE. Give the subnet's addresses from its end, but guests' ones; the first few turned by the job's key."""
    taken = {ip_interface(one).ip for guest in opening.guests for one in guest.addresses}
    make: Callable[[int], IpAddress] = type(network.network_address)
    every = (one for one in map(make, _host_range(network)) if one not in taken)
    first = list(islice(every, BATCH_SIZE))
    turn = crc32(opening.key.encode()) % len(first) if first else 0
    yield from (*first[turn:], *first[:turn])
    yield from every


def _host_range(network: IpNetwork) -> range:
    lowest, highest = int(network.network_address), int(network.broadcast_address)
    if isinstance(network, IPv6Network) and network.num_addresses > 2 * RESERVED_ANYCAST:
        highest -= RESERVED_ANYCAST
    elif isinstance(network, IPv4Network) and network.num_addresses > 2:  # noqa: PLR2004 - RFC 3021: of two, both are hosts'
        highest -= 1
    return range(highest, lowest if network.num_addresses > 2 else lowest - 1, -1)  # noqa: PLR2004 - as above


def _find_free(some: Iterable[IpAddress], taken: frozenset[IpAddress]) -> IpAddress | None:
    return next((one for one in some if one not in taken), None)
