"""The client of an OpenID Connect provider: authorization code flow with PKCE (OpenID Connect Core 1.0, RFC 7636)."""

import json
import secrets
import ssl
from base64 import urlsafe_b64decode, urlsafe_b64encode
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from hmac import compare_digest
from typing import Any, Final
from urllib.parse import quote_plus

import httpx
from authlib.common.errors import AuthlibBaseError
from authlib.oauth2.rfc6749.parameters import (
    parse_authorization_code_response,
    prepare_grant_uri,
    prepare_token_request,
)
from authlib.oauth2.rfc7636 import create_s256_code_challenge
from joserfc import jwt
from joserfc.errors import JoseError
from joserfc.jwk import KeySet
from joserfc.jwt import JWTClaimsRegistry
from pydantic import TypeAdapter

from sbf_service.device_credentials import fetch_secret, find_secret_faults
from sbf_service.log import get_log
from sbf_service.settings import OidcKeys, ServiceSettings
from virtcloud.model.errors import Refused, ServiceUnreachable, Unauthenticated

ALGORITHMS: Final = ["RS256", "RS384", "RS512", "PS256", "PS384", "PS512", "ES256", "ES384", "ES512", "EdDSA"]
"""The signature algorithms that SBF accepts in ID tokens.

SBF refuses ``none`` and algorithms with shared keys (RFC 8725, 3.1).
"""
TIMEOUT_S: Final = 10.0
LEEWAY_S: Final = 60
OTHERWISE: Final = "try again later, or log in with a token"
RANDOM_BYTES: Final = 32

log = get_log(__name__)


@dataclass(frozen=True, slots=True)
class PendingLogin:
    """A login that waits for the provider's answer. The browser stores this login in a cookie."""

    state: str
    nonce: str
    verifier: str
    target: str

    @classmethod
    def make(cls, target: str) -> "PendingLogin":
        """Create a login with random values. ``target`` is the page that the user requested."""
        state, nonce, verifier = (secrets.token_urlsafe(RANDOM_BYTES) for _ in range(3))
        return cls(state, nonce, verifier, target)

    @classmethod
    def parse(cls, text: str) -> "PendingLogin":
        """Parse the text of a cookie. Raise Unauthenticated for a malformed text."""
        try:
            return _PENDING_LOGIN.validate_json(urlsafe_b64decode(text))
        except ValueError as error:
            raise Unauthenticated(
                "the login took longer than ten minutes, or began in another browser: begin again"
            ) from error

    @property
    def text(self) -> str:
        """The text for a cookie."""
        return urlsafe_b64encode(json.dumps(asdict(self)).encode()).decode()


_PENDING_LOGIN: Final = TypeAdapter(PendingLogin)


