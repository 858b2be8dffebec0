"""The gate before all routes: nobody passes whom the service does not know, before a byte of the body is read.

Who is at the other end of an AF_UNIX socket: the kernel says so (SO_PEERCRED, unix(7)).
"""

import os
import pwd
import socket
import struct
from asyncio import BaseTransport
from dataclasses import dataclass
from functools import partial
from ipaddress import IPv4Address, IPv6Address, ip_address
from typing import Final

from fastapi.concurrency import run_in_threadpool
from starlette.types import ASGIApp, Receive, Scope, Send
from uvicorn.protocols.http.auto import AutoHTTPProtocol

from sbf_service.bootstrap import SbfService
from sbf_service.domain.authentication import LOGIN_HINT, Principal, Token, identify_local_user
from sbf_service.http.auth import authorization
from sbf_service.http.auth.authorization import Caller
from sbf_service.http.middleware import BodyTooLong, declared_length, limit_body
from sbf_service.http.problems import body_too_long_response, error_response
from sbf_service.log import get_log
from sbf_service.overload import BoundedThreads
from virtcloud.model.errors import TooManyRequests, Unauthenticated, VirtcloudError

PEER_KEY = "virtcloud.peer"
CREDENTIALS = struct.Struct("3i")
NOBODY = 65534
"""The number that stands for every user whom this user namespace does not know (user_namespaces(7))."""
NAME_LOOKUP_TIMEOUT_S = 10.0
LOOKUPS = BoundedThreads(4, "look-ups of users' names")
"""Threads for the whole process, as the directory of names is one for the whole machine."""


@dataclass(frozen=True, slots=True)
class LocalPeer:
    """A user of this machine; ``name`` is None when the machine has no name for it."""

    uid: int
    name: str | None


@dataclass(frozen=True, slots=True)
class PeerConnection:
    """Who is at the other end of a local connection, by number; the name is looked up when it is needed."""

    uid: int

    async def peer(self) -> LocalPeer:
        """Look the name up, in a thread: it may be in a directory on the network. Raise ServiceBusy."""
        return LocalPeer(self.uid, await LOOKUPS.run(partial(user_name, self.uid), NAME_LOOKUP_TIMEOUT_S))


class PeerHttpProtocol(AutoHTTPProtocol):  # type: ignore[misc, valid-type] # uvicorn chooses the class when it is imported
    """HTTP as uvicorn speaks it; every call's scope says who the peer is, where the kernel knows."""

    def connection_made(self, transport: BaseTransport) -> None:
        """Ask the kernel once for each connection."""
        super().connection_made(transport)
        uid = peer_uid(transport.get_extra_info("socket"))
        if uid is not None:
            self.app: ASGIApp = _with_peer(self.app, PeerConnection(uid))


def peer_uid(connection: socket.socket) -> int | None:
    """Return the number of the user who connected; None for a connection that is not local."""
    if connection.family != socket.AF_UNIX:
        return None
    said = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, CREDENTIALS.size)
    _pid, uid, _gid = CREDENTIALS.unpack(said)
    return int(uid)


def user_name(uid: int) -> str | None:
    """Look up a user's name (getpwuid(3)), which may take long; None when this machine has none for it."""
    try:
        return None if uid == NOBODY else pwd.getpwuid(uid).pw_name
    except KeyError:
        return None


async def request_peer(scope: Scope) -> LocalPeer | None:
    """Return the local user who makes a call, None for others."""
    found = scope.get(PEER_KEY)
    if isinstance(found, PeerConnection):
        return await found.peer()
    return found if isinstance(found, LocalPeer) else None


def _with_peer(app: ASGIApp, connected: PeerConnection) -> ASGIApp:
    async def call(scope: Scope, receive: Receive, send: Send) -> None:
        await app({**scope, PEER_KEY: connected}, receive, send)

    return call


