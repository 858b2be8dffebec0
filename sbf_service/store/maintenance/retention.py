"""Retention: SBF archives old audit rows and ended clusters in files, and deletes the archived rows.

SBF writes one file for each batch of rows, and then deletes the rows in one transaction. After a kill, the next run
writes the file of the batch again, so no row is lost. A cluster is deleted with all rows that refer to it, but not
while it has claims or its members (the clusters that joined its network) are in the database.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

from sqlalchemy import ColumnElement, Table, delete, exists, func, make_url, or_, select, true
from sqlalchemy.orm import aliased

from sbf_service.domain.retention import MIN_DAYS, RetentionLimits
from sbf_service.log import get_log
from sbf_service.store.connections.replica_lock import hold_task
from sbf_service.store.maintenance.archive_files import write_archive
from sbf_service.store.store import Store
from sbf_service.store.tables import gateway_tables, guest_tables, ssh_tables, vlan_tables, vpn_tables  # noqa: F401 - their tables refer to clusters
from sbf_service.store.tables.cluster_tables import ClusterRow
from sbf_service.store.tables.service_tables import AuditRow
from sbf_service.store.tables.tables import Base
from sbf_service.store.tables.vlan_tables import ClaimRow, ServiceClaimRow
from sbf_service.store.unit_of_work import Unit, record_audit
from virtcloud.model.cluster import ENDED_STATES

BATCH = 1000
TASK = "retention"
DEFAULT_FOLDER = Path("/var/lib/virtcloud/archive")
_AUDIT = Base.metadata.tables[AuditRow.__tablename__]
_CLUSTERS = Base.metadata.tables[ClusterRow.__tablename__]
_PROFILES = Base.metadata.tables["vpn_profiles"]
_MEMBER = aliased(ClusterRow)
# The beginning of an ended cluster's removal. SBF does not store the end of the removal.
_ENDED_AT = func.coalesce(ClusterRow.leaving_since, ClusterRow.created_at)
_IS_ENDED = (
    ClusterRow.state.in_(ENDED_STATES),
    ClusterRow.quarantined.is_(False),
    ~exists().where(ClaimRow.cluster_id == ClusterRow.id),
    ~exists().where(ServiceClaimRow.cluster_id == ClusterRow.id),
    ~exists().where(_MEMBER.network == ClusterRow.id),
)

log = get_log(__name__)


@dataclass(frozen=True, slots=True)
class PruneReport:
    """The numbers of audit rows and of ended clusters that a run deleted, or would delete."""

    audit: int
    clusters: int


def find_archive_folder(limits: RetentionLimits, database: str) -> Path:
    """Return the folder for archive files.

    The default is the folder ``archive`` beside the file of an SQLite database, or a fixed folder for other databases.
    """
    if limits.folder is not None:
        return Path(limits.folder)
    address = make_url(database)
    if address.get_backend_name() == "sqlite" and address.database not in {None, "", ":memory:"}:
        return Path(str(address.database)).parent / "archive"
    return DEFAULT_FOLDER


def count_old_rows(unit: Unit, limits: RetentionLimits) -> PruneReport:
    """Return the numbers of audit rows and clusters that a run would delete now.

    A cluster counts even if its members are in the database: a run deletes the members first.
    """
    audit = select(func.count()).select_from(AuditRow).where(_is_old_audit(unit, limits))
    ended = _is_ended_before(unit, limits)
    clusters = select(func.count()).select_from(ClusterRow).where(*_IS_ENDED[:4], ended)
    return PruneReport(unit.session.scalar(audit) or 0, unit.session.scalar(clusters) or 0)


def prune(store: Store, limits: RetentionLimits, folder: Path, batch: int = BATCH) -> PruneReport | None:
    """Write old rows to files in ``folder``, and delete them from the database.

    Return the numbers of deleted rows, or None if another replica is pruning now. Raise BadInput if a file cannot be
    written: its rows then stay in the database, and the audit log records the rows of earlier files.
    """
    with hold_task(store.engine, TASK) as is_held:
        if not is_held:
            return None
        run = _Run(store, limits, folder, batch)
        try:
            while run.archive_clusters():
                pass
            while run.archive_audit():
                pass
        finally:
            run.log_end()
    return run.report


class _Run:
    """A run that archives rows in batches.

    The transaction that deletes the rows of a batch also inserts an audit row. The run ignores all audit rows that were
    inserted after its start: otherwise, the run's own audit rows would exceed the limits, and the run would not end.
    """

    def __init__(self, store: Store, limits: RetentionLimits, folder: Path, batch: int) -> None:
        self._store = store
        self._limits = limits
        self._folder = folder
        self._batch = batch
        self.report = PruneReport(0, 0)
        with store.read() as unit:
            self._newest = unit.session.scalar(select(func.max(AuditRow.id))) or 0

    def archive_clusters(self) -> bool:
        """Archive one batch of ended clusters. Return False if there are none."""
        with self._store.read() as unit:
            old = select(ClusterRow.id).where(*_IS_ENDED, _is_ended_before(unit, self._limits))
            ids = unit.session.scalars(old.order_by(_ENDED_AT, ClusterRow.id).limit(self._batch)).all()
            documents = _read_clusters(unit, ids) if ids else []
        if not ids:
            return False
        write_archive(self._folder, f"clusters-{ids[0]}.jsonl", documents)
        with self._store.change() as unit:
            for table, condition in reversed(_list_parts(ids)):
                unit.connection.execute(delete(table).where(condition))
            self._record(unit, clusters=len(ids))
        self.report = replace(self.report, clusters=self.report.clusters + len(ids))
        return True

    def archive_audit(self) -> bool:
        """Archive one batch of audit rows. Return False if there are none."""
        with self._store.read() as unit:
            is_old = _is_old_audit(unit, self._limits, self._newest)
            rows = _read(unit, select(_AUDIT).where(is_old).order_by(_AUDIT.c.id).limit(self._batch))
        if not rows:
            return False
        ids = [row["id"] for row in rows]
        write_archive(self._folder, f"audit-{ids[0]:012}.jsonl", rows)
        # Delete by exact IDs, not by a range: a transaction that is still open can add a lower ID that is not archived.
        with self._store.change_row() as unit:
            unit.connection.execute(delete(_AUDIT).where(_AUDIT.c.id.in_(ids)))
            self._record(unit, audit=len(rows))
        self.report = replace(self.report, audit=self.report.audit + len(rows))
        return True

    def _record(self, unit: Unit, audit: int = 0, clusters: int = 0) -> None:
        why = f"{audit} audit rows and {clusters} ended clusters written to {self._folder}"
        record_audit(unit, "rows_archived", why=why)

    def log_end(self) -> None:
        """Log the numbers of archived rows, unless both are 0."""
        if self.report != PruneReport(0, 0):
            log.info("rows_archived", audit=self.report.audit, clusters=self.report.clusters, folder=self._folder)


def _is_old_audit(unit: Unit, limits: RetentionLimits, newest: int | None = None) -> ColumnElement[bool]:
    """Return the condition that an audit row is too old, or has too many newer rows.

    Ignore the rows with higher IDs than ``newest``. The newest other row never meets the condition: if the table were
    empty, SQLite would assign the same IDs again. The condition compares IDs instead of times: each row with a lower ID
    than all young rows is too old.
    """
    counted = true() if newest is None else AuditRow.id <= newest
    ids = select(AuditRow.id).where(counted).order_by(AuditRow.id.desc())
    beyond = ids.offset(limits.audit_rows).limit(1).scalar_subquery()
    young = select(func.min(AuditRow.id)).where(AuditRow.at >= unit.now - limits.audit_age, counted).scalar_subquery()
    return or_(AuditRow.id <= beyond, AuditRow.id < func.coalesce(young, ids.limit(1).scalar_subquery()))


def _is_ended_before(unit: Unit, limits: RetentionLimits) -> ColumnElement[bool]:
    """Return the condition that an ended cluster is too old, or that too many ended clusters are younger.

    A cluster's age is the time since the beginning of the cluster's removal. Clusters younger than ``MIN_DAYS`` days
    never meet the condition.
    """
    ended = select(_ENDED_AT).where(ClusterRow.state.in_(ENDED_STATES)).order_by(_ENDED_AT.desc())
    beyond = unit.session.scalar(ended.offset(limits.clusters).limit(1))
    aged: datetime = unit.now - limits.cluster_age
    latest = unit.now - timedelta(days=MIN_DAYS)
    return min(latest, max(aged, beyond) if beyond else aged) >= _ENDED_AT


def _list_parts(ids: Sequence[str]) -> list[tuple[Table, ColumnElement[bool]]]:
    """Return pairs of table and condition, which together select all rows of these clusters.

    Rows refer only to rows of earlier tables in the list.
    """
    parts: list[tuple[Table, ColumnElement[bool]]] = [(_CLUSTERS, _CLUSTERS.c.id.in_(ids))]
    for table in Base.metadata.sorted_tables:
        columns = [key.parent for key in table.foreign_keys if key.column is _CLUSTERS.c.id and table is not _CLUSTERS]
        if columns:
            parts.append((table, or_(*(column.in_(ids) for column in columns))))
    profiles = select(_PROFILES.c.id).where(or_(_PROFILES.c.cluster_id.in_(ids), _PROFILES.c.network_id.in_(ids)))
    for table in Base.metadata.sorted_tables:
        columns = [key.parent for key in table.foreign_keys if key.column is _PROFILES.c.id]
        parts += [(table, column.in_(profiles)) for column in columns]
    return parts


def _read_clusters(unit: Unit, ids: Sequence[str]) -> list[Mapping[str, object]]:
    return [
        {"table": table.name, **row}
        for table, condition in _list_parts(ids)
        for row in _read(unit, select(table).where(condition))
    ]


def _read(unit: Unit, statement: Any) -> list[dict[str, Any]]:  # noqa: ANN401 - a statement of SQLAlchemy
    return [dict(row) for row in unit.connection.execute(statement).mappings()]
