"""Lists of clusters that have those that have ended too: after years most have, so a list is a page of it."""

from collections.abc import Sequence
from dataclasses import dataclass

from sqlalchemy import ColumnElement, select, tuple_

from sbf_service.store.session import Unit
from sbf_service.store.tables import ClusterRow
from virtcloud.model.errors import NotFound

_ORDER = ClusterRow.created_at, ClusterRow.key, ClusterRow.turn, ClusterRow.attempt


@dataclass(frozen=True, slots=True)
class Page:
    """The newest ``limit`` clusters; with ``before``, the id of one, of those that are older than that one."""

    limit: int
    before: str | None = None


def page_of(unit: Unit, page: Page, *conditions: ColumnElement[bool]) -> Sequence[ClusterRow]:
    """Find a page of clusters, oldest first. Raises NotFound."""
    rows = select(ClusterRow).where(*conditions, *_older(unit, page.before))
    return unit.session.scalars(rows.order_by(*(one.desc() for one in _ORDER)).limit(page.limit)).all()[::-1]


def _older(unit: Unit, before: str | None) -> list[ColumnElement[bool]]:
    if before is None:
        return []
    row = unit.session.get(ClusterRow, before)
    if row is None:
        raise NotFound(f"before: no cluster has the id {before}")
    return [tuple_(*_ORDER) < (row.created_at, row.key, row.turn, row.attempt)]
