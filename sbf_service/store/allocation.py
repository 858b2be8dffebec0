"""Choosing a number by an index: it takes as long after years, when every number has been used, as on the first day.

What is chosen is what :func:`sbf_service.pools.take` chooses, of pools that are not read for it; a test holds the two
against each other.

The numbers that a cluster would get now: a VLAN at each site, and a service of its own where it needs one.

A VLAN number that was asked for: free at all the sites, or refused with the reason.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime

from sqlalchemy import bindparam, func, select
from sqlalchemy.orm import aliased

from sbf_service.domain.allocation import SitePool, allocate_vlan_ids
from sbf_service.domain.paths import choose_transport, find_sites
from sbf_service.store.claims import NEVER_USED, choose_service_id
from sbf_service.store.columns import NAME_TYPE
from sbf_service.store.pools import ReservedVlans, find_excluded_vlans, read_site_pools
from sbf_service.store.tables import ClaimRow, ClusterRow, FreeVlanRow
from sbf_service.store.unit_of_work import Unit
from sbf_service.store.vlan_ownership import describe_other_use
from virtcloud.model.cluster import ClusterSpec
from virtcloud.model.errors import NoVlanFree, VlanNotInPool
from virtcloud.model.topology import Site, Topology
from virtcloud.model.transport import Transport
from virtcloud.model.values import Name, VlanId

MAX_INDEXED_SITES = 16
"""Each site's order is read apart; over more sites all numbers are read instead."""
WINDOW_SIZES = (16, 128, 1024, 4096)
"""So many of a site's numbers are read at first, and then, where the one to take is not among them: all, at last."""

FreeSince = tuple[datetime, int]
"""Since when a number is free, and the number: the order in which they are taken."""

_WINDOW = (
    select(FreeVlanRow.since, FreeVlanRow.vlan)
    .where(FreeVlanRow.site == bindparam("site", type_=NAME_TYPE))
    .order_by(FreeVlanRow.since, FreeVlanRow.vlan)
    .limit(bindparam("size"))
    .subquery()
)
"""Cut off before anything is asked about the numbers, so that no database asks about all of them first."""
_THERE = aliased(FreeVlanRow)
_AS_OLD = (
    select(func.count())
    .where(
        _THERE.site.in_(bindparam("sites", type_=NAME_TYPE, expanding=True)),
        _THERE.vlan == _WINDOW.c.vlan,
        _THERE.since <= _WINDOW.c.since,
    )
    .scalar_subquery()
)
_READ_WINDOW = select(_WINDOW.c.since, _WINDOW.c.vlan, _AS_OLD).order_by(_WINDOW.c.since, _WINDOW.c.vlan)
"""A site's numbers, each with the count of sites where it is free for as long, or longer."""


@dataclass(frozen=True, slots=True)
class FreeWindow:
    """What was read of a site: the first number to take, if there is one, and the last one read, if there are more."""

    first: FreeSince | None
    last: FreeSince | None


def allocate_longest_unused(
    unit: Unit, sites: Sequence[Site], reserved: ReservedVlans, *, translates: bool
) -> dict[Name, VlanId]:
    """Choose the number that a new cluster gets at each of these sites: as ``take``. Raises NoVlanFree."""
    if len(sites) <= MAX_INDEXED_SITES:
        if (same := _find_longest_unused(unit, sites, reserved)) is not None:
            return {site.name: same for site in sites}
        own = {site.name: _find_longest_unused(unit, [site], reserved) for site in sites if translates}
        found = {name: vlan for name, vlan in own.items() if vlan is not None}
        if len(found) == len(sites):
            return found
    return allocate_vlan_ids(read_site_pools(unit, sites, reserved), translates=translates)


