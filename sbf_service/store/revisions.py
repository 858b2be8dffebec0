"""The two revisions of each element (DESIGN.md §3): wanted grows with its cause, confirmed follows a read-back."""

from collections.abc import Iterable

from sqlalchemy import select

from sbf_service.store.session import Unit
from sbf_service.store.tables import ElementRow
from virtcloud.model.errors import NotFound


def element_row(unit: Unit, name: str) -> ElementRow:
    """Find an element of the topology; raises :class:`NotFound`."""
    row = unit.session.get(ElementRow, name)
    if row is None or not row.present:
        raise NotFound(f"element {name} is not known; known are: {', '.join(_known(unit)) or 'none'}")
    return row


def grow(unit: Unit, names: Iterable[str]) -> dict[str, int]:
    """Let the wanted revision of each element grow by one; gives the new ones."""
    found = select(ElementRow).where(ElementRow.name.in_(sorted(set(names)))).order_by(ElementRow.name)
    revisions = {}
    for row in unit.session.scalars(found):
        row.wanted_revision += 1
        revisions[row.name] = row.wanted_revision
        unit.changed.add(f"element:{row.name}")
    return revisions


def _known(unit: Unit) -> Iterable[str]:
    return unit.session.scalars(select(ElementRow.name).where(ElementRow.present).order_by(ElementRow.name))
