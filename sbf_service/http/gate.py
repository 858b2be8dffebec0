"""The gate before all routes: nobody passes whom the service does not know, before a byte of the body is read."""

import os
from dataclasses import dataclass
from ipaddress import IPv4Address, IPv6Address, ip_address
from typing import Final

from fastapi.concurrency import run_in_threadpool
from starlette.types import ASGIApp, Receive, Scope, Send

from sbf_service.access.local import HOW, local_principal
from sbf_service.access.principal import Principal
from sbf_service.access.tokens import Token
from sbf_service.http import caller, peer
from sbf_service.http.body import BodyTooLong, bounded, declared
from sbf_service.http.caller import Caller
from sbf_service.http.problems import answer, too_long
from sbf_service.log import get_log
from sbf_service.service import Service
from virtcloud.model.errors import TooManyRequests, Unauthenticated, VirtcloudError

OPEN: Final = frozenset({"/healthz", "/readyz", "/docs", "/docs/oauth2-redirect", "/redoc", "/openapi.json"})
"""These say nothing of what the service holds."""
STATIC_DOCS: Final = "/static-docs"
"""The scripts and styles of /docs and /redoc, which ask no foreign host."""
OPEN_ON_LOOPBACK: Final = frozenset({"/metrics"})
HEADER: Final = b"authorization"
UNREADABLE: Final = "expected a whole token (Authorization: Bearer vc_…), got something else"
FORWARDED: Final = frozenset({b"x-forwarded-for", b"forwarded"})
log = get_log(__name__)


@dataclass(frozen=True)
class Gate:
    """Stands around the application."""

    app: ASGIApp
    service: Service

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass a call on with its caller, or answer that it is not let in."""
        if scope["type"] != "http" or is_open(scope):
            await self.app(scope, receive, send)
            return
        try:
            scope[caller.KEY] = Caller(
                await self._principal(scope), address_of(scope), self.service.meters, self.service.throttle
            )
        except VirtcloudError as error:
            if isinstance(error, Unauthenticated | TooManyRequests):
                self.service.meters.denied(error.slug)
            await answer(error)(scope, receive, send)
            return
        most = self.service.settings.limits.body
        if declared(scope) > most:
            await too_long(BodyTooLong(most))(scope, receive, send)
            return
        await self.app(scope, bounded(receive, most), send)

    async def _principal(self, scope: Scope) -> Principal:
        return await self._shown(scope) or await self._local(scope)

    async def _shown(self, scope: Scope) -> Principal | None:
        """Say whose token is shown, if one is. Only so many that are not valid are logged: no log is filled so."""
        if all(name != HEADER for name, _ in scope["headers"]):
            return None
        shown, known = token_of(scope), self.service.recognizer
        found = known.believed(shown) if shown else None
        if found is not None:
            return found
        address = address_of(scope)
        if shown is None or not known.was_valid(shown):
            self.service.throttle.check_failures(address)
        try:
            return await run_in_threadpool(self._ask, shown)
        except Unauthenticated as error:
            self.service.throttle.note_failure(address)
            log.warning("denied", why=error, path=scope["path"], address=address)
            raise

    def _ask(self, shown: Token | None) -> Principal:
        if shown is None:
            raise Unauthenticated(UNREADABLE)
        return self.service.recognizer.ask(shown)

    async def _local(self, scope: Scope) -> Principal:
        found = await peer.peer_of(scope)
        if found is None:
            raise Unauthenticated(f"this SBF wants a token: {HOW}")
        return local_principal(found.uid, found.name, os.geteuid(), self.service.settings.local_users)


def is_open(scope: Scope) -> bool:
    """Say whether a call needs no token."""
    path = scope["path"]
    is_static = path.startswith(f"{STATIC_DOCS}/")
    return path in OPEN or is_static or (path in OPEN_ON_LOOPBACK and is_loopback(scope))


def is_loopback(scope: Scope) -> bool:
    """Return whether a call comes from this machine, and is not one that a proxy on this machine passed on."""
    if scope.get(peer.KEY) is not None:
        return True
    if any(name in FORWARDED for name, _ in scope.get("headers", ())):
        return False
    try:
        return _unmapped(str((scope.get("client") or ("",))[0])).is_loopback
    except ValueError:
        return False


def address_of(scope: Scope) -> str:
    """Say where a call comes from: an address, or a user of this machine."""
    found = scope.get(peer.KEY)
    if found is not None:
        return f"uid {found.uid}"
    given = str(scope["client"][0]) if scope.get("client") else "unknown"
    try:
        return str(_unmapped(given))
    except ValueError:
        return given


def _unmapped(text: str) -> IPv4Address | IPv6Address:
    """Return the address; an IPv4 caller of an IPv6 socket has ``::ffff:192.0.2.1`` (RFC 4291, 2.5.5.2)."""
    address = ip_address(text)
    return (address.ipv4_mapped if isinstance(address, IPv6Address) else None) or address


def token_of(scope: Scope) -> Token | None:
    """Give the token that a call shows (RFC 6750); None for what cannot be one."""
    given = next(value for name, value in scope["headers"] if name == HEADER)
    scheme, _, text = given.decode("latin-1").partition(" ")
    return Token.parse(text.strip()) if scheme.lower() == "bearer" else None
