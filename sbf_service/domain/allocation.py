"""Allocation: the choice of free VLAN IDs and service IDs for a new cluster. Pure.

The rule is *longest unused first* (:func:`choose_longest_unused`). A device may still have configuration of an ID's
former cluster. The longer the ID has been unused, the less likely this is.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from functools import lru_cache, reduce
from itertools import islice
from typing import TypeVar

from virtcloud.model.errors import NoVlanFree
from virtcloud.model.message_text import count_of
from virtcloud.model.values import Name, VlanId
from virtcloud.model.vlans import VlanSet

ALWAYS_RESERVED = VlanSet([1])
"""SBF never allocates VLAN 1, because it is the default VLAN of nearly every switch."""

AllocatedId = TypeVar("AllocatedId", bound=int)


def choose_longest_unused(
    never_used: Iterable[AllocatedId], released: Iterable[tuple[datetime, AllocatedId]]
) -> AllocatedId | None:
    """Return the lowest free ID that was never used, else the free ID with the earliest release, else None.

    ``released`` contains the free IDs that were used before, with the times of their last releases. The lowest ID wins
    among equal times.
    """
    lowest = min(never_used, default=None)
    return lowest if lowest is not None else min(released, default=(None, None))[1]


@lru_cache(maxsize=64)
def find_excluded(reserved: frozenset[VlanSet]) -> VlanSet:
    """Return the VLAN IDs that clusters cannot use at a site.

    ``reserved`` contains the set of reserved VLAN IDs of each device of the site.
    """
    return ALWAYS_RESERVED | frozenset().union(*reserved)


@dataclass(frozen=True, slots=True)
class SitePool:
    """The VLAN IDs of one site's pool.

    ``claimed`` are the VLAN IDs of live clusters, and ``quarantined`` those of ended clusters. ``excluded`` are the
    VLAN IDs that the site's devices reserve. ``foreign`` are the IDs of foreign VLANs on the site's devices. ``freed``
    maps each formerly used VLAN ID to the time of its last release.
    """

    site: Name
    vlans: VlanSet
    claimed: VlanSet = field(default_factory=VlanSet)
    quarantined: VlanSet = field(default_factory=VlanSet)
    excluded: VlanSet = field(default_factory=VlanSet)
    foreign: VlanSet = field(default_factory=VlanSet)
    freed: Mapping[VlanId, datetime] = field(default_factory=dict)

    @property
    def free(self) -> VlanSet:
        """The VLAN IDs that SBF can allocate to a new cluster at this site."""
        return self.vlans - self.claimed - self.quarantined - self.excluded - self.foreign - ALWAYS_RESERVED


@dataclass(frozen=True, slots=True)
class TransportVlans:
    """``taken``: the VLAN IDs of all networks on a transport that separates networks only by their VLAN IDs.

    No other network on this transport can have one of these VLAN IDs, even at other sites.
    """

    transport: Name
    taken: VlanSet


def find_free_at_every_site(pools: Sequence[SitePool]) -> VlanSet:
    """Return the VLAN IDs that are free at every site. Fast for a thousand sites, whose pools are mostly equal."""
    pool_vlans = sorted({pool.vlans for pool in pools}, key=len)
    free = reduce(VlanSet.__and__, pool_vlans) - ALWAYS_RESERVED if pool_vlans else VlanSet()
    for pool in pools:
        for unavailable in (pool.claimed, pool.quarantined, pool.excluded, pool.foreign):
            if common := free.intersection(unavailable):
                free -= common
    return free


FindOldest = Callable[[Sequence[Name]], VlanId | None]
"""A function that chooses among the VLAN IDs that are free at all given sites, by :func:`choose_longest_unused`."""


def choose_vlan_ids(sites: Sequence[Name], find_oldest: FindOldest, *, translates: bool) -> dict[Name, VlanId] | None:
    """Choose one VLAN ID for all sites.

    If no single VLAN ID is free at every site, and the transport ``translates`` VLAN IDs, choose a VLAN ID for each
    site. Return None if no choice is possible.
    """
    if (common := find_oldest(sites)) is not None:
        return dict.fromkeys(sites, common)
    separate = {site: find_oldest([site]) for site in sites} if translates else {}
    vlans = {site: vlan for site, vlan in separate.items() if vlan is not None}
    return vlans if vlans and len(vlans) == len(sites) else None


def allocate_vlan_ids(
    pools: Sequence[SitePool], *, translates: bool = False, on_transport: TransportVlans | None = None
) -> dict[Name, VlanId]:
    """Choose the VLAN IDs of a new cluster by :func:`choose_vlan_ids`, but none of ``on_transport``.

    Raise NoVlanFree if no choice is possible.
    """
    by_site = {pool.site: pool for pool in pools}
    taken = VlanSet() if on_transport is None else on_transport.taken

    def find_oldest(sites: Sequence[Name]) -> VlanId | None:
        return _find_longest_unused([by_site[site] for site in sites], taken)

    vlans = choose_vlan_ids(list(by_site), find_oldest, translates=translates)
    if vlans is None:
        raise NoVlanFree(_no_vlan_free_message(pools, on_transport))
    return vlans


def _find_longest_unused(pools: Sequence[SitePool], taken: VlanSet) -> VlanId | None:
    free = find_free_at_every_site(pools) - taken
    never_used = free.difference(*(pool.freed for pool in pools))
    return choose_longest_unused(never_used, ((_last_release(pools, vlan), vlan) for vlan in free))


def _last_release(pools: Sequence[SitePool], vlan: VlanId) -> datetime:
    return max(pool.freed[vlan] for pool in pools if vlan in pool.freed)


def _no_vlan_free_message(pools: Sequence[SitePool], on_transport: TransportVlans | None) -> str:
    sites = ", ".join(pool.site for pool in pools)
    where = sites if len(pools) == 1 else f"every site ({sites})"
    usage = "; ".join(_describe_usage(pool) for pool in pools)
    if on_transport is None or not (free := find_free_at_every_site(pools)):
        return f"no VLAN is free at {where}: {usage}; {_describe_remedy(pools)}"
    return (
        f"no VLAN is free at {where} and on transport {on_transport.transport}: {usage}; "
        f"{count_of(len(free), 'VLAN ID')} ({free}) {'is' if len(free) == 1 else 'are'} free at every site, but in use "
        f"or in quarantine at other sites of transport {on_transport.transport}, which separates clusters only by "
        f"their VLAN IDs: end a cluster on transport {on_transport.transport}, add the same VLAN IDs to all these "
        "pools, or use a transport with a service for each cluster"
    )


def _describe_usage(pool: SitePool) -> str:
    if not pool.vlans:
        return f"{pool.site} has no VLAN IDs"
    quarantined = len(pool.quarantined)
    others = len((pool.foreign & pool.vlans) - pool.claimed - pool.quarantined)
    remark = f", {others} in other use on its devices" if others else ""
    remark += f" and {quarantined} in quarantine" if quarantined else ""
    return f"{pool.site} has {count_of(len(pool.vlans), 'VLAN ID')}, {len(pool.claimed)} in use{remark}"


def _describe_remedy(pools: Sequence[SitePool]) -> str:
    empty = [pool.site for pool in pools if not pool.vlans]
    if empty:
        return f"add VLAN IDs to the pool of {', '.join(empty)}"
    if all(pool.free for pool in pools):
        return (
            "each site has free VLAN IDs, but no VLAN ID is free at every site, and the transport between the sites "
            "cannot translate VLAN IDs: add the same VLAN IDs to all these pools, or use a transport that translates"
        )
    return "end a cluster, or add VLAN IDs to the pools"


def describe_choice(pool: SitePool) -> str:
    """Return the remedy for a request of a VLAN ID that the site cannot allocate."""
    if not pool.vlans:
        return f"ask the site's administrator for a pool (virtcloud pool set {pool.site} VLANS)"
    return f"choose a free VLAN ID (virtcloud site show {pool.site}), or omit the VLAN ID: SBF then chooses one"


@dataclass(frozen=True, slots=True)
class ServicePool:
    """The service IDs of one transport, in the range ``ids``.

    ``claimed`` contains the IDs in use or in quarantine, and ``quarantined`` is the number of IDs in quarantine.
    ``freed`` maps each formerly used ID to the time of its last release.
    """

    transport: Name
    ids: range
    claimed: frozenset[int] = frozenset()
    quarantined: int = 0
    freed: Mapping[int, datetime] | None = None


def allocate_service_id(pool: ServicePool) -> int:
    """Return the service ID for a new network. Raise NoVlanFree when no service ID is free.

    A range may contain millions of IDs, so this function must not copy the range.
    """
    freed = pool.freed or {}
    never_used = (service for service in pool.ids if service not in pool.claimed and service not in freed)
    released = ((at, service) for service, at in freed.items() if service in pool.ids and service not in pool.claimed)
    chosen = choose_longest_unused(islice(never_used, 1), released)
    if chosen is None:
        raise NoVlanFree(_no_service_free_message(pool))
    return chosen


def _no_service_free_message(pool: ServicePool) -> str:
    first, last = pool.ids[0], pool.ids[-1]
    remark = f", {pool.quarantined} of them in quarantine" if pool.quarantined else ""
    return (
        f"no service ID is free on transport {pool.transport}: it has {count_of(len(pool.ids), 'service ID')} "
        f"({first}-{last}), all in use{remark}; end a cluster, or extend the transport's range of service IDs"
    )
