"""The cache of authenticated tokens, with which most calls need no query."""

import time
from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass, field
from datetime import timedelta
from math import inf

from sqlalchemy import bindparam, select, update

from sbf_service.domain.authentication import Principal, Token
from sbf_service.store.store import Store
from sbf_service.store.tables.columns import split_ids
from sbf_service.store.tables.user_tables import TokenRow
from sbf_service.store.unit_of_work import Unit
from sbf_service.store.users.tokens import TOKENS_TOPIC, check_token, make_principal
from virtcloud.model.access import Role
from virtcloud.model.errors import Unauthenticated, VirtcloudError

USE_INTERVAL = timedelta(hours=1)
"""The minimum time between two updates of a token's ``last_used_at``."""
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


def _is_use_stale(unit: Unit, row: TokenRow) -> bool:
    return row.last_used_at is None or unit.now - row.last_used_at >= USE_INTERVAL


def _seconds_left(unit: Unit, row: TokenRow) -> float:
    return inf if row.expires_at is None else (row.expires_at - unit.now).total_seconds()


def _record_uses(unit: Unit, token_ids: Collection[str]) -> None:
    free = unit.connection.execute(_LOCK_UNLOCKED, {"ids": list(token_ids)}).scalars().all()
    if free:
        unit.connection.execute(_RECORD_USES, {"ids": free, "used_at": unit.now})


@dataclass(frozen=True, slots=True)
class _CheckedToken:
    """A token's principal, and the times of the token's check and expiry, in seconds of the cache's ``clock``."""

    principal: Principal
    checked_at: float
    expires_at: float


_CachedTokens = dict[str, _CheckedToken | None]
"""The checked tokens, by digest. After any revocation, all entries are None: each token is checked again."""


def _cache_valid(unit: Unit, rows: Iterable[TokenRow], cached: _CachedTokens, checked_at: float) -> None:
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
    _cached: _CachedTokens = field(default_factory=dict)
    _found: set[str] = field(default_factory=set)
    """The digests of the tokens that calls have found in the cache since the last :meth:`renew`."""

    def load(self) -> None:
        """Cache the tokens that agents used recently, before all agents connect again at the start."""
        known, checked_at = self._cached, self.clock()
        with self.store.read() as unit:
            rows = unit.session.scalars(_READ_USED, {"used_since": unit.now - 2 * USE_INTERVAL})
            _cache_valid(unit, rows, known, checked_at)

    def renew(self) -> None:
        """Check recently used tokens again, with few queries, before their entries expire, and record their use.

        Otherwise, each agent's entry would expire twice an hour, and its next poll would need a query.
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
                stale += [row.id for row in rows if row.digest in known and _is_use_stale(unit, row)]
        for ids in split_ids(stale):
            with self.store.change_row() as unit:
                _record_uses(unit, ids)

    def find(self, token: Token) -> Principal | None:
        """Return the principal of a recently checked token, or None, without a query."""
        digest, lifetime = token.digest, CACHE_WITH_NOTICES_S if self.gets_notices() else CACHE_S
        cached = self._cached.get(digest)
        if cached is None or self.clock() >= min(cached.checked_at + lifetime, cached.expires_at):
            return None
        self._found.add(digest)
        return cached.principal

    def was_valid(self, token: Token) -> bool:
        """Return whether an earlier check found the token valid. The token may be invalid now."""
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
        """Check at most 500 tokens with one query, and return each token's principal or the error Unauthenticated."""
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
                stale += [row.id] if _is_use_stale(unit, row) else []
                if len(known) >= MAX_CACHED:
                    known.clear()
                # If a token is revoked meanwhile, ``on_change`` replaces the dictionary, and this entry has no effect.
                known[token.digest] = _CheckedToken(principal, checked_at, checked_at + _seconds_left(unit, row))
        if stale:
            with self.store.change_row() as unit:
                _record_uses(unit, stale)
        return found

    def on_change(self, changed: frozenset[str]) -> None:
        """After any revocation, check each token again at its next call.

        The digests stay in the cache for :meth:`was_valid`, until a check refuses the token.
        """
        if TOKENS_TOPIC in changed:
            self._cached = dict.fromkeys(self._cached)
