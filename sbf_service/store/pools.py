"""Sites and their pools: what is given, claimed, kept back and free."""

from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import datetime
from functools import lru_cache

from sqlalchemy import Text, bindparam, cast, func, select, true

from sbf_service.domain.allocation import ALWAYS_RESERVED, SitePool
from sbf_service.store.claims import NEVER_USED, replace_offered_vlans
from sbf_service.store.columns import NAME_TYPE
from sbf_service.store.quarantine import read_quarantine
from sbf_service.store.revisions import increment_revisions
from sbf_service.store.tables import ClaimRow, ClusterRow, FreeVlanRow, SiteRow
from sbf_service.store.unit_of_work import Unit, read_topology, record_audit
from sbf_service.store.vlan_ownership import make_other_use_views, read_foreign_vlans
from virtcloud.model.cluster import ENDED_STATES
from virtcloud.model.element import Device, kind_of
from virtcloud.model.errors import BadInput, Conflict
from virtcloud.model.topology import Site
from virtcloud.model.values import VlanId
from virtcloud.model.views import Pool, SiteView
from virtcloud.model.vlans import VlanSet

ReservedVlans = Callable[[Device], VlanSet]
"""Says which numbers a device keeps for itself; its driver knows."""

NO_VLANS = VlanSet()
_SITES = bindparam("sites", type_=NAME_TYPE, expanding=True)
_JOINED = func.aggregate_strings(cast(ClaimRow.vlan, Text), ",")
"""A site's numbers in one text: a claim reads thousands, and a row of its own for each would cost most of its time."""
_GIVEN = select(SiteRow.name, SiteRow.pool).where(SiteRow.name.in_(_SITES))
_HELD = select(ClaimRow.site, _JOINED).where(ClaimRow.site.in_(_SITES)).group_by(ClaimRow.site)
_KEPT_BACK = _HELD.where(
    ClaimRow.cluster_id.in_(
        select(ClusterRow.id).where(ClusterRow.state.in_(ENDED_STATES), ClusterRow.quarantined == true())
    )
)
_FREED = select(FreeVlanRow.site, FreeVlanRow.vlan, FreeVlanRow.since).where(
    FreeVlanRow.site.in_(_SITES), FreeVlanRow.since > NEVER_USED
)


def read_site_pools(unit: Unit, sites: Sequence[Site], reserved: ReservedVlans) -> list[SitePool]:
    """Give the pools of these sites, in their order."""
    names = {"sites": [site.name for site in sites]}
    given = {name: pool for name, pool in unit.connection.execute(_GIVEN, names)}  # noqa: C416 - a result has keys(), which dict() would ask
    held = _parse_vlans(unit.connection.execute(_HELD, names))
    kept_back = _parse_vlans(unit.connection.execute(_KEPT_BACK, names))
    freed = _group_by_site(unit.connection.execute(_FREED, names))
    foreign = read_foreign_vlans(unit, names["sites"])
    return [
        SitePool(
            site=site.name,
            given=given[site.name],
            claimed=held.get(site.name, NO_VLANS) - kept_back.get(site.name, NO_VLANS),
            quarantined=kept_back.get(site.name, NO_VLANS),
            excluded=find_excluded_vlans(site, reserved),
            foreign=foreign.get(site.name, NO_VLANS),
            freed=freed.get(site.name, {}),
        )
        for site in sites
    ]


def put_pool(unit: Unit, name: str, pool: Pool, reserved: ReservedVlans) -> None:
    """Say which numbers a site gives; may be repeated.

    Raises NotFound, BadInput for numbers that the site's devices keep for themselves, Conflict for numbers in use
    that would vanish. The site's devices are read again: numbers that are now managed may be carried there.
    """
    site = read_topology(unit).site(name)
    _check_not_reserved(site, pool, reserved)
    _check_not_in_use(unit, name, pool)
    row = unit.session.get_one(SiteRow, name)
    if row.pool == pool.vlans:
        return
    record_audit(unit, "pool_put", why=f"{name}: {row.pool or 'none'} became {pool.vlans or 'none'}")
    replace_offered_vlans(unit, name, row.pool, pool.vlans)
    row.pool = pool.vlans
    increment_revisions(unit, [device.name for device in site.devices])


