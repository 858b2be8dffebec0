"""Tokens: creation, authentication, lists and revocation. SBF stores only the SHA-256 of a token.

With a cache of authenticated tokens, most calls need no query.
"""

import time
from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from hmac import compare_digest
from math import inf
from typing import Final

from pydantic import TypeAdapter
from sqlalchemy import bindparam, select, update

from sbf_service.domain.authentication import ID_BYTES, SECRET_BYTES, Principal, Token
from sbf_service.domain.page_cursors import CursorFormat, Moment, Word
from sbf_service.store.columns import split_ids
from sbf_service.store.pages import Page, PageOrder, PagePart, read_page
from sbf_service.store.topology_documents import read_site_names
from sbf_service.store.unit_of_work import Store, Unit, record_audit
from sbf_service.store.user_tables import TokenRow
from virtcloud.model.access import NewToken, Role, TokenId, TokenRequest, TokenView
from virtcloud.model.errors import BadInput, NotFound, Unauthenticated, VirtcloudError
from virtcloud.model.message_text import list_known
from virtcloud.model.values import Name, UserName, format_utc

RandomBytes = Callable[[int], bytes]
USE_INTERVAL = timedelta(hours=1)
"""The minimum time between two updates of a token's ``last_used_at``."""
BY_CREATION: Final = PageOrder(
    CursorFormat("tokens", TypeAdapter(tuple[Moment, Word])), (TokenRow.created_at, TokenRow.id)
)
TOKENS_TOPIC = "tokens"
"""The change topic of all revocations."""


def token_topic(token_id: str) -> str:
    """Return the change topic of one token."""
    return f"token:{token_id}"


def create_token(unit: Unit, request: TokenRequest, random_bytes: RandomBytes) -> NewToken:
    """Create a token. Only the returned document contains the token's secret.

    Raise BadInput for a site that is not in the topology. Before the first topology, every site is accepted, because
    administrators may create tokens before they describe the sites.
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

    If ``name`` is given, return only tokens of this holder. If ``role`` is given, return only tokens with this role.
    Expired and revoked tokens are included.
    """
    rows = select(TokenRow)
    rows = rows if name is None else rows.where(TokenRow.name == name)
    rows = rows if role is None else rows.where(TokenRow.role == role)
    return read_page(unit, rows, BY_CREATION, part).convert(lambda found: [make_token_view(row) for row in found])


def check_token(unit: Unit, token: Token, row: TokenRow | None) -> Principal:
    """Return the principal of a token. ``row`` is the token's row, or None for an unknown token.

    Raise Unauthenticated, with the reason, if the token is invalid.
    """
    if row is None or not compare_digest(row.digest, token.digest):
        raise Unauthenticated("this SBF has no such token: check the token and the address of SBF")
    return make_principal(unit, row)


def make_principal(unit: Unit, row: TokenRow) -> Principal:
    """Return the principal of a token's row. Raise Unauthenticated for a revoked or expired token.

    A revocation has no end: the token stays invalid if the clock is set back to a time before the revocation.
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


def is_use_stale(unit: Unit, row: TokenRow) -> bool:
    """Return whether a token has no recorded last use, or a recorded last use older than ``USE_INTERVAL``."""
    return row.last_used_at is None or unit.now - row.last_used_at >= USE_INTERVAL


def _seconds_left(unit: Unit, row: TokenRow) -> float:
    return inf if row.expires_at is None else (row.expires_at - unit.now).total_seconds()


def record_uses(unit: Unit, token_ids: Collection[str]) -> None:
    """Record the current time as the last use of tokens. Omit tokens with locked rows."""
    free = unit.connection.execute(_LOCK_UNLOCKED, {"ids": list(token_ids)}).scalars().all()
    if free:
        unit.connection.execute(_RECORD_USES, {"ids": free, "used_at": unit.now})


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


CACHE_S = 5.0
"""Seconds for which SBF caches a principal if this replica cannot receive notices of other replicas' revocations."""
CACHE_WITH_NOTICES_S = 1800.0
"""Seconds for which SBF caches a principal if this replica can receive notices of other replicas' revocations."""
_READ_TOKENS = select(TokenRow).where(TokenRow.id.in_(bindparam("ids", expanding=True)))
_LOCK_UNLOCKED = (
    select(TokenRow.id).where(TokenRow.id.in_(bindparam("ids", expanding=True))).with_for_update(skip_locked=True)
)
_RECORD_USES = (
    update(TokenRow).where(TokenRow.id.in_(bindparam("ids", expanding=True))).values(last_used_at=bindparam("used_at"))
)
_READ_USED = select(TokenRow).where(TokenRow.role == Role.AGENT, TokenRow.last_used_at > bindparam("used_since"))
MAX_CACHED = 50_000


@dataclass(frozen=True, slots=True)
class _CheckedToken:
    """A token's principal, and the times of the token's check and expiry, in seconds of the cache's ``clock``."""

    principal: Principal
    checked_at: float
    expires_at: float


