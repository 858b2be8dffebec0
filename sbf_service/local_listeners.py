"""The listeners on SBF's AF_UNIX sockets, which listen again if another program removes the socket file."""

import asyncio
import socket
from collections.abc import Callable
from typing import Final

from sbf_service.listen_sockets import BACKLOG, find_removed_files, reopen
from sbf_service.log import get_log
from virtcloud.model.errors import BadInput

CHECK_TICKS: Final = 50
"""SBF checks the socket files once in this number of uvicorn's ticks of 0.1 s."""

log = get_log(__name__)


class LocalListeners:
    """Accepts the connections of the AF_UNIX sockets in ``sockets``, which can also contain TCP sockets.

    A new socket replaces a lost socket in ``sockets``, and its asyncio server the former server in ``servers``.
    """

    def __init__(
        self,
        sockets: list[socket.socket],
        servers: list[asyncio.Server],
        make_protocol: Callable[[], asyncio.Protocol],
    ) -> None:
        """Prepare the listeners, without accepting connections yet."""
        self._sockets, self._servers, self._make_protocol = sockets, servers, make_protocol
        self._server_of: dict[socket.socket, asyncio.Server] = {}
        self._lost_paths = set[str]()

    async def start(self) -> None:
        """Start to accept connections."""
        for opened in self._sockets:
            if opened.family == socket.AF_UNIX:
                await self._serve(opened)

    async def replace_lost(self) -> None:
        """Replace each socket whose file another program has removed. Established connections stay. Idempotent.

        Log once that a socket cannot be replaced; the next call tries again.
        """
        for lost in find_removed_files(self._sockets):
            path = lost.getsockname()
            try:
                opened = reopen(lost)
            except BadInput as error:
                if path not in self._lost_paths:
                    log.warning("socket_file_lost", path=path, why=error)
                self._lost_paths.add(path)
                continue
            self._lost_paths.discard(path)
            self._sockets[self._sockets.index(lost)] = opened
            former = self._server_of.pop(lost)
            former.close()
            self._servers.remove(former)
            await self._serve(opened)
            log.warning("socket_file_replaced", path=path)

    async def _serve(self, opened: socket.socket) -> None:
        loop = asyncio.get_running_loop()
        server = await loop.create_unix_server(self._make_protocol, sock=opened, backlog=BACKLOG)
        self._server_of[opened] = server
        self._servers.append(server)
