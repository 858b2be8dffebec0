"""The agent's connection to the management socket of an OpenVPN server."""

import os
import select
import socket
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Final, Protocol

from virtcloud.agent.gateway.management_messages import ManagementEvent, MessageParser, ServerFailed
from virtcloud.model.errors import Unreachable

CONNECT_S: Final = 10.0
"""Time limit in seconds within which a new server must listen."""
ANSWER_S: Final = 10.0
"""Time limit in seconds of a server's answer."""
MAX_LINE: Final = 65536


class ManagementSocket(Protocol):
    """A connection to an OpenVPN server."""

    def send(self, command: str) -> None:
        """Send a command. Raise Unreachable if the server has ended or does not read."""

    def receive(self, seconds: float) -> list[ManagementEvent]:
        """Wait at most ``seconds`` for events, and return them. Raise Unreachable if the server has ended."""

    def wake(self) -> None:
        """Make a waiting call of `receive` return at once. Thread-safe."""

    def close(self) -> None:
        """Close the connection. The server continues."""


class UnixManagementSocket:
    """A connection to a server's Unix socket."""

    def __init__(self, path: Path, limit_s: float = CONNECT_S, has_ended: Callable[[], bool] = lambda: False) -> None:
        """Connect to the socket at ``path``, and wait at most ``limit_s`` seconds until the server listens.

        Raise Unreachable if the server has ended or the time limit is exceeded.
        """
        self._path = path
        self._parser = MessageParser()
        self._buffer = b""
        self._socket = _connect(path, limit_s, has_ended)
        self._socket.settimeout(ANSWER_S)
        self._woken, self._waker = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        self._is_closed, self._lock = False, threading.Lock()
        self._ready = select.poll()
        for descriptor in (self._socket.fileno(), self._woken):
            self._ready.register(descriptor, select.POLLIN)

    def send(self, command: str) -> None:
        """Send a command."""
        try:
            self._socket.sendall(f"{command}\n".encode())
        except OSError as error:
            raise Unreachable(f"OpenVPN does not read from {self._path}: {error}") from error

    def receive(self, seconds: float) -> list[ManagementEvent]:
        """Wait at most ``seconds`` for events, and return them."""
        ready = {descriptor for descriptor, _ in self._ready.poll(max(seconds, 0) * 1000)}
        if self._woken in ready:
            os.read(self._woken, 4096)
        if self._socket.fileno() not in ready:
            return []
        try:
            data = self._socket.recv(65536)
        except OSError as error:
            raise Unreachable(f"OpenVPN closed {self._path}: {error}") from error
        if not data:
            raise Unreachable(f"OpenVPN closed {self._path}")
        return self._parse(data)

    def wake(self) -> None:
        """Make a waiting call of `receive` return at once. Thread-safe, also after `close`."""
        with self._lock, suppress(BlockingIOError):  # the pipe is full
            if not self._is_closed:  # the closed pipe's descriptor may belong to another file now
                os.write(self._waker, b"w")

    def close(self) -> None:
        """Close the connection."""
        with self._lock:
            if not self._is_closed:
                self._is_closed = True
                self._socket.close()
                os.close(self._woken)
                os.close(self._waker)

    def _parse(self, data: bytes) -> list[ManagementEvent]:
        *lines, self._buffer = (self._buffer + data).split(b"\n")
        self._buffer = self._buffer[:MAX_LINE]
        texts = (line.decode(errors="replace").rstrip("\r") for line in lines)
        return [event for text in texts if (event := self._parser.feed(text)) is not None]


def wait_for_event(connection: ManagementSocket, kind: type[ManagementEvent], count: int = 1) -> list[ManagementEvent]:
    """Receive events until ``count`` events of this kind have arrived. Return all received events in order.

    Raise Unreachable, with OpenVPN's reason if there is one, if OpenVPN ends or `ANSWER_S` seconds have passed.
    """
    events: list[ManagementEvent] = []
    deadline = time.monotonic() + ANSWER_S
    while (remaining := deadline - time.monotonic()) > 0:
        events += connection.receive(remaining)
        for event in events:
            if isinstance(event, ServerFailed):
                raise Unreachable(f"OpenVPN ended: {event.text}")
        if sum(isinstance(event, kind) for event in events) >= count:
            return events
    raise Unreachable(f"OpenVPN did not answer within {ANSWER_S:.0f} s")


def _connect(path: Path, limit_s: float, has_ended: Callable[[], bool]) -> socket.socket:
    deadline = time.monotonic() + limit_s
    while True:
        connection = socket.socket(socket.AF_UNIX)
        try:
            connection.settimeout(ANSWER_S)
            connection.connect(str(path))
        except OSError as error:
            connection.close()
            if time.monotonic() >= deadline or has_ended():
                raise Unreachable(f"OpenVPN does not listen at {path}: {error}") from error
            time.sleep(0.02)
        else:
            return connection