def _find_longest_unused(unit: Unit, sites: Sequence[Site], reserved: ReservedVlans) -> VlanId | None:
    """Give the number whose last use at any of the sites is longest ago, of those that are free at all of them."""
    excluded: frozenset[int] = frozenset().union(*(find_excluded_vlans(site, reserved) for site in sites))
    for size in WINDOW_SIZES:
        windows = []
        for site in sites:
            windows.append(_read_window(unit, site.name, sites, excluded, size))
            if (found := windows[-1].first) and found[0] == NEVER_USED:
                return VlanId(found[1])
        first = min((one.first for one in windows if one.first), default=None)
        if all(one.last is None or (first is not None and first <= one.last) for one in windows):
            return None if first is None else VlanId(first[1])
    return None


def _read_window(unit: Unit, name: Name, sites: Sequence[Site], excluded: frozenset[int], size: int) -> FreeWindow:
    asked = {"site": name, "sites": [site.name for site in sites], "size": size}
    rows = unit.connection.execute(_READ_WINDOW, asked).all()
    free = ((since, vlan) for since, vlan, count in rows if count == len(sites) and vlan not in excluded)
    return FreeWindow(next(free, None), (rows[-1][0], rows[-1][1]) if len(rows) == size else None)


CanSeeOwner = Callable[[str], bool]
"""Says whether who asks may know of clusters of this owner."""


def can_see_none(_owner: str) -> bool:
    """Let nobody know of others' clusters."""
    return False


def allocate_requested(
    unit: Unit, sites: Sequence[Site], vlan: VlanId, reserved: ReservedVlans, sees: CanSeeOwner
) -> dict[Name, VlanId]:
    """Give each site this number. Raises VlanNotInPool, NoVlanFree."""
    pools = read_site_pools(unit, sites, reserved)
    for pool in pools:
        if vlan not in pool.given:
            raise VlanNotInPool(f"VLAN {vlan} is not in the pool of site {pool.site} ({pool.given or 'none'})")
    for pool in pools:
        if vlan not in pool.free:
            raise NoVlanFree(
                f"VLAN {vlan} is not free at site {pool.site}: {describe_unavailable(unit, pool, vlan, sees)}"
            )
    return {site.name: vlan for site in sites}


def describe_unavailable(unit: Unit, pool: SitePool, vlan: VlanId, sees: CanSeeOwner) -> str:
    """Say why a number is not free at a site."""
    if vlan not in pool.given:
        return f"it is not in the pool of that site ({pool.given or 'none'})"
    holder = select(ClusterRow).join(ClaimRow, ClaimRow.cluster_id == ClusterRow.id)
    foreign = describe_other_use(unit, pool.site, vlan)
    row = unit.session.scalars(holder.where(ClaimRow.site == pool.site, ClaimRow.vlan == vlan)).first()
    if row is None:
        return foreign or "a device there keeps it for itself"
    whose = f"cluster {row.key} of {row.owner}" if sees(row.owner) else "another cluster"
    return f"it is in quarantine after {whose}" if row.quarantined else f"{whose} has it"


@dataclass(frozen=True, slots=True)
class NetworkIds:
    """What joins a cluster's sites, its VLAN number at each of them, and its own service number."""

    transport: Transport | None
    vlans: Mapping[Name, VlanId]
    service: int | None

    @property
    def on(self) -> Name | None:
        """The transport's name."""
        return None if self.transport is None else self.transport.name


def allocate_network_ids(
    unit: Unit, topology: Topology, spec: ClusterSpec, reserved: ReservedVlans, sees: CanSeeOwner = can_see_none
) -> NetworkIds:
    """Choose them; nothing is written. Raises NoSuchHost, Conflict, NoVlanFree, VlanNotInPool.

    ``sees`` says who holds a number that was asked for is known to whom.
    """
    transport = choose_transport(topology, spec.all_hosts, spec.sites)
    sites = find_sites(topology, spec.all_hosts, spec.sites)
    translates = transport is not None and transport.translates
    if spec.vlan is None:
        vlans = allocate_longest_unused(unit, sites, reserved, translates=translates)
    else:
        vlans = allocate_requested(unit, sites, spec.vlan, reserved, sees)
    return NetworkIds(transport, vlans, choose_service_id(unit, transport))
