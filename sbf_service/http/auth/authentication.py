"""Authentication of calls: by bearer tokens, or by the user at the other end of a local connection.

A call is authenticated before its body is read.
"""

import os
import re
from ipaddress import IPv4Address, IPv6Address, ip_address
from typing import Final

from starlette.types import ASGIApp, Receive, Scope, Send

from sbf_service.bootstrap import SbfService
from sbf_service.domain.authentication import LOGIN_HINT, Principal, Token, identify_local_user
from sbf_service.http.auth.authorization import CALLER_KEY
from sbf_service.http.auth.caller import Caller, RateLimiter
from sbf_service.http.auth.connections import PEER_KEY, request_peer
from sbf_service.http.batched_reads import BatchedReads
from sbf_service.http.middleware import declared_length, limit_body
from sbf_service.http.problems import BodyTooLong, body_too_long_response, error_response
from sbf_service.log import get_log
from sbf_service.settings import ServiceSettings
from virtcloud.model.errors import TooManyRequests, Unauthenticated, VirtcloudError

OPEN_PATHS: Final = frozenset({"/healthz", "/readyz", "/docs", "/docs/oauth2-redirect", "/redoc", "/openapi.json"})
"""Paths that need no token, because their answers contain no data of the service."""
STATIC_DOCS: Final = "/static-docs"
CONSOLE: Final = "/console"
"""Prefix of the console, which authenticates browsers by the cookies of their sessions."""
UPLOAD_PATH: Final = re.compile("/v1/images/[^/]+/content|/v1/elements/[^/]+/sessions/[^/]+/image")
OPEN_ON_LOOPBACK: Final = frozenset({"/metrics"})
HEADER: Final = b"authorization"
FORWARDED: Final = frozenset({b"x-forwarded-for", b"forwarded"})
UNREADABLE_HEADER: Final = "expected a complete token (Authorization: Bearer vc_…), got something else"
log = get_log(__name__)


class AuthenticationMiddleware:
    """Authenticates each call and limits the length of its body, except for calls of open paths.

    One query reads the tokens of simultaneous calls, because all agents call at once after a restart of SBF.
    """

    def __init__(self, app: ASGIApp, service: SbfService) -> None:
        """Wrap ``app``."""
        self.app = app
        self.service = service
        self._tokens = BatchedReads(service.token_cache.authenticate_many)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Process a call with its :class:`Caller`, or answer with a problem document."""
        if scope["type"] not in {"http", "websocket"} or is_open(scope):
            await self.app(scope, receive, send)
            return
        service = self.service
        try:
            principal = await self._authenticate_token(scope) or await self._authenticate_peer(scope)
        except VirtcloudError as error:
            if isinstance(error, Unauthenticated | TooManyRequests):
                service.metrics.record_denial(error.slug)
            await error_response(error)(scope, receive, send)
            return
        rates, token = RateLimiter.of(service), bearer_token(scope)
        scope[CALLER_KEY] = Caller(principal, client_address(scope), service.metrics, rates, token)
        limit, setting = find_body_limit(scope, service.settings)
        if declared_length(scope) > limit:
            await body_too_long_response(BodyTooLong(limit, setting))(scope, receive, send)
            return
        await self.app(scope, limit_body(receive, limit, setting), send)

    async def _authenticate_token(self, scope: Scope) -> Principal | None:
        """Return the principal of the call's token; None for a call without a token.

        The rate limit of invalid tokens also limits the log lines that an address can cause.
        """
        if all(name != HEADER for name, _ in scope["headers"]):
            return None
        token, cache = bearer_token(scope), self.service.token_cache
        cached = cache.find(token) if token else None
        if cached is not None:
            return cached
        address = client_address(scope)
        if token is None or not cache.was_valid(token):
            RateLimiter.of(self.service).check_address(address)
        try:
            return await self._find_principal(token)
        except Unauthenticated as error:
            RateLimiter.of(self.service).record_failure(address)
            log.warning("denied", why=error, path=scope["path"], address=address)
            raise

    async def _find_principal(self, token: Token | None) -> Principal:
        if token is None:
            raise Unauthenticated(UNREADABLE_HEADER)
        return await self._tokens.read(token)

    async def _authenticate_peer(self, scope: Scope) -> Principal:
        peer = await request_peer(scope)
        if peer is None:
            raise Unauthenticated(f"this SBF requires a token: {LOGIN_HINT}")
        return identify_local_user(peer.uid, peer.name, os.geteuid(), self.service.settings.local_users)


def find_body_limit(scope: Scope, settings: ServiceSettings) -> tuple[int, str]:
    """Return the maximum length of a call's body in bytes, and the name of the setting that contains this limit."""
    is_upload = scope.get("method") == "PUT" and UPLOAD_PATH.fullmatch(scope["path"])
    return (settings.images.size, "images.size") if is_upload else (settings.limits.body, "limits.body")


def is_open(scope: Scope) -> bool:
    """Return whether a call needs no authentication here: open paths, and the console, which authenticates browsers."""
    path = scope["path"]
    is_static = path.startswith(f"{STATIC_DOCS}/")
    is_console = path == CONSOLE or path.startswith(f"{CONSOLE}/") or (path == "/" and _is_browser(scope))
    return path in OPEN_PATHS or is_static or is_console or (path in OPEN_ON_LOOPBACK and is_loopback(scope))


def _is_browser(scope: Scope) -> bool:
    return any(name == b"accept" and b"text/html" in value for name, value in scope.get("headers", ()))


def is_loopback(scope: Scope) -> bool:
    """Return whether a call comes from this host, and was not forwarded by a proxy on this host."""
    if scope.get(PEER_KEY) is not None:
        return True
    if any(name in FORWARDED for name, _ in scope.get("headers", ())):
        return False
    try:
        return _parse_address(str((scope.get("client") or ("",))[0])).is_loopback
    except ValueError:
        return False


def client_address(scope: Scope) -> str:
    """Return the IP address of a call's origin; ``uid N`` for an AF_UNIX socket, ``unknown`` for an unknown origin."""
    peer = scope.get(PEER_KEY)
    if peer is not None:
        return f"uid {peer.uid}"
    address = str(scope["client"][0]) if scope.get("client") else "unknown"
    try:
        return str(_parse_address(address))
    except ValueError:
        return address


def _parse_address(text: str) -> IPv4Address | IPv6Address:
    """Parse an address. Return an IPv4 address for an IPv4-mapped address such as ``::ffff:192.0.2.1``.

    IPv6 sockets show IPv4 addresses in this form (RFC 4291, 2.5.5.2). Raise ValueError for any other text.
    """
    address = ip_address(text)
    return (address.ipv4_mapped if isinstance(address, IPv6Address) else None) or address


def bearer_token(scope: Scope) -> Token | None:
    """Return the token of a call's Authorization header (RFC 6750); None if the header has no well-formed token."""
    for name, value in scope["headers"]:
        if name == HEADER:
            scheme, _, text = value.decode("latin-1").partition(" ")
            return Token.parse(text.strip()) if scheme.lower() == "bearer" else None
    return None
