"""The pools of sites, and the state of their VLAN IDs."""

from bisect import bisect_right
from collections.abc import Mapping, Sequence
from typing import Final

from sqlalchemy import bindparam, select

from sbf_service.domain.allocation import ALWAYS_RESERVED, SitePool
from sbf_service.domain.network_conflicts import join_remedies
from sbf_service.domain.page_cursors import KEY_OF_NAME, CursorFormat
from sbf_service.store.elements.revisions import increment_revisions
from sbf_service.store.elements.unchecked_elements import check_devices_checked
from sbf_service.store.pages import Page, PagePart, make_page
from sbf_service.store.tables.cluster_tables import ClusterRow
from sbf_service.store.tables.tables import SiteRow
from sbf_service.store.tables.vlan_tables import ClaimRow
from sbf_service.store.topology.current_topology import read_topology
from sbf_service.store.unit_of_work import Unit, record_audit
from sbf_service.store.vlans.allocation import ReservedVlans, read_site_pools
from sbf_service.store.vlans.claims import replace_offered_vlans
from sbf_service.store.vlans.quarantine import read_quarantine
from sbf_service.store.vlans.vlan_ownership import make_other_use_views
from virtcloud.model.element import kind_of
from virtcloud.model.element_views import Pool, SiteView
from virtcloud.model.errors import BadInput, Conflict
from virtcloud.model.topology_document import Site
from virtcloud.model.values import VlanId
from virtcloud.model.vlans import VlanSet

CURSORS: Final = CursorFormat("sites", KEY_OF_NAME)
_READ_POOL = select(SiteRow.pool).where(SiteRow.name == bindparam("at"))
_READ_CLAIMED = select(ClaimRow.vlan).where(ClaimRow.site == bindparam("at"))
_READ_CLUSTERS = (
    select(ClaimRow.vlan, ClusterRow.key, ClusterRow.quarantined)
    .join(ClusterRow, ClusterRow.id == ClaimRow.cluster_id)
    .where(ClaimRow.site == bindparam("at"))
    .order_by(ClaimRow.vlan)
)


def read_pool(unit: Unit, name: str) -> Pool:
    """Return a site's pool. Raise NotFound for an unknown site."""
    site = read_topology(unit).site(name)
    return Pool(vlans=unit.connection.execute(_READ_POOL, {"at": site.name}).scalar_one())


def put_pool(unit: Unit, name: str, pool: Pool, reserved: ReservedVlans) -> None:
    """Replace a site's pool. Idempotent.

    Increment the wanted revisions of the site's devices, so that workers read them again: a device may already carry
    added VLAN IDs. Raise NotFound for an unknown site. Raise BadInput for VLAN IDs that the site's devices reserve.
    Raise Conflict if the new pool lacks claimed VLAN IDs, or lacks VLAN IDs that an unchecked device may carry
    (:mod:`sbf_service.store.elements.unchecked_elements`).
    """
    site = read_topology(unit).site(name)
    _check_not_reserved(site, pool, reserved)
    _check_not_in_use(unit, name, pool)
    row = unit.session.get_one(SiteRow, name)
    if row.pool == pool.vlans:
        return
    check_devices_checked(unit, name, row.pool - pool.vlans)
    record_audit(unit, "pool_put", why=f"{name}: {row.pool or 'none'} became {pool.vlans or 'none'}")
    replace_offered_vlans(unit, name, row.pool, pool.vlans)
    row.pool = pool.vlans
    increment_revisions(unit, [device.name for device in site.devices])


def read_site_page(unit: Unit, part: PagePart, reserved: ReservedVlans) -> Page[SiteView]:
    """Return a page of the sites, in the order of their names. Raise BadInput for an invalid cursor."""
    sites = read_topology(unit).sites_in_order
    after = None if part.cursor is None else CURSORS.parse(part.cursor)[0]
    start = 0 if after is None else bisect_right(sites, str(after), key=lambda site: site.name)
    page = make_page(sites[start : start + part.limit + 1], part.limit, lambda last: CURSORS.format([last.name]))
    return page.convert(lambda found: make_site_views(unit, found, reserved))


def make_site_views(unit: Unit, sites: Sequence[Site], reserved: ReservedVlans) -> list[SiteView]:
    """Return the views of sites with the states of their pools."""
    pools = read_site_pools(unit, sites, reserved)
    return [_make_site_view(unit, site, pool) for site, pool in zip(sites, pools, strict=True)]


def make_site_view(unit: Unit, site: Site, reserved: ReservedVlans) -> SiteView:
    """Return the view of a site with the state of its pool."""
    return make_site_views(unit, [site], reserved)[0]


def _make_site_view(unit: Unit, site: Site, pool: SitePool) -> SiteView:
    return SiteView(
        name=site.name,
        hosts=tuple(host.name for host in site.hosts),
        pool=pool.vlans,
        claimed=pool.claimed,
        quarantined=pool.quarantined,
        free=pool.free,
        quarantine=read_quarantine(unit, site.name) if pool.quarantined else (),
        other_use=make_other_use_views(unit, site.name, pool.vlans) if pool.foreign else (),
    )


def read_managed_vlans(unit: Unit, site: str) -> VlanSet:
    """Return the VLAN IDs that SBF may change at a site: the pool and all claimed VLAN IDs."""
    unit.session.flush()
    claimed = unit.connection.execute(_READ_CLAIMED, {"at": site}).scalars()
    return unit.connection.execute(_READ_POOL, {"at": site}).scalar_one() | claimed


def read_cluster_keys(unit: Unit, site: str) -> dict[VlanId, str]:
    """Return the cluster's key for each claimed VLAN ID of a site."""
    return {VlanId(row.vlan): row.key for row in unit.connection.execute(_READ_CLUSTERS, {"at": site})}


def convert_vlans_to_clusters(unit: Unit, site: str, texts: Mapping[int, str]) -> dict[str, str]:
    """Return ``texts`` by ID of the cluster that has claimed the VLAN ID at the site, instead of by VLAN ID.

    Omit VLAN IDs that no cluster has claimed.
    """
    if not texts:
        return {}
    rows = select(ClaimRow.vlan, ClaimRow.cluster_id).where(ClaimRow.site == site, ClaimRow.vlan.in_(sorted(texts)))
    return {cluster_id: texts[vlan] for vlan, cluster_id in unit.session.execute(rows)}


def _check_not_reserved(site: Site, pool: Pool, reserved: ReservedVlans) -> None:
    if pool.vlans & ALWAYS_RESERVED:
        raise BadInput(
            f"pool of {site.name}: VLAN 1 is the default VLAN of every switch and cannot be used by clusters"
        )
    for device in site.devices:
        conflicts = pool.vlans & reserved(device)
        if conflicts:
            raise BadInput(
                f"pool of {site.name}: {kind_of(device)} {device.name} ({device.platform}) reserves VLAN {conflicts}: "
                f"remove VLAN {conflicts} from the pool"
            )


def _check_not_in_use(unit: Unit, site: str, pool: Pool) -> None:
    found = unit.session.execute(_READ_CLUSTERS, {"at": site}).all()
    lost = [row for row in found if row.vlan not in pool.vlans]
    if lost:
        users = ", ".join(f"{row.vlan} by {row.key}{' (in quarantine)' * row.quarantined}" for row in lost)
        remedy = join_remedies("keep these VLAN IDs until the clusters have ended", [row.quarantined for row in lost])
        raise Conflict(f"pool of {site}: the new pool lacks VLAN IDs in use: {users}; {remedy}")
