"""The rows of sessions with guests that wait for the agent of the guest's host."""

from datetime import timedelta

from sqlalchemy import delete, select

from sbf_service.store.clusters import require_cluster
from sbf_service.store.tables import GuestSessionRow
from sbf_service.store.unit_of_work import Unit, record_audit
from virtcloud.model.guest_sessions import GuestSession, SessionRequest
from virtcloud.model.guests import GuestView
from virtcloud.model.values import Name


def session_topic(element: str) -> str:
    """Return the change topic of the sessions that wait for an element's agent."""
    return f"sessions:{element}"


def insert_session(  # noqa: PLR0913, PLR0917 - the session
    unit: Unit, session_id: str, guest: GuestView, request: SessionRequest, address: str | None, wait: timedelta
) -> None:
    """Insert a session that waits for an agent, and record an audit row. Delete expired sessions."""
    unit.session.execute(delete(GuestSessionRow).where(GuestSessionRow.expires_at < unit.now))
    cluster = require_cluster(unit, guest.cluster)
    unit.session.add(
        GuestSessionRow(
            id=session_id,
            element=guest.host,
            network=cluster.network or cluster.id,
            guest=guest.name,
            request=request.model_dump_json(),
            address=address,
            expires_at=unit.now + wait,
        )
    )
    port = f" {request.port}" if request.port else ""
    why = f"{request.kind}{port} of guest {guest.name}"
    record_audit(unit, "guest_session", why=why, element=guest.host, cluster_id=cluster.id)
    unit.changed.add(session_topic(guest.host))


def delete_session(unit: Unit, session_id: str) -> None:
    """Delete a session; idempotent."""
    unit.session.execute(delete(GuestSessionRow).where(GuestSessionRow.id == session_id))


def list_sessions(unit: Unit, element: str, after: int) -> list[GuestSession]:
    """Return the sessions later than the number ``after`` that wait for an element's agent."""
    waiting = (
        GuestSessionRow.element == element,
        GuestSessionRow.number > after,
        GuestSessionRow.expires_at >= unit.now,
    )
    rows = unit.session.scalars(select(GuestSessionRow).where(*waiting).order_by(GuestSessionRow.number))
    return [_parse(row) for row in rows]


def _parse(row: GuestSessionRow) -> GuestSession:
    request = SessionRequest.model_validate_json(row.request)
    keys = {"number": row.number, "id": row.id, "network": row.network, "guest": Name(row.guest)}
    return GuestSession.model_validate({**request.model_dump(), **keys, "address": row.address})