OPEN_PATHS: Final = frozenset({"/healthz", "/readyz", "/docs", "/docs/oauth2-redirect", "/redoc", "/openapi.json"})
"""These say nothing of what the service holds."""
STATIC_DOCS: Final = "/static-docs"
"""The scripts and styles of /docs and /redoc, which ask no foreign host."""
OPEN_ON_LOOPBACK: Final = frozenset({"/metrics"})
HEADER: Final = b"authorization"
UNREADABLE: Final = "expected a whole token (Authorization: Bearer vc_…), got something else"
FORWARDED: Final = frozenset({b"x-forwarded-for", b"forwarded"})
log = get_log(__name__)


@dataclass(frozen=True)
class AuthenticationMiddleware:
    """Stands around the application."""

    app: ASGIApp
    service: SbfService

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass a call on with its caller, or answer that it is not let in."""
        if scope["type"] != "http" or is_open(scope):
            await self.app(scope, receive, send)
            return
        try:
            scope[authorization.CALLER_KEY] = Caller(
                await self._principal(scope), client_address(scope), self.service.metrics, self.service.rate_limiter
            )
        except VirtcloudError as error:
            if isinstance(error, Unauthenticated | TooManyRequests):
                self.service.metrics.record_denial(error.slug)
            await error_response(error)(scope, receive, send)
            return
        most = self.service.settings.limits.body
        if declared_length(scope) > most:
            await body_too_long_response(BodyTooLong(most))(scope, receive, send)
            return
        await self.app(scope, limit_body(receive, most), send)

    async def _principal(self, scope: Scope) -> Principal:
        return await self._shown(scope) or await self._local(scope)

    async def _shown(self, scope: Scope) -> Principal | None:
        """Say whose token is shown, if one is. Only so many that are not valid are logged: no log is filled so."""
        if all(name != HEADER for name, _ in scope["headers"]):
            return None
        shown, known = bearer_token(scope), self.service.token_cache
        found = known.find(shown) if shown else None
        if found is not None:
            return found
        address = client_address(scope)
        if shown is None or not known.was_valid(shown):
            self.service.rate_limiter.check_address(address)
        try:
            return await run_in_threadpool(self._ask, shown)
        except Unauthenticated as error:
            self.service.rate_limiter.record_failure(address)
            log.warning("denied", why=error, path=scope["path"], address=address)
            raise

    def _ask(self, shown: Token | None) -> Principal:
        if shown is None:
            raise Unauthenticated(UNREADABLE)
        return self.service.token_cache.authenticate(shown)

    async def _local(self, scope: Scope) -> Principal:
        found = await request_peer(scope)
        if found is None:
            raise Unauthenticated(f"this SBF wants a token: {LOGIN_HINT}")
        return identify_local_user(found.uid, found.name, os.geteuid(), self.service.settings.local_users)


def is_open(scope: Scope) -> bool:
    """Say whether a call needs no token."""
    path = scope["path"]
    is_static = path.startswith(f"{STATIC_DOCS}/")
    return path in OPEN_PATHS or is_static or (path in OPEN_ON_LOOPBACK and is_loopback(scope))


def is_loopback(scope: Scope) -> bool:
    """Return whether a call comes from this machine, and is not one that a proxy on this machine passed on."""
    if scope.get(PEER_KEY) is not None:
        return True
    if any(name in FORWARDED for name, _ in scope.get("headers", ())):
        return False
    try:
        return _unmapped(str((scope.get("client") or ("",))[0])).is_loopback
    except ValueError:
        return False


def client_address(scope: Scope) -> str:
    """Say where a call comes from: an address, or a user of this machine."""
    found = scope.get(PEER_KEY)
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


def bearer_token(scope: Scope) -> Token | None:
    """Give the token that a call shows (RFC 6750); None for what cannot be one."""
    given = next(value for name, value in scope["headers"] if name == HEADER)
    scheme, _, text = given.decode("latin-1").partition(" ")
    return Token.parse(text.strip()) if scheme.lower() == "bearer" else None
