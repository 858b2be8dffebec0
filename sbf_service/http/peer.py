"""Who is at the other end of an AF_UNIX socket: the kernel says so (SO_PEERCRED, unix(7))."""

import pwd
import socket
import struct
from asyncio import BaseTransport
from dataclasses import dataclass
from functools import partial

from starlette.types import ASGIApp, Receive, Scope, Send
from uvicorn.protocols.http.auto import AutoHTTPProtocol

from sbf_service.threads import BoundedThreads

KEY = "virtcloud.peer"
CREDENTIALS = struct.Struct("3i")
NOBODY = 65534
"""The number that stands for every user whom this user namespace does not know (user_namespaces(7))."""
PATIENCE_S = 10.0
LOOKUPS = BoundedThreads(4, "look-ups of users' names")
"""Threads for the whole process, as the directory of names is one for the whole machine."""


@dataclass(frozen=True, slots=True)
class Peer:
    """A user of this machine; ``name`` is None when the machine has no name for it."""

    uid: int
    name: str | None


@dataclass(frozen=True, slots=True)
class Connected:
    """Who is at the other end of a local connection, by number; the name is looked up when it is needed."""

    uid: int

    async def peer(self) -> Peer:
        """Look the name up, in a thread: it may be in a directory on the network. Raise ServiceBusy."""
        return Peer(self.uid, await LOOKUPS.run(partial(name_of, self.uid), PATIENCE_S))


class Protocol(AutoHTTPProtocol):  # type: ignore[misc, valid-type] # uvicorn chooses the class when it is imported
    """HTTP as uvicorn speaks it; every call's scope says who the peer is, where the kernel knows."""

    def connection_made(self, transport: BaseTransport) -> None:
        """Ask the kernel once for each connection."""
        super().connection_made(transport)
        uid = uid_of(transport.get_extra_info("socket"))
        if uid is not None:
            self.app: ASGIApp = _with_peer(self.app, Connected(uid))


def uid_of(connection: socket.socket) -> int | None:
    """Return the number of the user who connected; None for a connection that is not local."""
    if connection.family != socket.AF_UNIX:
        return None
    said = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, CREDENTIALS.size)
    _pid, uid, _gid = CREDENTIALS.unpack(said)
    return int(uid)


def name_of(uid: int) -> str | None:
    """Look up a user's name (getpwuid(3)), which may take long; None when this machine has none for it."""
    try:
        return None if uid == NOBODY else pwd.getpwuid(uid).pw_name
    except KeyError:
        return None


async def peer_of(scope: Scope) -> Peer | None:
    """Return the local user who makes a call, None for others."""
    found = scope.get(KEY)
    if isinstance(found, Connected):
        return await found.peer()
    return found if isinstance(found, Peer) else None


def _with_peer(app: ASGIApp, connected: Connected) -> ASGIApp:
    async def call(scope: Scope, receive: Receive, send: Send) -> None:
        await app({**scope, KEY: connected}, receive, send)

    return call
