"""Which VLAN numbers are free at all the sites of a cluster, and which one to take. Pure.

Which service number of a transport a new cluster gets: one of its own, wherever each cluster has one. Pure.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from functools import reduce

from virtcloud.model.errors import NoVlanFree
from virtcloud.model.values import Name, VlanId
from virtcloud.model.vlans import VlanSet

ALWAYS_RESERVED = VlanSet([1])
"""VLAN 1 is the default of nearly every switch: never given to a cluster (SWITCHES.md, what bites, 2 and 11)."""


@dataclass(frozen=True, slots=True)
class SitePool:
    """The numbers of one site: given by its administrators, held by clusters, kept back, excluded by its devices.

    ``foreign`` are those that devices were read to use for somebody else.
    ``freed`` says when a number was last given back; a number that is no key was never used.
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
        """The numbers that a new cluster may have here."""
        return self.given - self.claimed - self.quarantined - self.excluded - self.foreign - ALWAYS_RESERVED


def find_free_at_all(pools: Sequence[SitePool]) -> VlanSet:
    """Give the numbers that are free at every one of the sites.

    With a thousand sites most of the time would go into numbers that are not free anyway: each site is asked only
    about those that are left, and for numbers that many give only once.
    """
    given = sorted({pool.given for pool in pools}, key=len)
    left = reduce(VlanSet.__and__, given) - ALWAYS_RESERVED if given else VlanSet()
    for pool in pools:
        for taken in (pool.claimed, pool.quarantined, pool.excluded, pool.foreign):
            if common := left.intersection(taken):
                left -= common
    return left


def allocate_vlan_ids(pools: Sequence[SitePool], *, translates: bool = False) -> dict[Name, VlanId]:
    """Choose the number that a new cluster gets at each of these sites: the same one at all of them, if there is any.

    Where what joins the sites ``translates``, each gets one of its own otherwise. It is the one unused for longest, so
    that stale state somewhere never meets a new cluster; a number never used counts as the oldest, and among equals
    the lowest is taken. Raises :class:`NoVlanFree`.
    """
    if free := find_free_at_all(pools):
        chosen = _longest_unused(pools, free)
        return {pool.site: chosen for pool in pools}
    own = {pool.site: pool.free for pool in pools}
    if translates and all(own.values()):
        return {pool.site: _longest_unused([pool], own[pool.site]) for pool in pools}
    raise NoVlanFree(_no_vlan_free_message(pools))


def _longest_unused(pools: Sequence[SitePool], free: VlanSet) -> VlanId:
    never_used = free.difference(*(pool.freed for pool in pools))
    return min(never_used) if never_used else min(free, key=lambda number: (_last_use(pools, number), number))


def _last_use(pools: Sequence[SitePool], number: VlanId) -> datetime:
    return max(pool.freed[number] for pool in pools if number in pool.freed)


def _no_vlan_free_message(pools: Sequence[SitePool]) -> str:
    sites = ", ".join(pool.site for pool in pools)
    return (
        f"no VLAN is free at {sites}: {'; '.join(_describe_usage(pool) for pool in pools)}; {_describe_remedy(pools)}"
    )


def _describe_usage(pool: SitePool) -> str:
    if not pool.given:
        return f"{pool.site} gives none"
    kept = len(pool.quarantined)
    others = len((pool.foreign & pool.given) - pool.claimed - pool.quarantined)
    remark = f", {others} in other use on its devices" if others else ""
    remark += f" and {kept} in quarantine" if kept else ""
    return f"{pool.site} gives {len(pool.given)}, {len(pool.claimed)} in use{remark}"


def _describe_remedy(pools: Sequence[SitePool]) -> str:
    empty = [pool.site for pool in pools if not pool.given]
    if empty:
        return f"give numbers to the pool of {', '.join(empty)}"
    if all(pool.free for pool in pools):
        return (
            "each has free numbers, but no number is free at all of them, and what joins them does not translate: "
            "give the same numbers to their pools, or join them by a transport that gives each cluster its own service"
        )
    return "end a cluster, or give more numbers to the pools"


@dataclass(frozen=True, slots=True)
class ServicePool:
    """The service numbers of one transport: all that clusters may have, those held, and when others were given back.

    ``quarantined`` are those of the held ones that ended clusters keep back.
    """

    transport: Name
    given: range
    held: frozenset[int] = frozenset()
    quarantined: int = 0
    freed: Mapping[int, datetime] | None = None


def allocate_service_id(pool: ServicePool) -> int:
    """Choose the number unused for longest: the lowest never used, if there is one. Raises :class:`NoVlanFree`.

    Ranges may be millions long, so that never all of one is made.
    """
    freed = {number: at for number, at in (pool.freed or {}).items() if number in pool.given}
    unused = next((number for number in pool.given if number not in pool.held and number not in freed), None)
    if unused is not None:
        return unused
    free = freed.keys() - pool.held
    if not free:
        raise NoVlanFree(_no_service_free_message(pool))
    return min(free, key=lambda number: (freed[number], number))


def _no_service_free_message(pool: ServicePool) -> str:
    first, last = pool.given[0], pool.given[-1]
    kept = f", {pool.quarantined} of them in quarantine" if pool.quarantined else ""
    return (
        f"no service number is free on transport {pool.transport}: it gives {first}-{last}, all {len(pool.given)} in "
        f"use{kept}; end a cluster, or give the transport more numbers"
    )
