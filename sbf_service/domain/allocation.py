"""Allocation: the choice of free VLAN IDs and service IDs for a new cluster. Pure.

An ID that was never used is chosen first, then the ID that has been unused for the longest time, so that a new cluster
does not meet stale state on a device. Among equal IDs the lowest is chosen.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from functools import lru_cache, reduce

from virtcloud.model.errors import NoVlanFree
from virtcloud.model.values import Name, VlanId
from virtcloud.model.vlans import VlanSet

ALWAYS_RESERVED = VlanSet([1])
"""VLAN 1 is the default VLAN of nearly every switch and is never allocated (SWITCHES.md, pitfalls 2 and 11)."""


@lru_cache(maxsize=64)
def find_excluded(reserved: frozenset[VlanSet]) -> VlanSet:
    """Return the VLAN IDs that clusters cannot use at a site whose devices have these reservations."""
    return ALWAYS_RESERVED | frozenset().union(*reserved)


@dataclass(frozen=True, slots=True)
class SitePool:
    """The VLAN IDs of one site's pool.

    ``given`` are the VLAN IDs of the pool. ``claimed`` are the VLAN IDs of live clusters, ``quarantined`` those of
    ended clusters. ``excluded`` are the VLAN IDs that devices reserve. ``foreign`` are VLAN IDs in other use on a
    device. ``freed`` maps a VLAN ID to the time of its last release; a VLAN ID without a time was never used.
    """

    site: Name
    given: VlanSet
    claimed: VlanSet = field(default_factory=VlanSet)
    quarantined: VlanSet = field(default_factory=VlanSet)
    excluded: VlanSet = field(default_factory=VlanSet)
    foreign: VlanSet = field(default_factory=VlanSet)
    freed: Mapping[VlanId, datetime] = field(default_factory=dict)

    @property
    def free(self) -> VlanSet:
        """The VLAN IDs that a new cluster may get at this site."""
        return self.given - self.claimed - self.quarantined - self.excluded - self.foreign - ALWAYS_RESERVED


def find_free_at_all(pools: Sequence[SitePool]) -> VlanSet:
    """Return the VLAN IDs that are free at every site.

    With a thousand sites, computing the free VLAN IDs of each site would take most of the time. This function removes
    the taken VLAN IDs of each site from the common remainder, and intersects a pool that many sites share only once.
    """
    given = sorted({pool.given for pool in pools}, key=len)
    left = reduce(VlanSet.__and__, given) - ALWAYS_RESERVED if given else VlanSet()
    for pool in pools:
        for taken in (pool.claimed, pool.quarantined, pool.excluded, pool.foreign):
            if common := left.intersection(taken):
                left -= common
    return left


FindOldest = Callable[[Sequence[Name]], VlanId | None]
"""A function that returns the VLAN ID that is free at all given sites and was unused for the longest time, or None.

A VLAN ID that was never used counts as the longest unused. Among equal VLAN IDs the lowest is returned.
"""


def choose_vlan_ids(sites: Sequence[Name], find_oldest: FindOldest, *, translates: bool) -> dict[Name, VlanId] | None:
    """Choose one VLAN ID for all sites, or, if the transport ``translates``, a VLAN ID for each site.

    Separate VLAN IDs are chosen only when no VLAN ID is free at all sites. Return None when no choice is possible.
    """
    if (same := find_oldest(sites)) is not None:
        return dict.fromkeys(sites, same)
    own = {site: find_oldest([site]) for site in sites} if translates else {}
    found = {site: vlan for site, vlan in own.items() if vlan is not None}
    return found if found and len(found) == len(sites) else None


def allocate_vlan_ids(pools: Sequence[SitePool], *, translates: bool = False) -> dict[Name, VlanId]:
    """Choose the VLAN IDs of a new cluster by :func:`choose_vlan_ids`. Raise NoVlanFree when the pools have none."""
    by_site = {pool.site: pool for pool in pools}

    def find_oldest(sites: Sequence[Name]) -> VlanId | None:
        return _find_longest_unused([by_site[site] for site in sites])

    found = choose_vlan_ids(list(by_site), find_oldest, translates=translates)
    if found is None:
        raise NoVlanFree(_no_vlan_free_message(pools))
    return found


def _find_longest_unused(pools: Sequence[SitePool]) -> VlanId | None:
    free = find_free_at_all(pools)
    never_used = free.difference(*(pool.freed for pool in pools))
    if never_used:
        return min(never_used)
    return min(free, key=lambda vlan: (_last_use(pools, vlan), vlan), default=None)


def _last_use(pools: Sequence[SitePool], vlan: VlanId) -> datetime:
    return max(pool.freed[vlan] for pool in pools if vlan in pool.freed)


def _no_vlan_free_message(pools: Sequence[SitePool]) -> str:
    sites = ", ".join(pool.site for pool in pools)
    return (
        f"no VLAN is free at {sites}: {'; '.join(_describe_usage(pool) for pool in pools)}; {_describe_remedy(pools)}"
    )


def _describe_usage(pool: SitePool) -> str:
    if not pool.given:
        return f"{pool.site} has none"
    quarantined = len(pool.quarantined)
    others = len((pool.foreign & pool.given) - pool.claimed - pool.quarantined)
    remark = f", {others} in other use on its devices" if others else ""
    remark += f" and {quarantined} in quarantine" if quarantined else ""
    return f"{pool.site} has {len(pool.given)} VLAN IDs, {len(pool.claimed)} in use{remark}"


def _describe_remedy(pools: Sequence[SitePool]) -> str:
    empty = [pool.site for pool in pools if not pool.given]
    if empty:
        return f"add VLAN IDs to the pool of {', '.join(empty)}"
    if all(pool.free for pool in pools):
        return (
            "each has free VLAN IDs, but none is free at all of them, and their transport does not translate: "
            "add the same VLAN IDs to their pools, or use a transport that gives each cluster its own service"
        )
    return "end a cluster, or add VLAN IDs to the pools"


@dataclass(frozen=True, slots=True)
class ServicePool:
    """The service IDs of one transport.

    ``given`` is the whole range and ``held`` the IDs in use or in quarantine. ``quarantined`` is the number of held IDs
    that belong to ended clusters. ``freed`` maps an ID to the time of its last release.
    """

    transport: Name
    given: range
    held: frozenset[int] = frozenset()
    quarantined: int = 0
    freed: Mapping[int, datetime] | None = None


def allocate_service_id(pool: ServicePool) -> int:
    """Return the service ID for a new network. Raise NoVlanFree when no service ID is free.

    A range may contain millions of IDs, so this function never copies the range.
    """
    freed = {one: at for one, at in (pool.freed or {}).items() if one in pool.given}
    unused = next((one for one in pool.given if one not in pool.held and one not in freed), None)
    if unused is not None:
        return unused
    free = freed.keys() - pool.held
    if not free:
        raise NoVlanFree(_no_service_free_message(pool))
    return min(free, key=lambda one: (freed[one], one))


def _no_service_free_message(pool: ServicePool) -> str:
    first, last = pool.given[0], pool.given[-1]
    remark = f", {pool.quarantined} of them in quarantine" if pool.quarantined else ""
    return (
        f"no service ID is free on transport {pool.transport}: it has {first}-{last}, all {len(pool.given)} in "
        f"use{remark}; end a cluster, or give the transport more service IDs"
    )
