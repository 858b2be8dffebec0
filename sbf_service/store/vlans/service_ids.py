"""Service IDs of transports: their allocation and claims.

On some transports, each network claims its own service ID: an S-tag, a VNI or a VPLS ID. An allocation prefers the
lowest ID that was never used, from the number in ``UnusedServiceRow`` on, and otherwise the free ID with the earliest
release. Each creation locks the transport, so two creations cannot choose the same ID. The primary key of the claims
prevents this, too.
"""

from collections.abc import Iterator

from sqlalchemy import bindparam, delete, exists, func, insert, select, union_all, update

from sbf_service.domain.allocation import ServicePool, allocate_service_id
from sbf_service.store.tables.cluster_tables import ClusterRow
from sbf_service.store.tables.columns import NAME_TYPE, equals_any
from sbf_service.store.tables.tables import Base
from sbf_service.store.tables.vlan_tables import FreedServiceRow, ServiceClaimRow, UnusedServiceRow
from sbf_service.store.unit_of_work import Unit, record_audit
from virtcloud.model.cluster import ENDED_STATES
from virtcloud.model.transport import Transport

STEP = 100
_CLAIMS = Base.metadata.tables[ServiceClaimRow.__tablename__]
_FREED = Base.metadata.tables[FreedServiceRow.__tablename__]
_MARKS = Base.metadata.tables[UnusedServiceRow.__tablename__]
_OF = bindparam("of", type_=NAME_TYPE)
_INSERT_CLAIM = insert(_CLAIMS)
_DELETE_FREED = delete(_FREED).where(_FREED.c.transport == _OF, _FREED.c.number == bindparam("used"))
_READ_MARK = select(_MARKS.c.first, _MARKS.c.unused).where(_MARKS.c.transport == _OF)
_MOVE_MARK = update(_MARKS).where(_MARKS.c.transport == _OF).values(first=bindparam("start"), unused=bindparam("next"))
_INSERT_MARK = insert(_MARKS)
_USED = union_all(
    select(_CLAIMS.c.number).where(_CLAIMS.c.transport == _OF, _CLAIMS.c.number >= bindparam("start")),
    select(_FREED.c.number).where(_FREED.c.transport == _OF, _FREED.c.number >= bindparam("start")),
)
_READ_USED = _USED.order_by("number").limit(STEP)
"""The lowest used IDs from ``start`` on, about ``STEP`` rows of indexes that are sorted by ID."""
_IS_CLAIMED = exists().where(_CLAIMS.c.transport == _FREED.c.transport, _CLAIMS.c.number == _FREED.c.number)
_READ_OLDEST = (
    select(_FREED.c.number)
    .where(_FREED.c.transport == _OF, _FREED.c.number.between(bindparam("start"), bindparam("last")), ~_IS_CLAIMED)
    .order_by(_FREED.c.freed_at, _FREED.c.number)
    .limit(1)
)
"""Selects the free ID with the earliest release.

Replicas up to version 0.2 claim an ID without deleting its ``FreedServiceRow``, therefore ``~_IS_CLAIMED``.
"""


def choose_service_id(unit: Unit, transport: Transport | None) -> int | None:
    """Choose the service ID of a new network by the rule of :func:`.choose_longest_unused`.

    Return None without a transport, or if its networks have no service IDs of their own. Raise NoVlanFree if no service
    ID is free.
    """
    if transport is None or not transport.services:
        return None
    chosen = _find_unused(unit, transport)
    if chosen is None:
        first, last = transport.services[0], transport.services[-1]
        parameters = {"of": transport.name, "start": first, "last": last}
        chosen = unit.connection.execute(_READ_OLDEST, parameters).scalar()
    return allocate_service_id(_read_service_pool(unit, transport)) if chosen is None else chosen


def _find_unused(unit: Unit, transport: Transport) -> int | None:
    first, last = transport.services[0], transport.services[-1]
    mark = unit.connection.execute(_READ_MARK, {"of": transport.name}).one_or_none()
    unused = mark.unused if mark is not None and mark.first == first else first
    for used in _read_used(unit, transport, unused):
        if used > unused:
            break
        unused = used + 1
    return unused if unused <= last else None


def _read_used(unit: Unit, transport: Transport, start: int) -> Iterator[int]:
    while True:
        parameters = {"of": transport.name, "start": start}
        found = unit.connection.execute(_READ_USED, parameters).scalars().all()
        yield from found
        if len(found) < STEP:
            return
        start = found[-1] + 1


def claim_service_id(unit: Unit, transport: Transport, service: int, cluster_id: str) -> None:
    """Claim an ID that :func:`choose_service_id` chose in this transaction, and update ``UnusedServiceRow``.

    ``UnusedServiceRow`` gets the number after the last ID if a formerly used ID was chosen: all IDs were used.
    """
    unit.connection.execute(_INSERT_CLAIM, {"transport": transport.name, "number": service, "cluster_id": cluster_id})
    was_used = unit.connection.execute(_DELETE_FREED, {"of": transport.name, "used": service}).rowcount > 0
    first, unused = transport.services[0], transport.services[-1] + 1 if was_used else service + 1
    moved = unit.connection.execute(_MOVE_MARK, {"of": transport.name, "start": first, "next": unused})
    if not moved.rowcount:
        unit.connection.execute(_INSERT_MARK, {"transport": transport.name, "first": first, "unused": unused})


def release_service_id(unit: Unit, row: ClusterRow) -> None:
    """Release the service ID of a cluster; idempotent."""
    for claim in unit.session.scalars(select(ServiceClaimRow).where(ServiceClaimRow.cluster_id == row.id)).all():
        freed = FreedServiceRow(transport=claim.transport, number=claim.number, freed_at=unit.now)
        unit.session.merge(freed)
        record_audit(unit, "number_freed", why=f"service {claim.number} of {claim.transport}", cluster_id=row.id)
    unit.session.execute(delete(ServiceClaimRow).where(ServiceClaimRow.cluster_id == row.id))


def count_service_ids(unit: Unit, transport: Transport) -> tuple[int, int, int]:
    """Return the numbers of claimed, quarantined and free service IDs of a transport.

    The ID of an ended cluster counts only as quarantined.
    """
    of_transport = ServiceClaimRow.transport == transport.name
    claimed = unit.connection.scalar(select(func.count()).select_from(ServiceClaimRow).where(of_transport)) or 0
    quarantined = _count_quarantined(unit, transport)
    return claimed - quarantined, quarantined, len(transport.services) - claimed


def _count_quarantined(unit: Unit, transport: Transport) -> int:
    of_ended = select(func.count()).select_from(ServiceClaimRow).join(ClusterRow)
    of_ended = of_ended.where(equals_any(ClusterRow.state, ENDED_STATES), ServiceClaimRow.transport == transport.name)
    return unit.connection.scalar(of_ended) or 0


def _read_service_pool(unit: Unit, transport: Transport) -> ServicePool:
    of_transport = ServiceClaimRow.transport == transport.name
    freed = select(FreedServiceRow.number, FreedServiceRow.freed_at).where(FreedServiceRow.transport == transport.name)
    return ServicePool(
        transport=transport.name,
        ids=transport.services,
        claimed=frozenset(unit.connection.scalars(select(ServiceClaimRow.number).where(of_transport))),
        quarantined=_count_quarantined(unit, transport),
        freed={row.number: row.freed_at for row in unit.connection.execute(freed)},
    )
