"""Byte streams of sessions with guests, over WebSockets. Only this module imports websockets.

websockets is imported when the first session is opened.
"""

import select
import socket
import ssl
import sys
import threading
import time
from collections.abc import Mapping
from contextlib import ExitStack, suppress
from types import TracebackType
from typing import Any, Self
from urllib.parse import SplitResult, urlencode, urlsplit

from virtcloud.model.errors import BadInput, ServiceUnreachable
from virtcloud.model.guest_sessions import END_OF_INPUT

CLOSE_S = 2.0
MAX_MESSAGE = 1 << 20
CHUNK = 1 << 14
"""Maximum bytes of a message. A socket that poll(2) reports as writable accepts a message without blocking."""
POLL_MS = 1000
KEEPALIVE = tuple(
    (getattr(socket, name), seconds)
    for name, seconds in (("TCP_KEEPIDLE", 30), ("TCP_KEEPALIVE", 30), ("TCP_KEEPINTVL", 10), ("TCP_KEEPCNT", 3))
    if hasattr(socket, name)  # macOS has TCP_KEEPALIVE instead of TCP_KEEPIDLE
)
"""TCP options that detect a lost peer after a minute (tcp(7)). WebSocket pings are not reliable, because a slow reader
delays the answers."""


class HandshakeRefusedError(Exception):
    """The server answered with an HTTP status instead of opening the stream."""

    def __init__(self, status: int, content: bytes) -> None:
        """Store the answer."""
        super().__init__(status)
        self.status = status
        self.content = content


class SessionStream:
    """A byte stream in both directions. One thread can send while another thread receives.

    Each method raises ServiceUnreachable if the connection is lost.
    """

    def __init__(self, opening: Any) -> None:  # noqa: ANN401 - a call of websockets.sync.client.connect
        """Store an open WebSocket, which :meth:`close` closes."""
        self._closing = ExitStack()
        self._connection = self._closing.enter_context(opening)
        self._sending = threading.Lock()

    def __enter__(self) -> Self:
        """Return the stream. The end of the context closes the stream."""
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        """Close the stream."""
        self.close()

    def send(self, data: bytes) -> None:
        """Send bytes. Block until the other side has read enough of the earlier bytes."""
        for start in range(0, len(data), CHUNK):
            self._send(data[start : start + CHUNK])

    def send_end(self) -> None:
        """Send the message that ends this direction. The other side can continue to send."""
        self._send(END_OF_INPUT)

    def send_text(self, text: str) -> None:
        """Send a text message, which is not part of the byte stream."""
        self._send(text)

    def _send(self, message: str | bytes) -> None:
        from websockets.exceptions import ConnectionClosed  # noqa: PLC0415 - see the module's docstring

        try:
            with self._sending:
                self._wait_writable()
                self._connection.send(message)
        except ConnectionClosed as error:
            raise ServiceUnreachable(f"the session has ended: {_describe(error)}") from error

    def _wait_writable(self) -> None:
        """Wait until the socket accepts a message, or until the connection has ended.

        While the library websockets sends, it receives nothing. With a blocking socket, each side could wait for ever
        until the other side reads.
        """
        while (descriptor := self._connection.socket.fileno()) >= 0:
            poll = select.poll()
            poll.register(descriptor, select.POLLOUT)
            if poll.poll(POLL_MS):
                return

    def receive(self) -> bytes:
        """Return the next bytes, or ``b""`` if the other side has ended its direction or the session."""
        from websockets.exceptions import ConnectionClosed, ConnectionClosedOK  # noqa: PLC0415 - as above

        while True:
            try:
                message = self._connection.recv()
            except ConnectionClosedOK:
                return b""
            except ConnectionClosed as error:
                raise ServiceUnreachable(f"the session was interrupted: {_describe(error)}") from error
            if message == END_OF_INPUT:
                return b""
            if isinstance(message, bytes) and message:
                return message

    def close(self) -> None:
        """Close the stream. Idempotent. If a thread is still sending after ``CLOSE_S`` seconds, end the connection."""
        if self._sending.acquire(timeout=CLOSE_S):
            self._sending.release()
        else:
            with suppress(OSError):  # the connection may have ended meanwhile
                self._connection.socket.shutdown(socket.SHUT_RDWR)
        with suppress(OSError):
            self._closing.close()


