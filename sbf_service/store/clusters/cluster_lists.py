"""Lists of clusters: filters, pages in the order of creation, and the newest clusters."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from pydantic import TypeAdapter
from sqlalchemy import ColumnElement, Select, false, literal_column, or_, select, tuple_

from sbf_service.domain.page_cursors import CursorFormat, Moment, Number, Word
from sbf_service.store.clusters.cluster_keys import find_running_cluster
from sbf_service.store.clusters.cluster_queries import (
    has_placement_at,
    has_placement_on,
    is_unsettled_at,
    is_unsettled_on,
)
from sbf_service.store.clusters.clusters import make_cluster_views
from sbf_service.store.networks.networks import read_other_addresses
from sbf_service.store.pages import Page, PageOrder, PagePart, read_page
from sbf_service.store.tables.cluster_tables import ClusterRow
from sbf_service.store.unit_of_work import Unit
from virtcloud.model.cluster import ENDED_STATES, ClusterState
from virtcloud.model.errors import NotFound
from virtcloud.model.values import Name
from virtcloud.model.views import ClusterView

_COLUMNS: Final = (ClusterRow.created_at, ClusterRow.key, ClusterRow.turn, ClusterRow.attempt)
_KEY: Final = TypeAdapter(tuple[Moment, Word, Number, Number])
OLDEST_FIRST: Final = PageOrder(CursorFormat("clusters, oldest first", _KEY), _COLUMNS)
NEWEST_FIRST: Final = PageOrder(CursorFormat("clusters, newest first", _KEY), _COLUMNS, newest_first=True)
NOT_ENDED_BY_CREATION: Final = (ClusterRow.state + literal_column("''")).in_(
    [literal_column(f"'{state}'") for state in sorted(frozenset(ClusterState) - ENDED_STATES)]
)
"""The condition that a cluster has not ended, for queries in the order of creation.

A partial index contains exactly these clusters in the order of creation. With ``NOT_ENDED``, SQLite would use an index
of states, and sort all selected clusters for each page.
"""


@dataclass(frozen=True, slots=True)
class ClusterFilter:
    """Selects clusters for a list; ended clusters only if ``ended`` is true or ``state`` is in ``ENDED_STATES``.

    ``sites`` and ``element`` contain limits of the caller's rights. ``site``, ``on`` (an element) and ``network`` (the
    key or name of one of its clusters) are the caller's filters.
    """

    owner: str | None = None
    ended: bool = False
    state: ClusterState | None = None
    site: Name | None = None
    on: Name | None = None
    network: str | None = None
    sites: frozenset[Name] | None = None
    element: str | None = None

    @property
    def includes_ended(self) -> bool:
        """Whether the list may contain ended clusters."""
        return self.ended or self.state in ENDED_STATES

    def select(self, unit: Unit) -> "Select[ClusterRow]":
        """Return the statement that reads the clusters."""
        return select(ClusterRow).where(*self.conditions(unit))

    def conditions(self, unit: Unit) -> list[ColumnElement[bool]]:
        """Return the SQL conditions."""
        at, on = (has_placement_at, has_placement_on) if self.includes_ended else (is_unsettled_at, is_unsettled_on)
        found: list[ColumnElement[bool]] = [] if self.includes_ended else [NOT_ENDED_BY_CREATION]
        found += [] if self.state is None else [ClusterRow.state == self.state]
        found += [] if self.owner is None else [ClusterRow.owner == self.owner]
        found += [] if self.sites is None else [at(self.sites)]
        found += [] if self.element is None else [on(self.element)]
        found += [] if self.site is None else [at([self.site])]
        found += [] if self.on is None else [on(self.on)]
        return found + ([] if self.network is None else [_is_of_network(unit, self.network)])


def _is_of_network(unit: Unit, name_or_key: str) -> ColumnElement[bool]:
    row = find_running_cluster(unit, name_or_key)
    if row is None:
        return false()
    network = row.network or row.id
    return or_(ClusterRow.id == network, ClusterRow.network == network)


def read_cluster_page(
    unit: Unit, selected: ClusterFilter, part: PagePart, *, newest_first: bool = False
) -> Page[ClusterView]:
    """Return a page of the selected clusters, ordered by creation. Raise BadInput for an invalid cursor."""
    order = NEWEST_FIRST if newest_first else OLDEST_FIRST
    make_views = make_cluster_views if selected.network is None else _make_network_views
    return read_page(unit, selected.select(unit), order, part).convert(lambda rows: make_views(unit, rows))


def _make_network_views(unit: Unit, rows: Sequence[ClusterRow]) -> list[ClusterView]:
    """Return the views of one network's clusters.

    The view of the cluster that created the network has ``other_addresses``.
    """
    return [
        view if row.network else view.model_copy(update={"other_addresses": read_other_addresses(unit, row, view.spec)})
        for row, view in zip(rows, make_cluster_views(unit, rows), strict=True)
    ]


def list_newest(unit: Unit, selected: ClusterFilter, limit: int, before: str | None = None) -> list[ClusterView]:
    """Return the newest of the selected clusters, at most ``limit``, ordered from the oldest to the newest.

    ``before`` is the ID of a cluster: return only older clusters. Raise NotFound for an unknown ID.
    """
    rows = selected.select(unit).where(*_is_older(unit, before))
    newest = unit.session.scalars(rows.order_by(*(column.desc() for column in _COLUMNS)).limit(limit)).all()
    return make_cluster_views(unit, newest[::-1])


def _is_older(unit: Unit, before: str | None) -> list[ColumnElement[bool]]:
    if before is None:
        return []
    row = unit.session.get(ClusterRow, before)
    if row is None:
        raise NotFound(f"before: no cluster has the id {before}")
    return [tuple_(*_COLUMNS) < (row.created_at, row.key, row.turn, row.attempt)]
