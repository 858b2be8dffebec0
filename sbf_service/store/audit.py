"""The audit log: who changed what, when, why, on which element, with the difference (DESIGN.md §7.8)."""

from sqlalchemy import insert

from sbf_service.store.session import Unit
from sbf_service.store.tables import AuditRow, Base
from virtcloud.model.document import Document

CHANGED = "audit"
"""Who waits for new rows waits for this."""

_ROW = insert(Base.metadata.tables[AuditRow.__tablename__]).inline()


def record(  # noqa: PLR0913 - these are the questions that an audit row answers
    unit: Unit,
    what: str,
    *,
    why: str | None = None,
    element: str | None = None,
    cluster_id: str | None = None,
    difference: Document | None = None,
) -> None:
    """Write one row, in the transaction that makes the change."""
    shown = None if difference is None else difference.model_dump_json(exclude_defaults=True)
    said = {"who": unit.who, "what": what, "why": why, "element": element, "cluster_id": cluster_id}
    unit.connection.execute(_ROW, {"at": unit.now, "difference": shown, **said})
    unit.changed.add(CHANGED)
