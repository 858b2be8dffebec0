"""Sites and their pools: what is given, claimed, kept back and free."""

from collections import defaultdict
from collections.abc import Callable, Iterable

from sqlalchemy import select

from sbf_service.pools import ALWAYS_RESERVED, SitePool
from sbf_service.store.audit import record
from sbf_service.store.quarantine import quarantine_of
from sbf_service.store.reading import read_topology
from sbf_service.store.revisions import grow
from sbf_service.store.session import Unit
from sbf_service.store.tables import ClaimRow, ClusterRow, FreedRow, SiteRow
from virtcloud.model.errors import BadInput, Conflict
from virtcloud.model.topology import Site, Switch
from virtcloud.model.values import Name, VlanId
from virtcloud.model.views import Pool, SiteView
from virtcloud.model.vlans import VlanSet

Reserved = Callable[[Switch], VlanSet]
"""Says which numbers a switch keeps for itself; its driver knows."""


def site_pools(unit: Unit, sites: Iterable[Site], reserved: Reserved) -> list[SitePool]:
    """Give the pools of these sites, in their order."""
    return [_pool(unit, site, reserved) for site in sites]


def put_pool(unit: Unit, name: str, pool: Pool, reserved: Reserved) -> None:
    """Say which numbers a site gives; may be repeated.

    Raises NotFound, BadInput for numbers that the site's switches keep for themselves, Conflict for numbers in use
    that would vanish. The site's switches are read again: numbers that are now managed may be carried there.
    """
    site = read_topology(unit).site(name)
    _refuse_reserved(site, pool, reserved)
    _refuse_in_use(unit, name, pool)
    row = unit.session.get_one(SiteRow, name)
    if row.pool == pool.vlans:
        return
    record(unit, "pool_put", why=f"{name}: {row.pool or 'none'} became {pool.vlans or 'none'}")
    row.pool = pool.vlans
    grow(unit, [switch.name for switch in site.switches])


def site_view(unit: Unit, site: Site, reserved: Reserved) -> SiteView:
    """Show a site with the state of its pool."""
    pool = _pool(unit, site, reserved)
    return SiteView(
        name=site.name,
        pool=pool.given,
        claimed=pool.claimed,
        quarantined=pool.quarantined,
        free=pool.free,
        quarantine=quarantine_of(unit, site.name) if pool.quarantined else (),
    )


def managed_vlans(unit: Unit, site: str) -> VlanSet:
    """Give the numbers that may be touched at a site: those of its pool, and those still claimed."""
    claimed = unit.session.scalars(select(ClaimRow.vlan).where(ClaimRow.site == site))
    return unit.session.get_one(SiteRow, site).pool | claimed


def cluster_keys(unit: Unit, site: str) -> dict[VlanId, str]:
    """Say which cluster holds each claimed number of a site."""
    rows = select(ClaimRow.vlan, ClusterRow.key).join(ClusterRow, ClusterRow.id == ClaimRow.cluster_id)
    return {VlanId(vlan): key for vlan, key in unit.session.execute(rows.where(ClaimRow.site == site))}


def _pool(unit: Unit, site: Site, reserved: Reserved) -> SitePool:
    held = _held(unit, site.name)
    return SitePool(
        site=site.name,
        given=unit.session.get_one(SiteRow, site.name).pool,
        claimed=VlanSet(held[False]),
        quarantined=VlanSet(held[True]),
        excluded=excluded_at(site, reserved),
        freed={VlanId(row.vlan): row.freed_at for row in _freed(unit, site.name)},
    )


def _held(unit: Unit, site: Name) -> dict[bool, list[int]]:
    """Give the numbers of running clusters under False, those kept back under True."""
    held: dict[bool, list[int]] = defaultdict(list)
    rows = select(ClaimRow.vlan, ClusterRow.quarantined).join(ClusterRow, ClusterRow.id == ClaimRow.cluster_id)
    for vlan, quarantined in unit.session.execute(rows.where(ClaimRow.site == site)):
        held[quarantined].append(vlan)
    return held


def _freed(unit: Unit, site: Name) -> Iterable[FreedRow]:
    return unit.session.scalars(select(FreedRow).where(FreedRow.site == site))


def excluded_at(site: Site, reserved: Reserved) -> VlanSet:
    """Give the numbers that no cluster may have at a site, whatever its pool says."""
    return VlanSet(number for switch in site.switches for number in reserved(switch)) | ALWAYS_RESERVED


def _refuse_reserved(site: Site, pool: Pool, reserved: Reserved) -> None:
    if pool.vlans & ALWAYS_RESERVED:
        raise BadInput(f"pool of {site.name}: VLAN 1 is every switch's default and cannot be given to clusters")
    for switch in site.switches:
        kept = pool.vlans & reserved(switch)
        if kept:
            raise BadInput(
                f"pool of {site.name}: VLAN {kept} is reserved by switch {switch.name} ({switch.platform}): "
                f"leave it out"
            )


def _refuse_in_use(unit: Unit, site: str, pool: Pool) -> None:
    lost = {vlan: key for vlan, key in cluster_keys(unit, site).items() if vlan not in pool.vlans}
    if lost:
        users = ", ".join(f"{vlan} by {key}" for vlan, key in sorted(lost.items()))
        raise Conflict(f"pool of {site}: numbers still in use would vanish: {users}; keep them until these have ended")
