"""Whose a token is: asked of the database, and believed for some seconds, so that calls stay cheap."""

import time
from collections.abc import Callable
from dataclasses import dataclass, field

from sbf_service.access.principal import Principal
from sbf_service.access.tokens import Token
from sbf_service.store.session import Store
from sbf_service.store.tokens import CHANGED, is_to_be_noted, note_use, principal_of
from virtcloud.model.errors import Unauthenticated

BELIEVED_S = 5.0
"""A token that was revoked at another replica is believed here for so long."""
MOST = 10_000


@dataclass
class Recognizer:
    """Knows tokens. Thread-safe: its dictionary is only read, set and replaced."""

    store: Store
    clock: Callable[[], float] = time.monotonic
    _believed: dict[str, tuple[Principal, float]] = field(default_factory=dict)

    def believed(self, token: Token) -> Principal | None:
        """Give whose a token is if that was asked a moment ago; asks nobody."""
        found = self._believed.get(token.digest)
        return found[0] if found and self.clock() < found[1] else None

    def was_valid(self, token: Token) -> bool:
        """Say whether this replica has seen the token valid before."""
        return token.digest in self._believed

    def ask(self, token: Token) -> Principal:
        """Ask the database whose a token is. Raises Unauthenticated with the reason."""
        try:
            with self.store.read() as unit:
                found = principal_of(unit, token)
                unnoted = is_to_be_noted(unit, token)
        except Unauthenticated:
            self._believed.pop(token.digest, None)
            raise
        if unnoted:
            with self.store.touch() as unit:
                note_use(unit, token)
        if len(self._believed) >= MOST:
            self._believed = {}
        self._believed[token.digest] = (found, self.clock() + BELIEVED_S)
        return found

    def heard(self, changed: frozenset[str]) -> None:
        """Believe nothing any more when tokens changed."""
        if CHANGED in changed:
            self._believed = {}
