"""Service numbers of transports, of which a cluster has one for itself where its transport gives them."""

from sqlalchemy import delete, func, insert, select

from sbf_service.services import ServicePool, take_service
from sbf_service.store.audit import record
from sbf_service.store.session import Unit
from sbf_service.store.tables import Base, ClusterRow, FreedServiceRow, ServiceClaimRow
from virtcloud.model.cluster import ENDED
from virtcloud.model.transport import Transport
from virtcloud.model.values import Name

_CLAIM = insert(Base.metadata.tables[ServiceClaimRow.__tablename__])


def free_service(unit: Unit, transport: Transport | None) -> int | None:
    """Say which number a new cluster gets; nothing where all share one, or none is needed. Raises NoVlanFree."""
    if transport is None or not transport.services:
        return None
    return take_service(_pool(unit, transport))


def claim_service(unit: Unit, transport: Name | None, number: int | None, cluster_id: str) -> None:
    """Write that a cluster has this number."""
    if number is not None:
        claim = {"transport": transport, "number": number, "cluster_id": cluster_id}
        unit.connection.execute(_CLAIM, claim)


def give_back_service(unit: Unit, row: ClusterRow) -> None:
    """Give a cluster's number back, together with its VLANs."""
    for claim in unit.session.scalars(select(ServiceClaimRow).where(ServiceClaimRow.cluster_id == row.id)).all():
        freed = FreedServiceRow(transport=claim.transport, number=claim.number, freed_at=unit.now)
        unit.session.merge(freed)
        record(unit, "number_freed", why=f"service {claim.number} of {claim.transport}", cluster_id=row.id)
    unit.session.execute(delete(ServiceClaimRow).where(ServiceClaimRow.cluster_id == row.id))


def service_figures(unit: Unit, transport: Transport) -> tuple[int, int, int]:
    """Count the numbers of a transport that clusters have, that are kept back, and that are free."""
    pool = _pool(unit, transport)
    return len(pool.held) - pool.quarantined, pool.quarantined, len(pool.given) - len(pool.held)


def _pool(unit: Unit, transport: Transport) -> ServicePool:
    claims = select(ServiceClaimRow.number).where(ServiceClaimRow.transport == transport.name)
    kept = select(func.count()).select_from(ServiceClaimRow).join(ClusterRow).where(ClusterRow.state.in_(ENDED))
    freed = select(FreedServiceRow.number, FreedServiceRow.freed_at).where(FreedServiceRow.transport == transport.name)
    return ServicePool(
        transport=transport.name,
        given=transport.services,
        held=frozenset(unit.connection.scalars(claims)),
        quarantined=unit.connection.scalar(kept.where(ServiceClaimRow.transport == transport.name)) or 0,
        freed={row.number: row.freed_at for row in unit.connection.execute(freed)},
    )