def open_stream(  # noqa: PLR0913, PLR0917 - the parts of a call
    url: str,
    path: str,
    query: Mapping[str, str],
    headers: Mapping[str, str],
    agent: str,
    tls: ssl.SSLContext | None,
    *,
    timeout: float,
) -> SessionStream:
    """Open a stream to the server at ``url``. Wait at most ``timeout`` seconds for the answer.

    Raise HandshakeRefusedError if the server answers with an error. Raise ServiceUnreachable if there is no answer.
    Raise BadInput if the library websockets is not installed.
    """
    try:
        from websockets.exceptions import InvalidHandshake, InvalidStatus  # noqa: PLC0415 - as above
    except ImportError as error:
        raise BadInput(f"sessions with guests need {error.name}; install it with: pip install websockets") from error
    target = f"{path}?{urlencode(query)}" if query else path
    options = {"additional_headers": dict(headers), "user_agent_header": agent}
    try:
        return SessionStream(_connect(urlsplit(url), target, tls, timeout, options))
    except InvalidStatus as error:
        raise HandshakeRefusedError(error.response.status_code, error.response.body or b"") from error
    except (OSError, InvalidHandshake) as error:
        reason = "it timed out" if isinstance(error, TimeoutError) else getattr(error, "strerror", None) or str(error)
        raise ServiceUnreachable(
            f"SBF does not answer at {url}: {reason}; check that SBF runs (systemctl status virtcloud-sbf), and that a "
            "proxy between you and SBF passes WebSockets"
        ) from error


def _connect(
    server: SplitResult, target: str, tls: ssl.SSLContext | None, timeout: float, options: Mapping[str, Any]
) -> Any:  # noqa: ANN401 - a connection of websockets
    from websockets.sync.client import connect  # noqa: PLC0415 - as above

    deadline = time.monotonic() + timeout
    connection = _connect_socket(server.scheme, server.hostname, server.port, server.path, timeout)
    base = "sbf" if server.scheme == "unix" else server.netloc + server.path.rstrip("/")
    try:
        return connect(
            f"{'ws' if tls is None else 'wss'}://{base}{target}",
            sock=connection,
            compression=None,
            proxy=None,
            open_timeout=max(0.1, deadline - time.monotonic()),
            close_timeout=CLOSE_S,
            ping_interval=None,
            max_size=MAX_MESSAGE,
            **({} if tls is None else {"ssl": tls, "server_hostname": server.hostname}),
            **options,
        )
    except BaseException:
        connection.close()
        raise


def _connect_socket(scheme: str, host: str | None, port: int | None, path: str, timeout: float) -> socket.socket:
    """Return a connected socket without a timeout, because the other side may stop reading for any length of time."""
    if scheme == "unix":
        connection = socket.socket(socket.AF_UNIX)
        try:
            connection.settimeout(timeout)
            connection.connect(path)
        except BaseException:
            connection.close()
            raise
        connection.settimeout(None)
        return connection
    connection = socket.create_connection((host or "", port or (443 if scheme == "https" else 80)), timeout)
    connection.settimeout(None)
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for option, value in KEEPALIVE:
        connection.setsockopt(socket.IPPROTO_TCP, option, value)
    if sys.platform == "darwin":  # Linux reports a socket as writable only if a third of its buffer is free
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_SNDLOWAT, 2 * CHUNK)
    return connection


def _describe(error: Any) -> str:  # noqa: ANN401 - an exception of websockets
    received = error.rcvd
    return (received.reason if received is not None else "") or "the connection was lost"
