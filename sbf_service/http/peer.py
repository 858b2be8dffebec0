"""Who is at the other end of an AF_UNIX socket: the kernel says so (SO_PEERCRED, unix(7))."""

import pwd
import socket
import struct
from asyncio import BaseTransport
from dataclasses import dataclass

from starlette.types import ASGIApp, Receive, Scope, Send
from uvicorn.protocols.http.auto import AutoHTTPProtocol

KEY = "virtcloud.peer"
CREDENTIALS = struct.Struct("3i")
NOBODY = 65534
"""The number that stands for every user whom this user namespace does not know (user_namespaces(7))."""


@dataclass(frozen=True, slots=True)
class Peer:
    """A user of this machine; ``name`` is None when the machine has no name for it."""

    uid: int
    name: str | None


class Protocol(AutoHTTPProtocol):  # type: ignore[misc, valid-type] # uvicorn chooses the class when it is imported
    """HTTP as uvicorn speaks it; every call's scope says who the peer is, where the kernel knows."""

    def connection_made(self, transport: BaseTransport) -> None:
        """Ask once for each connection."""
        super().connection_made(transport)
        peer = peer_of(transport.get_extra_info("socket"))
        if peer is not None:
            self.app: ASGIApp = _with_peer(self.app, peer)


def peer_of(connection: socket.socket) -> Peer | None:
    """Say who connected; None for a connection that is not of this machine's own kind."""
    if connection.family != socket.AF_UNIX:
        return None
    said = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, CREDENTIALS.size)
    _pid, uid, _gid = CREDENTIALS.unpack(said)
    return Peer(uid, _name(uid))


def _name(uid: int) -> str | None:
    try:
        return None if uid == NOBODY else pwd.getpwuid(uid).pw_name
    except KeyError:
        return None


def _with_peer(app: ASGIApp, peer: Peer) -> ASGIApp:
    async def call(scope: Scope, receive: Receive, send: Send) -> None:
        await app({**scope, KEY: peer}, receive, send)

    return call