def _cache_valid(unit: Unit, rows: Iterable[TokenRow], cached: dict[str, _CheckedToken], checked_at: float) -> None:
    """Add the valid tokens in ``rows`` to ``cached``. Remove the invalid tokens in ``rows`` from ``cached``."""
    for row in rows:
        try:
            principal = make_principal(unit, row)
        except Unauthenticated:
            cached.pop(row.digest, None)
        else:
            cached[row.digest] = _CheckedToken(principal, checked_at, checked_at + _seconds_left(unit, row))


@dataclass
class TokenCache:
    """The principals of recently checked tokens. Thread-safe, because each access to the dictionary is atomic.

    ``gets_notices`` returns whether this replica receives other replicas' notices.
    """

    store: Store
    clock: Callable[[], float] = time.monotonic
    gets_notices: Callable[[], bool] = lambda: False
    _cached: dict[str, _CheckedToken] = field(default_factory=dict)
    _found: set[str] = field(default_factory=set)
    """The digests of the tokens that calls have found in the cache since the last :meth:`renew`."""

    def load(self) -> None:
        """Cache the tokens that agents used recently. Called at the start, when all agents connect again."""
        known, checked_at = self._cached, self.clock()
        with self.store.read() as unit:
            rows = unit.session.scalars(_READ_USED, {"used_since": unit.now - 2 * USE_INTERVAL})
            _cache_valid(unit, rows, known, checked_at)

    def renew(self) -> None:
        """Check recently used tokens again, with few queries, before their entries expire. Record their use.

        Without this method, each agent's entry would expire twice an hour, and the next poll would need a query.
        """
        known, checked_at, stale = self._cached, self.clock(), list[str]()
        found, self._found = self._found, set()
        # While this method runs, other calls can add digests to ``found``, and remove tokens from the cache.
        used = [cached for digest in tuple(found) if (cached := known.get(digest)) is not None]
        aging = [cached for cached in used if checked_at - cached.checked_at >= CACHE_WITH_NOTICES_S / 2]
        with self.store.read() as unit:
            for ids in split_ids(str(cached.principal.token) for cached in aging):
                rows = unit.session.scalars(_READ_TOKENS, {"ids": ids}).all()
                _cache_valid(unit, rows, known, checked_at)
                stale += [row.id for row in rows if row.digest in known and is_use_stale(unit, row)]
        for ids in split_ids(stale):
            with self.store.change_row() as unit:
                record_uses(unit, ids)

    def find(self, token: Token) -> Principal | None:
        """Return the principal of a recently checked token, or None. No database query."""
        digest, lifetime = token.digest, CACHE_WITH_NOTICES_S if self.gets_notices() else CACHE_S
        cached = self._cached.get(digest)
        if cached is None or self.clock() >= min(cached.checked_at + lifetime, cached.expires_at):
            return None
        self._found.add(digest)
        return cached.principal

    def was_valid(self, token: Token) -> bool:
        """Return whether the cache contains the token, even if the entry is too old for `find`.

        If the cache contains the token, an earlier check found the token valid, but the token may be invalid now.
        """
        return token.digest in self._cached

    def authenticate(self, token: Token) -> Principal:
        """Check a token against the database, and return the token's principal.

        Raise Unauthenticated, with the reason, for an invalid token.
        """
        found = self.authenticate_many([token])[token]
        if isinstance(found, VirtcloudError):
            raise found
        return found

    def authenticate_many(self, tokens: Collection[Token]) -> dict[Token, Principal | VirtcloudError]:
        """Check at most 500 tokens with one query. Return each token's principal, or the error Unauthenticated."""
        known, checked_at = self._cached, self.clock()
        found: dict[Token, Principal | VirtcloudError] = {}
        stale: list[str] = []
        with self.store.read() as unit:
            rows = {row.id: row for row in unit.session.scalars(_READ_TOKENS, {"ids": [token.id for token in tokens]})}
            for token in tokens:
                row = rows.get(token.id)
                try:
                    found[token] = principal = check_token(unit, token, row)
                except Unauthenticated as error:
                    self._cached.pop(token.digest, None)
                    found[token] = error
                    continue
                assert row is not None  # noqa: S101 - check_token raises for None
                stale += [row.id] if is_use_stale(unit, row) else []
                if len(known) >= MAX_CACHED:
                    known.clear()
                # If a token is revoked meanwhile, ``on_change`` replaces the dictionary, and this entry has no effect.
                known[token.digest] = _CheckedToken(principal, checked_at, checked_at + _seconds_left(unit, row))
        if stale:
            with self.store.change_row() as unit:
                record_uses(unit, stale)
        return found

    def on_change(self, changed: frozenset[str]) -> None:
        """Empty the cache if ``changed`` contains the topic of tokens."""
        if TOKENS_TOPIC in changed:
            self._cached = {}
