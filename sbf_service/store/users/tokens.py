"""Tokens: creation, authentication, lists and revocation. SBF stores only the SHA-256 of a token."""

from collections.abc import Callable, Collection
from datetime import datetime, timedelta
from hmac import compare_digest
from typing import Final

from pydantic import TypeAdapter
from sqlalchemy import select

from sbf_service.domain.authentication import ID_BYTES, SECRET_BYTES, Principal, Token
from sbf_service.domain.page_cursors import CursorFormat, Moment, Word
from sbf_service.store.pages import Page, PageOrder, PagePart, read_page
from sbf_service.store.tables.columns import equals_any
from sbf_service.store.tables.tables import ElementRow
from sbf_service.store.tables.user_tables import TokenRow
from sbf_service.store.topology.topology_documents import read_site_names
from sbf_service.store.unit_of_work import Unit, record_audit
from virtcloud.model.access import (
    ELEMENT_ROLES,
    NewToken,
    Role,
    TokenId,
    TokenRequest,
    TokenView,
    describe_unknown_holder,
)
from virtcloud.model.edge import DEVICE_KINDS
from virtcloud.model.errors import BadInput, NotFound, Unauthenticated
from virtcloud.model.message_text import list_known
from virtcloud.model.values import Name, UserName, format_utc

RandomBytes = Callable[[int], bytes]
BY_CREATION: Final = PageOrder(
    CursorFormat("tokens", TypeAdapter(tuple[Moment, Word])), (TokenRow.created_at, TokenRow.id)
)
_READ_AGENT_NAMES = select(ElementRow.name).where(ElementRow.present, ~equals_any(ElementRow.kind, DEVICE_KINDS))
TOKENS_TOPIC = "tokens"


def token_topic(token_id: str) -> str:
    """Return the change topic of one token."""
    return f"token:{token_id}"


def create_token(unit: Unit, request: TokenRequest, random_bytes: RandomBytes) -> NewToken:
    """Create a token. Only the returned document contains the token's secret.

    Raise BadInput for a site that is not in the topology. Before the first topology, every site is accepted.
    """
    _check_sites(unit, request.sites)
    token = Token.make(random_bytes(ID_BYTES + SECRET_BYTES))
    duration_s = request.expires_in_s
    row = TokenRow(
        id=token.id,
        digest=token.digest,
        name=request.name,
        role=request.role,
        sites=",".join(sorted(request.sites)),
        created_at=unit.now,
        created_by=unit.who,
        expires_at=None if duration_s is None else unit.now + timedelta(seconds=duration_s),
    )
    unit.session.add(row)
    unit.session.flush()
    record_audit(unit, "token_created", why=_describe_token(row))
    return NewToken(**make_token_view(row).model_dump(), token=token.text)


def _check_sites(unit: Unit, sites: Collection[Name]) -> None:
    known = read_site_names(unit.connection) if sites else ()
    for site in sites:
        if known and site not in known:
            raise BadInput(
                f"expected sites of the topology ({list_known(site, known)}), got {site}: correct the name, or add the "
                "site first (virtcloud topology set)",
                ("sites",),
            )


def find_unknown_holder(unit: Unit, request: TokenRequest) -> str | None:
    """Return a warning if the role needs the name of a host or gateway, and the topology has no such element."""
    if request.role not in ELEMENT_ROLES:
        return None
    return describe_unknown_holder(request.name, request.role, unit.session.scalars(_READ_AGENT_NAMES).all())


def revoke_token(unit: Unit, token_id: TokenId) -> TokenView:
    """Revoke a token; idempotent. Raise NotFound for an unknown token."""
    row = unit.session.get(TokenRow, token_id)
    if row is None:
        raise NotFound(f"token {token_id} is not known; 'virtcloud token list' shows all tokens")
    if row.revoked_at is None:
        row.revoked_at = unit.now
        record_audit(unit, "token_revoked", why=_describe_token(row))
        unit.changed.update({TOKENS_TOPIC, token_topic(token_id)})
        unit.session.flush()
    return make_token_view(row)


def read_token_page(unit: Unit, part: PagePart, name: str | None = None, role: Role | None = None) -> Page[TokenView]:
    """Return a page of tokens, oldest first. Raise BadInput for an invalid cursor.

    ``name`` selects the tokens of a holder, ``role`` those with a role. Expired and revoked tokens are included.
    """
    rows = select(TokenRow)
    rows = rows if name is None else rows.where(TokenRow.name == name)
    rows = rows if role is None else rows.where(TokenRow.role == role)
    return read_page(unit, rows, BY_CREATION, part).convert(lambda found: [make_token_view(row) for row in found])


def check_token(unit: Unit, token: Token, row: TokenRow | None) -> Principal:
    """Return the principal of a token, whose row is ``row`` (None for an unknown token).

    Raise Unauthenticated, with the reason, if the token is invalid.
    """
    if row is None or not compare_digest(row.digest, token.digest):
        raise Unauthenticated("this SBF has no such token: check the token and the address of SBF")
    return make_principal(unit, row)


def make_principal(unit: Unit, row: TokenRow) -> Principal:
    """Return the principal of a token's row. Raise Unauthenticated for a revoked or expired token.

    A revoked token stays invalid if the clock is set back.
    """
    if row.revoked_at is not None:
        raise _make_refusal(row, "was revoked", row.revoked_at)
    if row.expires_at is not None and row.expires_at <= unit.now:
        raise _make_refusal(row, "expired", row.expires_at)
    return Principal(row.name, Role(row.role), _parse_sites(row), TokenId(row.id))


def _make_refusal(row: TokenRow, event: str, at: datetime) -> Unauthenticated:
    return Unauthenticated(
        f"token {row.id} of {row.name} {event} at {format_utc(at)}: an operator can create a new token"
    )


def make_token_view(row: TokenRow) -> TokenView:
    """Return the view of a token."""
    return TokenView(
        id=TokenId(row.id),
        name=UserName(row.name),
        role=Role(row.role),
        sites=tuple(sorted(_parse_sites(row))),
        created_at=row.created_at,
        created_by=row.created_by,
        expires_at=row.expires_at,
        revoked_at=row.revoked_at,
        last_used_at=row.last_used_at,
    )


def _parse_sites(row: TokenRow) -> frozenset[Name]:
    return frozenset(Name(site) for site in row.sites.split(",") if site)


def _describe_token(row: TokenRow) -> str:
    sites = f" of {row.sites}" if row.sites else ""
    return f"{row.id}: {row.name}, {row.role}{sites}"
