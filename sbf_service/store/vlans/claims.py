"""Changes of the claims of VLAN IDs, and of the free VLAN IDs of each site.

At each site, a VLAN ID is never both claimed and free. A VLAN ID is *in other use* if a device of the site uses the
VLAN ID for something other than clusters (``ForeignVlanRow``).
"""

from collections import defaultdict
from collections.abc import Collection, Mapping
from datetime import UTC, datetime

from sqlalchemy import bindparam, delete, exists, insert, select, text

from sbf_service.store.tables.columns import NAME_TYPE, UtcDateTime
from sbf_service.store.tables.tables import Base, SiteRow
from sbf_service.store.tables.vlan_tables import ClaimRow, ForeignVlanRow, FreeVlanRow
from sbf_service.store.unit_of_work import Unit
from virtcloud.model.values import Name, VlanId
from virtcloud.model.vlans import VlanSet

NEVER_USED = datetime(1970, 1, 1, tzinfo=UTC)
"""The stored time of release of a VLAN ID that no cluster has used."""
_READ_FOREIGN = select(ForeignVlanRow.site, ForeignVlanRow.vlan).where(
    ForeignVlanRow.site.in_(bindparam("sites", type_=NAME_TYPE, expanding=True))
)

_FREE = Base.metadata.tables[FreeVlanRow.__tablename__]
_CLAIMS = Base.metadata.tables[ClaimRow.__tablename__]
_FOREIGN = Base.metadata.tables[ForeignVlanRow.__tablename__]
_OF_CLUSTER = _CLAIMS.c.cluster_id == bindparam("cluster")
_DELETE_FREE = delete(_FREE).where(_FREE.c.site == bindparam("of"), _FREE.c.vlan == bindparam("vlan_id"))
_DELETE_FREE_AT_SITES = delete(_FREE).where(
    _FREE.c.site.in_(bindparam("sites", expanding=True)), _FREE.c.vlan == bindparam("vlan_id")
)
_INSERT_FREE = insert(_FREE)
_INSERT_CLAIMS = insert(_CLAIMS)
_DELETE_CLAIMS = delete(_CLAIMS).where(_OF_CLUSTER)
_FREE_CLAIMS = insert(_FREE).from_select(
    ["site", "vlan", "since"],
    select(_CLAIMS.c.site, _CLAIMS.c.vlan, bindparam("now", type_=UtcDateTime())).where(
        _OF_CLUSTER, ~exists().where(_FOREIGN.c.site == _CLAIMS.c.site, _FOREIGN.c.vlan == _CLAIMS.c.vlan)
    ),
)


def claim_vlans(unit: Unit, cluster_id: str, vlans: Mapping[Name, VlanId], transport: Name | None) -> None:
    """Claim the VLAN IDs in ``vlans`` for a cluster whose network has this transport."""
    unit.require_sites(vlans)
    if transport is not None:
        unit.require_names([f"transport {transport}"])
    of_cluster = {"cluster_id": cluster_id, "transport": transport}
    claims = [{"site": site, "vlan": vlan, **of_cluster} for site, vlan in vlans.items()]
    for vlan in sorted(set(vlans.values())):  # usually one VLAN ID at all sites
        sites = [site for site, found in vlans.items() if found == vlan]
        unit.connection.execute(_DELETE_FREE_AT_SITES, {"sites": sites, "vlan_id": vlan})
    unit.connection.execute(_INSERT_CLAIMS, claims)


def release_vlans(unit: Unit, cluster_id: str) -> None:
    """Release all claims of a cluster. The claimed VLAN IDs become free, except VLAN IDs in other use."""
    unit.connection.execute(_FREE_CLAIMS, {"now": unit.now, "cluster": cluster_id})
    unit.connection.execute(_DELETE_CLAIMS, {"cluster": cluster_id})


def replace_offered_vlans(unit: Unit, site: str, before: VlanSet, after: VlanSet) -> None:
    """Change a site's free VLAN IDs when the site's pool changes from ``before`` to ``after``.

    Both sets must contain all claimed VLAN IDs. An added VLAN ID counts as never used, and does not become free while
    it is in other use.
    """
    foreign = read_foreign_vlans(unit, [site]).get(site, VlanSet())
    removed = [{"of": site, "vlan_id": vlan} for vlan in before - after]
    added = [{"site": site, "vlan": vlan, "since": NEVER_USED} for vlan in after - before - foreign]
    if removed:
        unit.connection.execute(_DELETE_FREE, removed)
    if added:
        unit.connection.execute(_INSERT_FREE, added)
        if unit.connection.dialect.name == "postgresql":
            # with outdated statistics, PostgreSQL would sort all rows for each claim
            unit.connection.execute(text("ANALYZE free_numbers"))


def exclude_vlans(unit: Unit, site: str, vlans: VlanSet) -> None:
    """Remove VLAN IDs in other use from a site's free VLAN IDs. Idempotent."""
    if vlans:
        unit.connection.execute(_DELETE_FREE, [{"of": site, "vlan_id": vlan} for vlan in vlans])


def include_vlans(unit: Unit, site: str, vlans: VlanSet) -> None:
    """Add VLAN IDs to a site's free VLAN IDs after their other use has ended. Idempotent.

    Skip claimed VLAN IDs and VLAN IDs outside the pool.
    """
    known = (
        unit.connection.execute(select(table.c.vlan).where(table.c.site == site, table.c.vlan.in_(sorted(vlans))))
        for table in (_CLAIMS, _FREE)
    )
    added = (unit.session.get_one(SiteRow, site).pool & vlans).difference(*(rows.scalars() for rows in known))
    if added:
        unit.connection.execute(
            _INSERT_FREE, [{"site": site, "vlan": vlan, "since": unit.now} for vlan in sorted(added)]
        )


def read_foreign_vlans(unit: Unit, sites: Collection[str]) -> dict[str, VlanSet]:
    """Return the VLAN IDs in other use, by site. Sites without such VLAN IDs are missing."""
    found: dict[str, set[int]] = defaultdict(set)
    for site, vlan in unit.session.execute(_READ_FOREIGN, {"sites": list(sites)}):
        found[site].add(vlan)
    return {site: VlanSet(vlans) for site, vlans in found.items()}
