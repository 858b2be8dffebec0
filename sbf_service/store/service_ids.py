"""Service IDs of transports: their allocation and claims.

On some transports, each network has its own service, identified by an S-tag, a VNI or a VPLS ID. The network claims
this service ID.
"""

from sqlalchemy import delete, func, insert, select

from sbf_service.domain.allocation import ServicePool, allocate_service_id
from sbf_service.store.columns import equals_any
from sbf_service.store.tables import Base, ClusterRow, FreedServiceRow, ServiceClaimRow
from sbf_service.store.unit_of_work import Unit, record_audit
from virtcloud.model.cluster import ENDED_STATES
from virtcloud.model.transport import Transport
from virtcloud.model.values import Name

_INSERT_CLAIM = insert(Base.metadata.tables[ServiceClaimRow.__tablename__])


def choose_service_id(unit: Unit, transport: Transport | None) -> int | None:
    """Choose the service ID of a new network. Return None if all networks share one service.

    Raise NoVlanFree if no service ID is free.
    """
    if transport is None or not transport.services:
        return None
    return allocate_service_id(_read_service_pool(unit, transport))


def claim_service_id(unit: Unit, transport: Name | None, service: int, cluster_id: str) -> None:
    """Claim a service ID of a transport for a cluster."""
    unit.connection.execute(_INSERT_CLAIM, {"transport": transport, "number": service, "cluster_id": cluster_id})


def release_service_id(unit: Unit, row: ClusterRow) -> None:
    """Release the service ID of a cluster; idempotent."""
    for claim in unit.session.scalars(select(ServiceClaimRow).where(ServiceClaimRow.cluster_id == row.id)).all():
        freed = FreedServiceRow(transport=claim.transport, number=claim.number, freed_at=unit.now)
        unit.session.merge(freed)
        record_audit(unit, "number_freed", why=f"service {claim.number} of {claim.transport}", cluster_id=row.id)
    unit.session.execute(delete(ServiceClaimRow).where(ServiceClaimRow.cluster_id == row.id))


def count_service_ids(unit: Unit, transport: Transport) -> tuple[int, int, int]:
    """Return the numbers of claimed, quarantined and free service IDs of a transport."""
    pool = _read_service_pool(unit, transport)
    return len(pool.claimed) - pool.quarantined, pool.quarantined, len(pool.ids) - len(pool.claimed)


def _read_service_pool(unit: Unit, transport: Transport) -> ServicePool:
    of_transport = ServiceClaimRow.transport == transport.name
    claims = select(ServiceClaimRow.number).where(of_transport)
    quarantined = (
        select(func.count())
        .select_from(ServiceClaimRow)
        .join(ClusterRow)
        .where(equals_any(ClusterRow.state, ENDED_STATES))
    )
    freed = select(FreedServiceRow.number, FreedServiceRow.freed_at).where(FreedServiceRow.transport == transport.name)
    return ServicePool(
        transport=transport.name,
        ids=transport.services,
        claimed=frozenset(unit.connection.scalars(claims)),
        quarantined=unit.connection.scalar(quarantined.where(of_transport)) or 0,
        freed={row.number: row.freed_at for row in unit.connection.execute(freed)},
    )
