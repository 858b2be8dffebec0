"""Queries of the audit log; ``record_audit`` in ``unit_of_work.py`` inserts the rows."""

import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from datetime import datetime
from typing import Final

from pydantic import TypeAdapter
from sqlalchemy import ColumnElement, func, literal, select, text

from sbf_service.domain.page_cursors import MAX_PAGE, CursorFormat, LongNumber, Moment
from sbf_service.store.clusters.cluster_queries import has_placement_at
from sbf_service.store.pages import Page, PageOrder, PagePart, read_page
from sbf_service.store.store import Store
from sbf_service.store.tables.cluster_tables import ClusterRow
from sbf_service.store.tables.columns import split_ids
from sbf_service.store.tables.service_tables import AuditRow
from sbf_service.store.unit_of_work import Unit
from virtcloud.model.changes import AuditEntry, HostDifference
from virtcloud.model.edge import DeviceDifference
from virtcloud.model.errors import BadInput
from virtcloud.model.values import ClusterKey, Name, format_utc

_DIFFERENCE: TypeAdapter[DeviceDifference] = TypeAdapter(DeviceDifference)
_COLUMNS: Final = (AuditRow.at, AuditRow.id)
OLDEST_FIRST: Final = PageOrder(CursorFormat("audit, oldest first", TypeAdapter(tuple[Moment, LongNumber])), _COLUMNS)
NEWEST_FIRST: Final = PageOrder(
    CursorFormat("audit, newest first", TypeAdapter(tuple[Moment, LongNumber])), _COLUMNS, newest_first=True
)
_APPLIED: TypeAdapter[DeviceDifference | HostDifference] = TypeAdapter(DeviceDifference | HostDifference)
PAUSE_S, PATIENCE_S = 0.01, 1.0
_OPEN_CHANGES = text(
    "SELECT pid, xact_start FROM pg_stat_activity WHERE datname = current_database() AND backend_xid IS NOT NULL "
    "AND xact_start > now() - interval '1 minute'"
)


@dataclass(frozen=True, slots=True)
class AuditFilter:
    """Selects rows of the audit log by element, cluster key, request ID, actor and time.

    An attribute that is None does not limit the rows. ``since`` and ``until`` are the earliest and the latest time.
    Clusters of different owners may have had the same key ``cluster``. ``owner`` and ``sites`` limit the rows to the
    clusters of this owner, and to those with a placement at one of these sites; both have no effect without
    ``cluster``.
    """

    element: str | None = None
    cluster: str | None = None
    owner: str | None = None
    sites: frozenset[Name] | None = None
    request: str | None = None
    who: str | None = None
    since: datetime | None = None
    until: datetime | None = None

    def conditions(self) -> list[ColumnElement[bool]]:
        """Return the SQL conditions."""
        found: list[ColumnElement[bool]] = []
        found += [] if self.who is None else [AuditRow.who == self.who]
        found += [] if self.since is None else [AuditRow.at >= self.since]
        found += [] if self.until is None else [AuditRow.at <= self.until]
        if self.element is not None:
            found.append(AuditRow.element == self.element)
        if self.cluster is not None:
            found.append(AuditRow.cluster_id.in_(select(ClusterRow.id).where(*self._of_cluster())))
        if self.request is not None:
            ids = literal(",").concat(AuditRow.request_id).concat(",")
            found.append(ids.contains(f",{self.request},", autoescape=True))
        return found

    def _of_cluster(self) -> list[ColumnElement[bool]]:
        of_owner = [] if self.owner is None else [ClusterRow.owner == self.owner]
        of_sites = [] if self.sites is None else [has_placement_at(self.sites)]
        return [ClusterRow.key == self.cluster, *of_owner, *of_sites]


def read_entries(
    unit: Unit, selected: AuditFilter, after: int | None, limit: int, newest: int | None = None
) -> list[AuditEntry]:
    """Return at most ``limit`` entries, oldest first.

    If ``after`` is None, these are the newest entries, otherwise the first entries above this ID. Omit IDs above
    ``newest``.
    """
    rows = select(AuditRow, ClusterRow.key).outerjoin(ClusterRow, ClusterRow.id == AuditRow.cluster_id)
    rows = rows.where(*selected.conditions()).limit(limit)
    if newest is not None:
        rows = rows.where(AuditRow.id <= newest)
    if after is not None:
        found = unit.session.execute(rows.where(AuditRow.id > after).order_by(AuditRow.id)).all()
    else:
        found = unit.session.execute(rows.order_by(AuditRow.id.desc())).all()[::-1]
    return [_make_entry(row, key) for row, key in found]


