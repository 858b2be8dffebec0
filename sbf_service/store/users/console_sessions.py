"""Sessions of browsers with the web console: creation, authentication and end.

Each call of :func:`authenticate_session` reads the row of the token with which the user logged in. Therefore, the
session ends when the token expires or is revoked.
"""

from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime, timedelta

from sqlalchemy import delete

from sbf_service.domain.authentication import Principal
from sbf_service.domain.console_sessions import SECRET_BYTES, SessionSecret
from sbf_service.store.tables.user_tables import ConsoleSessionRow, TokenRow
from sbf_service.store.unit_of_work import Unit
from sbf_service.store.users.tokens import make_principal
from virtcloud.model.access import Role
from virtcloud.model.errors import Unauthenticated
from virtcloud.model.values import Name

RandomBytes = Callable[[int], bytes]
CONSOLE_SESSIONS_TOPIC = "console-sessions"
NO_SESSION = "your session with the console has ended: log in again"


@dataclass(frozen=True, slots=True)
class ConsoleSession:
    """A valid session: its user, and its end."""

    principal: Principal
    expires_at: datetime


def create_session(
    unit: Unit, principal: Principal, lifetime: timedelta, random_bytes: RandomBytes
) -> tuple[SessionSecret, ConsoleSession]:
    """Create a session that ends after ``lifetime``.

    Return the session's secret, which SBF does not store, and the session. Also delete expired sessions.
    """
    unit.session.execute(delete(ConsoleSessionRow).where(ConsoleSessionRow.expires_at <= unit.now))
    secret, expires_at = SessionSecret.make(random_bytes(SECRET_BYTES)), unit.now + lifetime
    row = ConsoleSessionRow(
        digest=secret.digest,
        token_id=principal.token,
        name=principal.name,
        role=principal.role,
        sites=",".join(sorted(principal.sites)),
        expires_at=expires_at,
    )
    unit.session.add(row)
    unit.session.flush()
    return secret, ConsoleSession(principal, expires_at)


def authenticate_session(unit: Unit, secret: SessionSecret) -> ConsoleSession:
    """Return the session with this secret. Raise Unauthenticated if the session has ended or its token is invalid."""
    row = unit.session.get(ConsoleSessionRow, secret.digest)
    if row is None or row.expires_at <= unit.now:
        raise Unauthenticated(NO_SESSION)
    return ConsoleSession(_make_principal(unit, row), row.expires_at)


def end_session(unit: Unit, secret: SessionSecret) -> None:
    """End a session; idempotent."""
    unit.session.execute(delete(ConsoleSessionRow).where(ConsoleSessionRow.digest == secret.digest))
    unit.changed.add(CONSOLE_SESSIONS_TOPIC)


def _make_principal(unit: Unit, row: ConsoleSessionRow) -> Principal:
    if row.token_id is not None:
        return make_principal(unit, unit.session.get_one(TokenRow, row.token_id))
    sites = frozenset(Name(site) for site in row.sites.split(",") if site)
    return Principal(row.name, Role(row.role), sites)
