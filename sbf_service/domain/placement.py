"""Distribution of a spread's guests over hosts by free capacity. Pure.

A spread (``GuestSpread``) is a number of guests with the same properties, for which SBF chooses the hosts.

The capacity of a host results from its agent's report and from the overcommit in the settings. Stopped guests use
capacity too. The guests of a cluster use capacity until the cluster has ended and none of its claims is quarantined.
SBF places each guest on the host whose free fraction of capacity is largest after the placement. Among equal hosts, SBF
prefers, in this order: hosts at the site with the fewest guests of the spread, hosts with the fewest guests of the
spread, and the first host in the topology.
"""

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from fractions import Fraction
from heapq import heapify, heapreplace
from typing import Annotated, Final

from pydantic import Field

from virtcloud.model.cluster import ClusterSpec
from virtcloud.model.document import Document
from virtcloud.model.errors import NoCapacity
from virtcloud.model.guest_spec import Guest, GuestSpread
from virtcloud.model.message_text import count_of
from virtcloud.model.values import Name
from virtcloud.model.views import HostCapacity

MAX_LISTED_HOSTS = 20


class Overcommit(Document):
    """The table ``[placement]`` of the settings: the processors and the memory that guests may use on each host."""

    cpus: Annotated[float, Field(gt=0, le=1000)] = Field(
        4.0, description="Virtual processors of guests for each processor of a host."
    )
    memory: Annotated[float, Field(gt=0, le=100)] = Field(
        1.0,
        description="MiB of guests' memory for each MiB of a host's memory. `host_memory_mb` is first subtracted from "
        "the host's memory.",
    )
    host_memory_mb: Annotated[int, Field(ge=0)] = Field(
        512, description="Memory in MiB that each host keeps for itself."
    )


DEFAULT_OVERCOMMIT: Final = Overcommit()


@dataclass(frozen=True, slots=True)
class ComputeResources:
    """Processors and memory (MiB) of a host, or of the guests on a host."""

    cpus: int = 0
    memory_mb: int = 0

    def __add__(self, other: "ComputeResources") -> "ComputeResources":
        """Return the sum."""
        return ComputeResources(self.cpus + other.cpus, self.memory_mb + other.memory_mb)

    def __str__(self) -> str:
        """Return the resources as text for messages."""
        return f"{count_of(self.cpus, 'CPU')} and {self.memory_mb} MiB"


@dataclass(frozen=True, slots=True)
class CandidateHost:
    """A host, its capacity for guests, and the used resources.

    ``obstacle`` is the reason why the host accepts no guests, or None.
    """

    name: Name
    site: Name
    total: ComputeResources = ComputeResources()
    used: ComputeResources = ComputeResources()
    obstacle: str | None = None

    def count_room(self, needed: ComputeResources) -> int:
        """Return the number of guests that fit on the host, if each needs ``needed``."""
        if self.obstacle is not None:
            return 0
        cpus = (self.total.cpus - self.used.cpus) // needed.cpus
        return max(0, min(cpus, (self.total.memory_mb - self.used.memory_mb) // needed.memory_mb))

    def describe(self, needed: ComputeResources) -> str:
        """Describe how many guests fit on the host, and why no more guests fit."""
        room = self.count_room(needed)
        fits = f"room for {count_of(room, 'guest')}, " if room else ""
        cpus = f"{self.used.cpus} of {count_of(self.total.cpus, 'CPU')}"
        memory = f"{self.used.memory_mb} of {self.total.memory_mb} MiB"
        return f"host {self.name}: {self.obstacle or f'{fits}guests use {cpus} and {memory}'}"


def compute_total(capacity: HostCapacity, overcommit: Overcommit) -> ComputeResources:
    """Return the resources that guests may use on a host with this capacity."""
    memory = max(0, capacity.memory_mb - overcommit.host_memory_mb)
    return ComputeResources(int(capacity.cpus * overcommit.cpus), int(memory * overcommit.memory))


def sum_used(specs: Iterable[ClusterSpec]) -> dict[Name, ComputeResources]:
    """Return the resources that the guests of these clusters use on each host."""
    used: dict[Name, ComputeResources] = {}
    for spec in specs:
        for guest in spec.guests:
            used[guest.host] = used.get(guest.host, ComputeResources()) + ComputeResources(guest.cpus, guest.memory_mb)
    return used


def place_guests(spread: GuestSpread, hosts: Sequence[CandidateHost]) -> tuple[Guest, ...]:
    """Return the guests of a spread, each with its host, in the order of ``hosts``.

    Raise NoCapacity if the hosts have too little room.
    """
    needed = ComputeResources(spread.cpus, spread.memory_mb)
    room = [host.count_room(needed) for host in hosts]
    if sum(room) < spread.count:
        raise NoCapacity(_describe_shortage(spread, hosts, sum(room)))
    counts = _distribute(spread.count, needed, hosts, room)
    chosen = (host.name for index, host in enumerate(hosts) for _ in range(counts[index]))
    keys = spread.model_dump(exclude={"count", "prefix", "sites"})
    return tuple(Guest(name=name, host=host, **keys) for name, host in zip(spread.names, chosen, strict=True))


def _distribute(
    count: int, needed: ComputeResources, hosts: Sequence[CandidateHost], room: Sequence[int]
) -> Counter[int]:
    """Return the number of guests on each host, by the host's index in ``hosts``.

    An outdated entry of the heap is updated when the entry becomes the first.
    """
    placed: Counter[int] = Counter()
    at_site: Counter[Name] = Counter()

    def rank(index: int) -> tuple[Fraction, int, int, int]:
        share = _compute_free_share(hosts[index], needed, placed[index] + 1)
        return -share, at_site[hosts[index].site], placed[index], index

    heap = [rank(index) for index in range(len(hosts)) if room[index]]
    heapify(heap)
    while placed.total() < count:
        index = heap[0][-1]
        if (current := rank(index)) != heap[0]:
            heapreplace(heap, current)
            continue
        placed[index] += 1
        at_site[hosts[index].site] += 1
        full = placed[index] == room[index]
        heapreplace(heap, (Fraction(2), 0, 0, index) if full else rank(index))
    return placed


def _compute_free_share(host: CandidateHost, needed: ComputeResources, guests: int) -> Fraction:
    cpus = host.total.cpus - host.used.cpus - guests * needed.cpus
    memory = host.total.memory_mb - host.used.memory_mb - guests * needed.memory_mb
    return min(Fraction(cpus, host.total.cpus), Fraction(memory, host.total.memory_mb))


def _describe_shortage(spread: GuestSpread, hosts: Sequence[CandidateHost], room: int) -> str:
    needed = ComputeResources(spread.cpus, spread.memory_mb)
    sites = f"at {', '.join(spread.sites)}" if spread.sites else "at all sites"
    wanted = f"expected room for {count_of(spread.count, 'guest')} of {needed} {sites}, got room for {room}"
    remedy = "request fewer or smaller guests, request other sites, or wait until clusters end"
    return f"{wanted}: {'; '.join(_describe_hosts(hosts, needed)) or 'there is no host'}: {remedy}"


def _describe_hosts(hosts: Sequence[CandidateHost], needed: ComputeResources) -> Iterator[str]:
    for host in hosts[:MAX_LISTED_HOSTS]:
        yield host.describe(needed)
    if len(hosts) > MAX_LISTED_HOSTS:
        yield f"and {count_of(len(hosts) - MAX_LISTED_HOSTS, 'more host')}"