def find_settled_id(store: Store, after: int | None = None, pause: Callable[[float], object] = time.sleep) -> int:
    """Return the ID up to which a reader can read the log without missing a row: normally the newest row's ID.

    On PostgreSQL, a row can be committed later than a row with a higher ID. A reader that continues above the higher ID
    would miss the late row. Therefore, wait until the transactions that are open now have ended: normally some
    milliseconds, at most :data:`PATIENCE_S`. Ignore transactions older than a minute, because transactions of SBF are
    shorter.

    - If a transaction is still open after the wait, and ``after`` is not None, return the last ID before the first gap
      above ``after``.
    - Otherwise, return the ID of the row that was the newest before the wait.
    """
    with store.read() as unit:
        newest = find_newest_id(unit)
    if not store.has_scopes:
        return newest
    awaited = _find_open_changes(store)
    ends = time.monotonic() + PATIENCE_S
    while awaited and time.monotonic() < ends:
        pause(PAUSE_S)
        awaited &= _find_open_changes(store)
    return newest if after is None or not awaited else _find_end_of_run(store, after, newest)


def _find_end_of_run(store: Store, after: int, newest: int) -> int:
    rows = select(AuditRow.id).where(AuditRow.id > after, AuditRow.id <= newest).order_by(AuditRow.id).limit(MAX_PAGE)
    with store.read() as unit:
        ids = unit.session.scalars(rows).all()
    return after + sum(found == expected for expected, found in enumerate(ids, after + 1))


def _find_open_changes(store: Store) -> set[tuple[int, datetime]]:
    """Return the open transactions that have written to the database.

    Each pair contains the ID of the transaction's process in PostgreSQL and the beginning of the transaction.
    """
    with store.read() as unit:
        return {(row.pid, row.xact_start) for row in unit.connection.execute(_OPEN_CHANGES)}


def read_entry_page(
    unit: Unit, selected: AuditFilter, part: PagePart, newest: int | None = None, *, newest_first: bool = False
) -> Page[AuditEntry]:
    """Return a page of the selected entries, ordered by time, with IDs up to ``newest``.

    Raise BadInput for an invalid cursor.
    """
    order = NEWEST_FIRST if newest_first else OLDEST_FIRST
    rows = select(AuditRow).where(*selected.conditions())
    page = read_page(unit, rows if newest is None else rows.where(AuditRow.id <= newest), order, part)
    keys = _read_keys(unit, {row.cluster_id for row in page.rows if row.cluster_id is not None})
    return page.convert(lambda rows: [_make_entry(row, keys.get(row.cluster_id or "")) for row in rows])


def _read_keys(unit: Unit, ids: Iterable[str]) -> dict[str, str]:
    statements = (select(ClusterRow.id, ClusterRow.key).where(ClusterRow.id.in_(part)) for part in split_ids(ids))
    return {row.id: row.key for statement in statements for row in unit.session.execute(statement)}


def check_period(selected: AuditFilter) -> None:
    """Raise BadInput for a period that ends before it begins."""
    if selected.since is not None and selected.until is not None and selected.since > selected.until:
        raise BadInput(
            f"since: expected a time that is not after 'until' ({format_utc(selected.until)}), got "
            f"{format_utc(selected.since)}: exchange the two times"
        )


def find_newest_id(unit: Unit, selected: AuditFilter | None = None) -> int:
    """Return the newest row's ID, or 0 when there is no row."""
    conditions = selected.conditions() if selected else []
    return unit.session.scalar(select(func.max(AuditRow.id)).where(*conditions)) or 0


def find_last_change(unit: Unit, element: str, after: int) -> DeviceDifference | None:
    """Return the newest difference that was applied to a device after the row ``after``, or None."""
    changes = AuditRow.element == element, AuditRow.id > after, AuditRow.difference.is_not(None)
    found = unit.session.scalar(select(AuditRow.difference).where(*changes).order_by(AuditRow.id.desc()).limit(1))
    return None if found is None else _DIFFERENCE.validate_json(found)


def _make_entry(row: AuditRow, key: str | None) -> AuditEntry:
    return AuditEntry(
        id=row.id,
        at=row.at,
        who=row.who,
        what=row.what,
        why=row.why,
        element=None if row.element is None else Name(row.element),
        cluster=None if key is None else ClusterKey(key),
        cluster_id=row.cluster_id,
        difference=None if row.difference is None else _APPLIED.validate_json(row.difference),
        request_id=row.request_id,
    )