def make_site_view(unit: Unit, site: Site, reserved: ReservedVlans) -> SiteView:
    """Show a site with the state of its pool."""
    (pool,) = read_site_pools(unit, [site], reserved)
    return SiteView(
        name=site.name,
        hosts=tuple(host.name for host in site.hosts),
        pool=pool.given,
        claimed=pool.claimed,
        quarantined=pool.quarantined,
        free=pool.free,
        quarantine=read_quarantine(unit, site.name) if pool.quarantined else (),
        other_use=make_other_use_views(unit, site.name, pool.given) if pool.foreign else (),
    )


def read_managed_vlans(unit: Unit, site: str) -> VlanSet:
    """Give the numbers that may be touched at a site: those of its pool, and those still claimed."""
    claimed = unit.session.scalars(select(ClaimRow.vlan).where(ClaimRow.site == site))
    return unit.session.get_one(SiteRow, site).pool | claimed


def read_cluster_keys(unit: Unit, site: str) -> dict[VlanId, str]:
    """Say which cluster holds each claimed number of a site."""
    rows = select(ClaimRow.vlan, ClusterRow.key).join(ClusterRow, ClusterRow.id == ClaimRow.cluster_id)
    return {VlanId(vlan): key for vlan, key in unit.session.execute(rows.where(ClaimRow.site == site))}


def find_clusters_of_vlans(unit: Unit, site: str, about: Mapping[int, str]) -> dict[str, str]:
    """Return what is about each VLAN ID of a site as what is about the cluster that holds it, by the cluster's id."""
    rows = select(ClaimRow.vlan, ClaimRow.cluster_id).where(ClaimRow.site == site, ClaimRow.vlan.in_(sorted(about)))
    return {cluster_id: about[vlan] for vlan, cluster_id in unit.session.execute(rows)} if about else {}


def find_excluded_vlans(site: Site, reserved: ReservedVlans) -> VlanSet:
    """Give the numbers that no cluster may have at a site, whatever its pool says."""
    return _join_reserved(frozenset(reserved(device) for device in site.devices))


@lru_cache(maxsize=64)
def _join_reserved(sets: frozenset[VlanSet]) -> VlanSet:
    """Join what the devices of a site keep; many sites have the same kinds."""
    return ALWAYS_RESERVED | frozenset().union(*sets)


def _parse_vlans(rows: Iterable[tuple[str, str]]) -> dict[str, VlanSet]:
    return {site: VlanSet(map(int, joined.split(","))) for site, joined in rows}


def _group_by_site(rows: Iterable[tuple[str, int, datetime]]) -> Mapping[str, Mapping[VlanId, datetime]]:
    found: dict[str, dict[VlanId, datetime]] = defaultdict(dict)
    for site, vlan, moment in rows:
        found[site][VlanId(vlan)] = moment
    return found


def _check_not_reserved(site: Site, pool: Pool, reserved: ReservedVlans) -> None:
    if pool.vlans & ALWAYS_RESERVED:
        raise BadInput(f"pool of {site.name}: VLAN 1 is every switch's default and cannot be given to clusters")
    for device in site.devices:
        kept = pool.vlans & reserved(device)
        if kept:
            raise BadInput(
                f"pool of {site.name}: VLAN {kept} is reserved by {kind_of(device)} {device.name} ({device.platform}): "
                f"leave it out"
            )


def _check_not_in_use(unit: Unit, site: str, pool: Pool) -> None:
    lost = {vlan: key for vlan, key in read_cluster_keys(unit, site).items() if vlan not in pool.vlans}
    if lost:
        users = ", ".join(f"{vlan} by {key}" for vlan, key in sorted(lost.items()))
        raise Conflict(f"pool of {site}: numbers still in use would vanish: {users}; keep them until these have ended")
