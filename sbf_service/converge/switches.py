"""Switches as the converger looks at them."""

from sqlalchemy import select

from sbf_service.converge.choose import Candidate
from sbf_service.store.reading import read_topology
from sbf_service.store.session import Unit
from sbf_service.store.tables import ElementRow
from virtcloud.model.topology import Element, ElementKind, Switch
from virtcloud.model.values import Name


def candidates(unit: Unit, holder: str) -> list[Candidate]:
    """Give every switch of the topology, in name order."""
    switches = select(ElementRow).where(ElementRow.present, ElementRow.kind == ElementKind.SWITCH)
    rows = unit.session.scalars(switches.order_by(ElementRow.name)).all()
    known = read_topology(unit).elements if rows else {}
    return [_candidate(unit, row, holder, known[Name(row.name)]) for row in rows]


def _candidate(unit: Unit, row: ElementRow, holder: str, element: Element) -> Candidate:
    leased = row.lease_until is not None and row.lease_until >= unit.now and row.lease_holder != holder
    platform = element.platform if isinstance(element, Switch) else ""
    return Candidate(Name(row.name), row.wanted_revision, row.confirmed_revision, row.checked_at, leased, platform)
