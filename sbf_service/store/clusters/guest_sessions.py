"""The rows of guest sessions that wait for the agent of the guest's host."""

from collections.abc import Mapping
from datetime import timedelta

from sqlalchemy import delete, select

from sbf_service.domain.paths import LiveCluster
from sbf_service.store.clusters.clusters import require_cluster
from sbf_service.store.tables.guest_tables import GuestSessionRow
from sbf_service.store.unit_of_work import Unit, record_audit
from virtcloud.model.guest_sessions import GuestSession, SessionKind, SessionRequest
from virtcloud.model.guests import GuestView
from virtcloud.model.message_text import count_of
from virtcloud.model.values import Name


def session_topic(element: str) -> str:
    """Return the change topic of the sessions that wait for an element's agent."""
    return f"sessions:{element}"


def insert_session(  # noqa: PLR0913, PLR0917 - the session
    unit: Unit,
    session_id: str,
    guest: GuestView,
    cluster_id: str,
    request: SessionRequest,
    address: str | None,
    wait: timedelta,
) -> None:
    """Insert a waiting session with an audit row, and delete expired sessions.

    ``cluster_id`` identifies the guest's cluster, because the key may now belong to another user's cluster. ``address``
    is the address of this replica. The session expires after ``wait``.
    """
    _delete_expired(unit)
    cluster = require_cluster(unit, guest.cluster, cluster_id)
    network = cluster.network or cluster.id
    columns = {"id": session_id, "network": network, "address": address, "expires_at": unit.now + wait}
    _add_row(unit, guest.host, guest.name, request, **columns)
    details = " ".join(str(part) for part in (request.kind, request.port, request.image) if part)
    why = f"{details} of guest {guest.name}"
    record_audit(unit, "guest_session", why=why, element=guest.host, cluster_id=cluster.id)


def insert_check(
    unit: Unit, cluster: LiveCluster, sessions: Mapping[Name, str], address: str | None, wait: timedelta
) -> None:
    """Insert a session for each host of a check of paths, with an audit row, and delete expired sessions.

    ``sessions`` maps these hosts to session IDs. ``address`` is the address of this replica. The new sessions expire
    after ``wait``.
    """
    _delete_expired(unit)
    request, network, expires_at = SessionRequest(kind=SessionKind.FRAMES), cluster.network.id, unit.now + wait
    for host, session_id in sessions.items():
        _add_row(unit, host, host, request, id=session_id, network=network, address=address, expires_at=expires_at)
    record_audit(unit, "paths_verified", why=f"between {count_of(len(sessions), 'host')}", cluster_id=cluster.id)


def _delete_expired(unit: Unit) -> None:
    unit.session.execute(delete(GuestSessionRow).where(GuestSessionRow.expires_at < unit.now))


def _add_row(unit: Unit, host: Name, guest: Name, request: SessionRequest, **columns: object) -> None:
    unit.session.add(GuestSessionRow(element=host, guest=guest, request=request.model_dump_json(), **columns))
    unit.changed.add(session_topic(host))


def delete_session(unit: Unit, session_id: str) -> None:
    """Delete a session; idempotent."""
    unit.session.execute(delete(GuestSessionRow).where(GuestSessionRow.id == session_id))


def list_sessions(unit: Unit, element: str, after: int, kinds: frozenset[SessionKind]) -> list[GuestSession]:
    """Return the sessions of ``kinds`` that wait for an element's agent, by number and above ``after``."""
    waiting = (
        GuestSessionRow.element == element,
        GuestSessionRow.number > after,
        GuestSessionRow.expires_at >= unit.now,
    )
    rows = unit.session.scalars(select(GuestSessionRow).where(*waiting).order_by(GuestSessionRow.number))
    return [session for session in map(_parse, rows) if session.kind in kinds]


def _parse(row: GuestSessionRow) -> GuestSession:
    request = SessionRequest.model_validate_json(row.request)
    keys = {"number": row.number, "id": row.id, "network": row.network, "guest": Name(row.guest)}
    return GuestSession.model_validate({**request.model_dump(), **keys, "address": row.address})