@dataclass(frozen=True, slots=True)
class OidcClient:
    """SBF as a client of the provider. Every method can raise ServiceUnreachable or Unauthenticated."""

    keys: OidcKeys
    settings: ServiceSettings

    def make_authorization_url(self, pending: PendingLogin, redirect_url: str) -> str:
        """Return the URL of the provider's login page."""
        return str(
            prepare_grant_uri(
                self._discover("authorization_endpoint"),
                client_id=self.keys.client_id,
                response_type="code",
                redirect_uri=redirect_url,
                scope=self.keys.scopes,
                state=pending.state,
                nonce=pending.nonce,
                code_challenge=create_s256_code_challenge(pending.verifier),
                code_challenge_method="S256",
            )
        )

    def read_claims(self, pending: PendingLogin, url: str, redirect_url: str) -> Mapping[str, Any]:
        """Return the verified claims of a user, whom the provider redirected to ``url``."""
        tokens = self._request_tokens(_parse_code(pending, url), pending, redirect_url)
        claims = self._verify(str(tokens.get("id_token", "")), pending.nonce)
        needed = {self.keys.roles.user_claim, self.keys.roles.groups_claim}
        if needed <= claims.keys() or "access_token" not in tokens:
            return claims
        return self._read_user_info(claims, str(tokens["access_token"]))

    def _request_tokens(self, code: str, pending: PendingLogin, redirect_url: str) -> dict[str, Any]:
        body = prepare_token_request(
            "authorization_code", code=code, redirect_uri=redirect_url, code_verifier=pending.verifier
        )
        form = dict(httpx.QueryParams(body)) | {"client_id": self.keys.client_id}
        secret = self._find_secret()
        auth = None if secret is None else httpx.BasicAuth(quote_plus(self.keys.client_id), quote_plus(secret))
        return self._call("POST", self._discover("token_endpoint"), data=form, auth=auth)

    def _find_secret(self) -> str | None:
        if self.keys.client_secret is None:
            return None
        try:
            return fetch_secret(self.keys.client_secret, self.settings.timing.secret_timeout).get_secret_value()
        except Refused as error:
            raise ServiceUnreachable(f"console.oidc.client_secret: {error}; {OTHERWISE}") from error

    def _verify(self, id_token: str, nonce: str) -> dict[str, Any]:
        """Check signature, issuer, audience, nonce and times of an ID token, and return its claims."""
        jwks = self._call("GET", self._discover("jwks_uri"))
        checks = JWTClaimsRegistry(
            leeway=LEEWAY_S,
            iss={"essential": True, "value": self.keys.issuer},
            aud={"essential": True, "value": self.keys.client_id},
            nonce={"essential": True, "value": nonce},
            exp={"essential": True},
        )
        try:
            token = jwt.decode(id_token, KeySet.import_key_set(jwks), algorithms=ALGORITHMS)  # type: ignore[arg-type] # checked by joserfc
            checks.validate(token.claims)
        except (JoseError, ValueError, KeyError) as error:
            raise Unauthenticated(f"the provider's ID token is not valid ({error}): {OTHERWISE}") from error
        return dict(token.claims)

    def _read_user_info(self, claims: dict[str, Any], access_token: str) -> dict[str, Any]:
        """Return ``claims`` with the provider's further claims of the same user (OpenID Connect Core 1.0, 5.3)."""
        address = self._read_configuration().get("userinfo_endpoint")
        if address is None:
            return claims
        found = self._call("GET", str(address), headers={"authorization": f"Bearer {access_token}"})
        if found.get("sub") != claims.get("sub"):
            raise Unauthenticated(
                f"the provider's user information and the ID token are about different users: {OTHERWISE}"
            )
        return found | claims

    def _discover(self, key: str) -> str:
        address = self._read_configuration().get(key)
        if not isinstance(address, str):
            raise ServiceUnreachable(f"the configuration of the provider {self.keys.issuer} lacks {key}: {OTHERWISE}")
        return address

    def _read_configuration(self) -> dict[str, Any]:
        found = self._call("GET", f"{self.keys.issuer.rstrip('/')}/.well-known/openid-configuration")
        if found.get("issuer") != self.keys.issuer:
            raise ServiceUnreachable(
                f"console.oidc.issuer: expected {self.keys.issuer}, but the provider calls itself "
                f"{found.get('issuer')}; ask an operator to correct the setting"
            )
        return found

    def _call(self, method: str, url: str, **options: Any) -> dict[str, Any]:  # noqa: ANN401 - options of httpx
        """Send a request to the provider, and return the JSON object in the answer. Follow no redirection."""
        trusted = _make_trust(self.keys)
        try:
            with httpx.Client(timeout=TIMEOUT_S, verify=trusted) as http:
                answer = http.request(method, url, **options)
                found = answer.json()
        except (httpx.HTTPError, httpx.InvalidURL, ValueError, OSError) as error:
            raise ServiceUnreachable(
                f"the provider {self.keys.issuer} did not answer {method} {url} with JSON ({error}): {OTHERWISE}"
            ) from error
        if not answer.is_success or not isinstance(found, dict):
            fault = found.get("error", "no error code") if isinstance(found, dict) else "no JSON object"
            raise ServiceUnreachable(
                f"the provider {self.keys.issuer} answered {method} {url} with {answer.status_code} ({fault}): "
                f"{OTHERWISE}"
            )
        return found


def log_provider_faults(settings: ServiceSettings) -> None:
    """Log each file and secret that SBF cannot use for logins with the provider. SBF runs nevertheless."""
    keys = settings.console.oidc
    if keys is not None and settings.console.enabled:
        for fault in _find_provider_faults(keys):
            log.warning("oidc_unusable", why=fault, provider=keys.issuer)


def _find_provider_faults(keys: OidcKeys) -> Iterator[str]:
    yield from find_secret_faults("console.oidc.client_secret", keys.client_secret)
    try:
        _make_trust(keys)
    except ServiceUnreachable as error:
        yield str(error)


def _make_trust(keys: OidcKeys) -> ssl.SSLContext:
    """Return a context that trusts ``ca_file``, or the machine's certificate authorities if ``ca_file`` is None."""
    try:
        return ssl.create_default_context(cafile=keys.ca_file)
    except OSError as error:
        raise ServiceUnreachable(
            f"console.oidc.ca_file {keys.ca_file}: expected certificates (PEM): {error.strerror or error}; put the "
            "file there, readable by SBF's user, or correct the settings and reload SBF; or log in with a token"
        ) from error


def _parse_code(pending: PendingLogin, url: str) -> str:
    state = httpx.URL(url).params.get("state", "")
    if not compare_digest(state.encode(), pending.state.encode()):
        raise Unauthenticated("the provider's answer belongs to another login: begin again")
    if "error" in httpx.URL(url).params:
        raise Unauthenticated(f"the provider refused the login ({httpx.URL(url).params['error']}): {OTHERWISE}")
    try:
        return str(parse_authorization_code_response(url, pending.state)["code"])
    except AuthlibBaseError as error:
        raise Unauthenticated(f"the provider's answer has no authorization code ({error}): begin again") from error
