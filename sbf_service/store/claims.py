"""Numbers that a site gives and nobody has: each is a row, with the moment since when it is free.

A number that a device of the site uses for somebody else has no row (``foreign_vlans.py``).

Service numbers of transports, of which a cluster has one for itself where its transport gives them.
"""

from collections.abc import Mapping
from datetime import UTC, datetime

from sqlalchemy import bindparam, delete, exists, func, insert, select, text

from sbf_service.domain.allocation import ServicePool, allocate_service_id
from sbf_service.store.columns import UtcDateTime
from sbf_service.store.tables import (
    Base,
    ClaimRow,
    ClusterRow,
    ForeignVlanRow,
    FreedServiceRow,
    FreeVlanRow,
    ServiceClaimRow,
    SiteRow,
)
from sbf_service.store.unit_of_work import Unit, record_audit
from virtcloud.model.cluster import ENDED_STATES
from virtcloud.model.transport import Transport
from virtcloud.model.values import Name, VlanId
from virtcloud.model.vlans import VlanSet

NEVER_USED = datetime(1970, 1, 1, tzinfo=UTC)
"""Since when a number is free that nobody ever had: it is the oldest."""

_FREE = Base.metadata.tables[FreeVlanRow.__tablename__]
_CLAIMS = Base.metadata.tables[ClaimRow.__tablename__]
_FOREIGN = Base.metadata.tables[ForeignVlanRow.__tablename__]
_TAKEN = delete(_FREE).where(_FREE.c.site == bindparam("of"), _FREE.c.vlan == bindparam("number"))
_ADDED = insert(_FREE)
_CLAIMED = insert(_CLAIMS)
_THEIRS = _CLAIMS.c.cluster_id == bindparam("cluster")
_GIVEN_BACK = insert(_FREE).from_select(
    ["site", "vlan", "since"],
    select(_CLAIMS.c.site, _CLAIMS.c.vlan, bindparam("now", type_=UtcDateTime())).where(
        _THEIRS, ~exists().where(_FOREIGN.c.site == _CLAIMS.c.site, _FOREIGN.c.vlan == _CLAIMS.c.vlan)
    ),
)
_UNCLAIMED = delete(_CLAIMS).where(_THEIRS)


def claim_vlans(unit: Unit, cluster_id: str, numbers: Mapping[Name, VlanId]) -> None:
    """Give a cluster its numbers."""
    claims = [{"site": site, "vlan": vlan, "cluster_id": cluster_id} for site, vlan in numbers.items()]
    unit.connection.execute(_TAKEN, [{"of": site, "number": vlan} for site, vlan in numbers.items()])
    unit.connection.execute(_CLAIMED, claims)


def release_vlans(unit: Unit, cluster_id: str) -> None:
    """Take a cluster's numbers back: they are free from now on."""
    unit.connection.execute(_GIVEN_BACK, {"now": unit.now, "cluster": cluster_id})
    unit.connection.execute(_UNCLAIMED, {"cluster": cluster_id})


def replace_offered_vlans(unit: Unit, site: str, before: VlanSet, after: VlanSet) -> None:
    """Let a site give other numbers; those that are in use are in both. One that comes again counts as never used."""
    foreign = VlanSet(unit.connection.execute(select(_FOREIGN.c.vlan).where(_FOREIGN.c.site == site)).scalars())
    gone = [{"of": site, "number": vlan} for vlan in before - after]
    come = [{"site": site, "vlan": vlan, "since": NEVER_USED} for vlan in after - before - foreign]
    if gone:
        unit.connection.execute(_TAKEN, gone)
    if come:
        unit.connection.execute(_ADDED, come)
        if unit.connection.dialect.name == "postgresql":  # it would sort the thousands that came, for each claim
            unit.connection.execute(text("ANALYZE free_numbers"))


def exclude_vlans(unit: Unit, site: str, vlans: VlanSet) -> None:
    """Make numbers of a site unavailable because they are in other use there; idempotent."""
    if vlans:
        unit.connection.execute(_TAKEN, [{"of": site, "number": vlan} for vlan in vlans])


def include_vlans(unit: Unit, site: str, vlans: VlanSet) -> None:
    """Make numbers free from now on that were in other use at a site: those in its pool that nobody has; idempotent."""
    taken = (
        unit.connection.execute(select(table.c.vlan).where(table.c.site == site, table.c.vlan.in_(sorted(vlans))))
        for table in (_CLAIMS, _FREE)
    )
    back = (unit.session.get_one(SiteRow, site).pool & vlans).difference(*(rows.scalars() for rows in taken))
    if back:
        rows = [{"site": site, "vlan": vlan, "since": unit.now} for vlan in sorted(back)]
        unit.connection.execute(_ADDED, rows)


_CLAIM_SERVICE = insert(Base.metadata.tables[ServiceClaimRow.__tablename__])


def choose_service_id(unit: Unit, transport: Transport | None) -> int | None:
    """Say which number a new cluster gets; nothing where all share one, or none is needed. Raises NoVlanFree."""
    if transport is None or not transport.services:
        return None
    return allocate_service_id(_read_service_pool(unit, transport))


def claim_service_id(unit: Unit, transport: Name | None, number: int | None, cluster_id: str) -> None:
    """Write that a cluster has this number."""
    if number is not None:
        claim = {"transport": transport, "number": number, "cluster_id": cluster_id}
        unit.connection.execute(_CLAIM_SERVICE, claim)


def release_service_id(unit: Unit, row: ClusterRow) -> None:
    """Give a cluster's number back, together with its VLANs."""
    for claim in unit.session.scalars(select(ServiceClaimRow).where(ServiceClaimRow.cluster_id == row.id)).all():
        freed = FreedServiceRow(transport=claim.transport, number=claim.number, freed_at=unit.now)
        unit.session.merge(freed)
        record_audit(unit, "number_freed", why=f"service {claim.number} of {claim.transport}", cluster_id=row.id)
    unit.session.execute(delete(ServiceClaimRow).where(ServiceClaimRow.cluster_id == row.id))


def count_service_ids(unit: Unit, transport: Transport) -> tuple[int, int, int]:
    """Count the numbers of a transport that clusters have, that are kept back, and that are free."""
    pool = _read_service_pool(unit, transport)
    return len(pool.held) - pool.quarantined, pool.quarantined, len(pool.given) - len(pool.held)


def _read_service_pool(unit: Unit, transport: Transport) -> ServicePool:
    claims = select(ServiceClaimRow.number).where(ServiceClaimRow.transport == transport.name)
    kept = select(func.count()).select_from(ServiceClaimRow).join(ClusterRow).where(ClusterRow.state.in_(ENDED_STATES))
    freed = select(FreedServiceRow.number, FreedServiceRow.freed_at).where(FreedServiceRow.transport == transport.name)
    return ServicePool(
        transport=transport.name,
        given=transport.services,
        held=frozenset(unit.connection.scalars(claims)),
        quarantined=unit.connection.scalar(kept.where(ServiceClaimRow.transport == transport.name)) or 0,
        freed={row.number: row.freed_at for row in unit.connection.execute(freed)},
    )
