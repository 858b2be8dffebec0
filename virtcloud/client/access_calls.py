"""Calls for users' identities, tokens, quotas and SSH keys."""

from collections.abc import Iterator, Sequence
from urllib.parse import quote

from virtcloud.client.calls import PAGE_SIZE, SbfCalls, validated
from virtcloud.model.access import Identity, NewToken, QuotaLimits, QuotaView, TokenId, TokenRequest, TokenView
from virtcloud.model.ssh_keys import KeyFingerprint, NewUserKey, UserKeyView
from virtcloud.model.values import UserName


class AccessCalls(SbfCalls):
    """Calls for identities, tokens, quotas and SSH keys.

    Each call raises Forbidden if the caller lacks the right to this call.
    """

    def whoami(self) -> Identity:
        """Return the name and role of the caller. Raise Unauthenticated if the token is invalid."""
        return self._document(Identity, self._connection.send("GET", "/v1/whoami"))

    def create_token(
        self, name: str, role: str, sites: Sequence[str] = (), expires_in_s: float | None = None
    ) -> NewToken:
        """Create a token. Not idempotent: each call creates a new token. Raise BadInput for invalid arguments."""
        request = validated(TokenRequest, name=name, role=role, sites=sites, expires_in_s=expires_in_s)
        return self._document(NewToken, self._connection.send("POST", "/v1/tokens", request))

    def tokens(self) -> list[TokenView]:
        """Return all tokens, including expired and revoked tokens."""
        return self._documents(TokenView, self._connection.send("GET", "/v1/tokens"))

    def token_pages(
        self, *, name: str | None = None, role: str | None = None, size: int = PAGE_SIZE
    ) -> Iterator[list[TokenView]]:
        """Yield the tokens in pages of at most ``size``, oldest first.

        ``name`` (the holder) and ``role`` select tokens.
        """
        return self._pages(TokenView, "/v1/tokens", {"name": name, "role": role}, size)

    def revoke_token(self, token_id: str) -> TokenView:
        """Revoke a token. Idempotent. Raise NotFound if there is no such token."""
        return self._document(TokenView, self._connection.send("DELETE", f"/v1/tokens/{TokenId(token_id)}"))

    def quotas(self) -> list[QuotaView]:
        """Return the quotas of all users with individual limits."""
        return self._documents(QuotaView, self._connection.send("GET", "/v1/quotas"))

    def quota_pages(self, *, size: int = PAGE_SIZE) -> Iterator[list[QuotaView]]:
        """Yield the quotas of all users with individual limits, sorted by name, in pages of at most ``size``."""
        return self._pages(QuotaView, "/v1/quotas", {}, size)

    def quota(self, user: str) -> QuotaView:
        """Return a user's quota."""
        return self._document(QuotaView, self._connection.send("GET", f"/v1/quotas/{UserName(user)}"))

    def put_quota(  # noqa: PLR0913 - callers pass each limit by its name
        self,
        user: str,
        clusters: int | None = None,
        sites: int | None = None,
        lease_s: float | None = None,
        *,
        networks: int | None = None,
        guests: int | None = None,
        cpus: int | None = None,
        memory_mb: int | None = None,
        images_mb: int | None = None,
    ) -> QuotaView:
        """Set a user's limits. For None, the limit in SBF's settings applies. Idempotent.

        Raise BadInput for invalid limits.
        """
        limits = validated(
            QuotaLimits,
            clusters=clusters,
            sites=sites,
            lease_s=lease_s,
            networks=networks,
            guests=guests,
            cpus=cpus,
            memory_mb=memory_mb,
            images_mb=images_mb,
        )
        return self._document(QuotaView, self._connection.send("PUT", f"/v1/quotas/{UserName(user)}", limits))

    def keys(self, user: str) -> list[UserKeyView]:
        """Return a user's public SSH keys, oldest first."""
        return self._documents(UserKeyView, self._connection.send("GET", f"/v1/users/{UserName(user)}/keys"))

    def add_key(self, user: str, key: str) -> UserKeyView:
        """Add a public SSH key for clusters that the user creates later. Idempotent.

        Raise BadInput for a text that is no public key; the message does not contain the text. Raise BeyondLimit for
        too many keys.
        """
        new = validated(NewUserKey, key=key)
        return self._document(UserKeyView, self._connection.send("POST", f"/v1/users/{UserName(user)}/keys", new))

    def remove_key(self, user: str, fingerprint: str) -> UserKeyView:
        """Remove a public SSH key from a user's keys. Existing guests continue to accept the key.

        Raise NotFound if the user has no such key.
        """
        path = f"/v1/users/{UserName(user)}/keys/{quote(KeyFingerprint(fingerprint), safe=':')}"
        return self._document(UserKeyView, self._connection.send("DELETE", path))
