"""Switches as the converger looks at them."""

from sqlalchemy import select

from sbf_service.converge.choose import Candidate
from sbf_service.store.session import Unit
from sbf_service.store.tables import ElementRow
from virtcloud.model.topology import ElementKind
from virtcloud.model.values import Name


def candidates(unit: Unit, holder: str) -> list[Candidate]:
    """Give every switch of the topology, in name order."""
    switches = select(ElementRow).where(ElementRow.present, ElementRow.kind == ElementKind.SWITCH)
    return [_candidate(unit, row, holder) for row in unit.session.scalars(switches.order_by(ElementRow.name))]


def _candidate(unit: Unit, row: ElementRow, holder: str) -> Candidate:
    leased = row.lease_until is not None and row.lease_until >= unit.now and row.lease_holder != holder
    return Candidate(Name(row.name), row.wanted_revision, row.confirmed_revision, row.checked_at, leased)
