"""Tokens: made, found by what a caller shows, listed, revoked. The token itself is never kept, only its SHA-256."""

from collections.abc import Callable
from datetime import datetime, timedelta
from hmac import compare_digest

from sqlalchemy import select

from sbf_service.access.principal import Principal
from sbf_service.access.tokens import ID_BYTES, SECRET_BYTES, Token
from sbf_service.store.audit import record
from sbf_service.store.session import Unit
from sbf_service.store.tables import TokenRow
from virtcloud.model.access import NewToken, Role, TokenId, TokenRequest, TokenView
from virtcloud.model.errors import NotFound, Unauthenticated
from virtcloud.model.values import Name, UserName

Chance = Callable[[int], bytes]
USED_AGAIN = timedelta(hours=1)
"""``last_used_at`` is written this often at most."""
CHANGED = "tokens"
"""Who keeps what it knows of tokens listens for this."""


def create_token(unit: Unit, request: TokenRequest, chance: Chance) -> NewToken:
    """Make a token; the answer is the only place where it stands."""
    token = Token.make(chance(ID_BYTES + SECRET_BYTES))
    lasts = request.expires_in_s
    row = TokenRow(
        id=token.id,
        digest=token.digest,
        name=request.name,
        role=request.role,
        sites=",".join(sorted(request.sites)),
        created_at=unit.now,
        created_by=unit.who,
        expires_at=None if lasts is None else unit.now + timedelta(seconds=lasts),
    )
    unit.session.add(row)
    unit.session.flush()
    record(unit, "token_created", why=_words(row))
    return NewToken(**view(row).model_dump(), token=token.text)


def revoke_token(unit: Unit, token_id: TokenId) -> TokenView:
    """Let a token be valid no longer; may be repeated. Raises NotFound."""
    row = unit.session.get(TokenRow, token_id)
    if row is None:
        raise NotFound(f"token {token_id} is not known; 'virtcloud token list' shows those that are")
    if row.revoked_at is None:
        row.revoked_at = unit.now
        record(unit, "token_revoked", why=_words(row))
        unit.changed.add(CHANGED)
        unit.session.flush()
    return view(row)


def list_tokens(unit: Unit) -> list[TokenView]:
    """Show all tokens, also those that are valid no longer, oldest first."""
    return [view(row) for row in unit.session.scalars(select(TokenRow).order_by(TokenRow.created_at, TokenRow.id))]


def principal_of(unit: Unit, token: Token) -> Principal:
    """Say whose a token is; raises Unauthenticated, with the reason, for one that is not valid."""
    row = unit.session.get(TokenRow, token.id)
    if row is None or not compare_digest(row.digest, token.digest):
        raise Unauthenticated("the token is not known here: check that it is one of this SBF")
    for what, at in (("was revoked", row.revoked_at), ("expired", row.expires_at)):
        if at is not None and at <= unit.now:
            raise Unauthenticated(f"token {row.id} of {row.name} {what} at {_utc(at)}: ask an operator for a new one")
    return Principal(row.name, Role(row.role), _sites(row), TokenId(row.id))


def is_to_be_noted(unit: Unit, token: Token) -> bool:
    """Say whether a token's use was not noted for so long that it is to be noted again."""
    last = unit.session.get_one(TokenRow, token.id).last_used_at
    return last is None or unit.now - last >= USED_AGAIN


def note_use(unit: Unit, token: Token) -> None:
    """Note that a token was used now."""
    unit.session.get_one(TokenRow, token.id).last_used_at = unit.now


def view(row: TokenRow) -> TokenView:
    """Give a token as a document."""
    return TokenView(
        id=TokenId(row.id),
        name=UserName(row.name),
        role=Role(row.role),
        sites=tuple(sorted(_sites(row))),
        created_at=row.created_at,
        created_by=row.created_by,
        expires_at=row.expires_at,
        revoked_at=row.revoked_at,
        last_used_at=row.last_used_at,
    )


def _sites(row: TokenRow) -> frozenset[Name]:
    return frozenset(Name(site) for site in row.sites.split(",") if site)


def _words(row: TokenRow) -> str:
    of = f" of {row.sites}" if row.sites else ""
    return f"{row.id}: {row.name}, {row.role}{of}"


def _utc(moment: datetime) -> str:
    return f"{moment:%Y-%m-%d %H:%M:%S} UTC"
