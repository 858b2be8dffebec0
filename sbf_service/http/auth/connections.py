"""Connections of clients: finds the user who opened a local connection, and closes idle and lost connections."""

import pwd
import socket
import struct
from asyncio import BaseTransport, wait_for
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any, ClassVar, Final

from starlette.types import ASGIApp, Receive, Scope, Send
from uvicorn.protocols.http.auto import AutoHTTPProtocol

from sbf_service.coalesced_timers import CoalescedTimers, Timer
from sbf_service.overload import RETRY_AFTER_S, BoundedThreads
from virtcloud.model.errors import ServiceBusy

PEER_KEY: Final = "virtcloud.peer"
KEEP_ALIVE = {"TCP_KEEPIDLE": 30, "TCP_KEEPALIVE": 30, "TCP_KEEPINTVL": 10, "TCP_KEEPCNT": 3}
"""Options of TCP, by their names in the module ``socket``. macOS has TCP_KEEPALIVE instead of TCP_KEEPIDLE."""
CREDENTIALS: Final = struct.Struct("3i")
"""``struct ucred`` of unix(7): process ID, user ID, group ID."""
UNMAPPED_UID: Final = 65534
"""The user ID of all users without a mapping in this user namespace (user_namespaces(7))."""
REQUEST_TIMEOUT_S: Final = 30.0
"""The interval in seconds between SBF's checks of a connection (:meth:`PeerHttpProtocol._check_request`).

The first check closes a connection without a request. Later, SBF closes a connection one to two intervals after its
last answer, or after the last received part of a body that SBF awaits.
"""
PENDING: Final = object()
AWAITING: Final = object()
NAME_LOOKUP_TIMEOUT_S: Final = 10.0
NAME_LOOKUPS: Final = BoundedThreads(4, "look-ups of users' names")


@dataclass(frozen=True, slots=True)
class LocalPeer:
    """A user of this host; ``name`` is None for a user ID without a name on this host."""

    uid: int
    name: str | None


@dataclass(frozen=True, slots=True)
class PeerConnection:
    """The user ID at the other end of a local connection."""

    uid: int

    async def look_up(self) -> LocalPeer:
        """Look up the user's name in another thread, because the user directory may be on the network.

        Raise ServiceBusy after :data:`NAME_LOOKUP_TIMEOUT_S` seconds, including the wait for a free thread. An
        unanswered look-up still occupies its thread.
        """
        lookup = NAME_LOOKUPS.run(partial(user_name, self.uid), NAME_LOOKUP_TIMEOUT_S)
        try:
            return LocalPeer(self.uid, await wait_for(lookup, NAME_LOOKUP_TIMEOUT_S))
        except TimeoutError as error:
            raise ServiceBusy(
                f"user ID {self.uid}: expected the user's name from the user directory of SBF's host within "
                f"{NAME_LOOKUP_TIMEOUT_S:g} s, got no answer: check the directory (getent passwd {self.uid}), or "
                "present a token",
                RETRY_AFTER_S,
            ) from error


class PeerHttpProtocol(AutoHTTPProtocol):  # type: ignore[misc, valid-type] # uvicorn chooses the class when it is imported
    """uvicorn's HTTP protocol, with the peer in the scope of each call over an AF_UNIX socket.

    Closes connections without a complete request. uvicorn would leave these connections open, and each connection uses
    one of the process's file descriptors.
    """

    _request_timer: Timer
    _timers: ClassVar = CoalescedTimers()
    _has_received = False

    def connection_made(self, transport: BaseTransport) -> None:
        """Read the peer credentials once per connection."""
        super().connection_made(transport)
        self._schedule_check(None)
        connection = transport.get_extra_info("socket")
        detect_lost_peer(connection)
        uid = peer_uid(connection)
        if uid is not None:
            self.app: ASGIApp = _with_peer(self.app, PeerConnection(uid))
            make: Callable[..., Any] | None = self.ws_protocol_class  # type: ignore[has-type] # uvicorn's choice
            self.ws_protocol_class = None if make is None else partial(_make_websocket, make, self.app)

    def connection_lost(self, exc: Exception | None) -> None:
        """Cancel the timer of the next check."""
        self._request_timer.cancel()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        """Record that the client sends."""
        self._has_received = True
        super().data_received(data)

    def _schedule_check(self, former: object) -> None:
        self._request_timer = self._timers.call_later(
            self.loop, REQUEST_TIMEOUT_S, partial(self._check_request, former)
        )

    def _check_request(self, former: object) -> None:
        """Close an idle connection, or schedule the next check.

        A connection is idle if it had neither a running nor a new request since the previous check, or if SBF has
        awaited a body since then and no data has arrived.

        ``former`` describes the newest request at the previous check:

        - None if there was no request
        - the request itself if SBF had answered the request
        - :data:`AWAITING` if SBF awaited the request's body
        - :data:`PENDING` in all other cases

        If the connection is a WebSocket, another protocol has replaced this protocol, and no check is needed.
        """
        transport, request = self.transport, self.cycle
        if transport.is_closing() or transport.get_protocol() is not self:
            return
        is_answered, has_received = request is None or request.response_complete, self._has_received
        self._has_received = False
        if is_answered:
            is_idle, state = request is former, request
        else:
            state = AWAITING if self._awaits_body() else PENDING
            is_idle = state is AWAITING and state is former and not has_received
        if is_idle:
            transport.close()
        else:
            self._schedule_check(state)

    def _awaits_body(self) -> bool:
        """Return whether the client must now send a part of the body.

        SBF may not have asked for the body yet (status 100), or may read more slowly than the client sends.
        """
        request = self.cycle
        return bool(request.more_body and not request.waiting_for_100_continue and not self.flow.read_paused)


def _make_websocket(make: Callable[..., Any], app: ASGIApp, **parts: Any) -> Any:  # noqa: ANN401 - uvicorn's protocol
    """Return uvicorn's WebSocket protocol for a connection that changes from HTTP to WebSocket.

    ``app`` processes the calls of this connection.
    """
    protocol = make(**parts)
    protocol.app = app
    return protocol


def detect_lost_peer(connection: socket.socket) -> None:
    """Close a TCP connection about a minute after its peer has vanished (tcp(7)).

    A time limit for WebSocket pings would also end the sessions of slow readers.
    """
    if connection.family != socket.AF_UNIX:
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        for name, value in KEEP_ALIVE.items():
            if (option := getattr(socket, name, None)) is not None:
                connection.setsockopt(socket.IPPROTO_TCP, option, value)


def peer_uid(connection: socket.socket) -> int | None:
    """Return the user ID of the process that connected; None for a connection that is not local."""
    if connection.family != socket.AF_UNIX:
        return None
    credentials = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, CREDENTIALS.size)
    _pid, uid, _gid = CREDENTIALS.unpack(credentials)
    return int(uid)


def user_name(uid: int) -> str | None:
    """Return a user's name (getpwuid(3)); None for a user ID without a name. May block for a long time."""
    try:
        return None if uid == UNMAPPED_UID else pwd.getpwuid(uid).pw_name
    except KeyError:
        return None


async def request_peer(scope: Scope) -> LocalPeer | None:
    """Return the local user who makes a call; None for a call over TCP."""
    peer = scope.get(PEER_KEY)
    if isinstance(peer, PeerConnection):
        return await peer.look_up()
    return peer if isinstance(peer, LocalPeer) else None


def _with_peer(app: ASGIApp, peer: PeerConnection) -> ASGIApp:
    async def call(scope: Scope, receive: Receive, send: Send) -> None:
        await app({**scope, PEER_KEY: peer}, receive, send)

    return call
