"""A VLAN number that was asked for: free at all the sites, or refused with the reason."""

from collections.abc import Callable, Sequence

from sqlalchemy import select

from sbf_service.pools import SitePool
from sbf_service.store.foreign_vlans import foreign_reason
from sbf_service.store.pools import Reserved, site_pools
from sbf_service.store.session import Unit
from sbf_service.store.tables import ClaimRow, ClusterRow
from virtcloud.model.errors import NoVlanFree, VlanNotInPool
from virtcloud.model.topology import Site
from virtcloud.model.values import Name, VlanId

Sees = Callable[[str], bool]
"""Says whether who asks may know of clusters of this owner."""


def sees_none(_owner: str) -> bool:
    """Let nobody know of others' clusters."""
    return False


def take_asked(unit: Unit, sites: Sequence[Site], vlan: VlanId, reserved: Reserved, sees: Sees) -> dict[Name, VlanId]:
    """Give each site this number. Raises VlanNotInPool, NoVlanFree."""
    pools = site_pools(unit, sites, reserved)
    for pool in pools:
        if vlan not in pool.given:
            raise VlanNotInPool(f"VLAN {vlan} is not in the pool of site {pool.site} ({pool.given or 'none'})")
    for pool in pools:
        if vlan not in pool.free:
            raise NoVlanFree(f"VLAN {vlan} is not free at site {pool.site}: {reason(unit, pool, vlan, sees)}")
    return {site.name: vlan for site in sites}


def reason(unit: Unit, pool: SitePool, vlan: VlanId, sees: Sees) -> str:
    """Say why a number is not free at a site."""
    if vlan not in pool.given:
        return f"it is not in the pool of that site ({pool.given or 'none'})"
    holder = select(ClusterRow).join(ClaimRow, ClaimRow.cluster_id == ClusterRow.id)
    foreign = foreign_reason(unit, pool.site, vlan)
    row = unit.session.scalars(holder.where(ClaimRow.site == pool.site, ClaimRow.vlan == vlan)).first()
    if row is None:
        return foreign or "a device there keeps it for itself"
    whose = f"cluster {row.key} of {row.owner}" if sees(row.owner) else "another cluster"
    return f"it is in quarantine after {whose}" if row.quarantined else f"{whose} has it"
