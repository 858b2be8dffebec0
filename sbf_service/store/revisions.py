"""The two revisions of each element (DESIGN.md §3): wanted grows with its cause, confirmed follows a read-back."""

from collections.abc import Iterable
from dataclasses import dataclass

from sqlalchemy import bindparam, select, update
from sqlalchemy.orm.util import identity_key

from sbf_service.store.session import Unit
from sbf_service.store.tables import ElementRow
from sbf_service.store.troubles import told
from virtcloud.model.errors import NotFound

_GROW = (
    update(ElementRow)
    .where(ElementRow.name.in_(bindparam("names", expanding=True)))
    .values(wanted_revision=ElementRow.wanted_revision + 1)
    .returning(ElementRow.name, ElementRow.wanted_revision, ElementRow.trouble, ElementRow.troubles)
)


@dataclass(frozen=True, slots=True)
class Grown:
    """An element's new wanted revision, and what it last said is wrong, for a cluster that is new there."""

    revision: int
    trouble: str | None


def element_row(unit: Unit, name: str) -> ElementRow:
    """Find an element of the topology; raises :class:`NotFound`."""
    row = unit.session.get(ElementRow, name)
    if row is None or not (row.present or row.leaving):
        raise NotFound(f"element {name} is not known; known are: {', '.join(_known(unit)) or 'none'}")
    return row


def grow(unit: Unit, names: Iterable[str]) -> dict[str, Grown]:
    """Let the wanted revision of each element grow by one; gives the new ones, in name order."""
    unit.session.flush()
    grown = sorted(unit.connection.execute(_GROW, {"names": sorted(set(names))}).all())
    for name, *_ in grown:
        unit.changed.add(f"element:{name}")
        _forget(unit, name)
    return {name: Grown(revision, told(trouble, troubles)) for name, revision, trouble, troubles in grown}


def _forget(unit: Unit, name: str) -> None:
    """Let the session read an element again that it has loaded: its row was changed without it."""
    loaded = unit.session.identity_map.get(identity_key(ElementRow, name))
    if loaded is not None:
        unit.session.expire(loaded)


def _known(unit: Unit) -> Iterable[str]:
    return unit.session.scalars(select(ElementRow.name).where(ElementRow.present).order_by(ElementRow.name))
