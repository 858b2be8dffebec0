"""The guest's side of a session as a byte stream: a TCP connection, the console, or the console's log."""

import os
import socket
import threading
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Protocol

from virtcloud.agent.guests.consoles import GuestConsoles, list_log_files
from virtcloud.model.errors import Refused

CHUNK = 1 << 16
FOLLOW_S = 0.3
"""Pause in seconds between two readings of a log that a user follows."""
MAX_BACKLOG = 256
"""Limit of queued pieces of a console's output for a slow user. Beyond the limit, the oldest pieces are discarded."""


class GuestChannel(Protocol):
    """A byte stream of a guest. One thread calls ``receive``. Another thread calls the other methods."""

    def receive(self) -> bytes:
        """Wait for the next bytes, and return them. Return ``b""`` at the end of the stream."""

    def send(self, data: bytes) -> None:
        """Send bytes to the guest."""

    def send_end(self) -> None:
        """Signal to the guest that no further bytes will be sent. The guest can still send."""

    def close(self) -> None:
        """End both directions, so that a waiting call of ``receive`` returns. Idempotent."""


class TcpChannel:
    """A TCP connection to a guest."""

    def __init__(self, connection: socket.socket) -> None:
        """Store a connection. TCP ends the connection if the guest does not answer for 30 s."""
        self._connection = connection
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        options = {
            socket.TCP_KEEPIDLE: 15,
            socket.TCP_KEEPINTVL: 5,
            socket.TCP_KEEPCNT: 3,
            socket.TCP_USER_TIMEOUT: 30_000,
        }
        for option, value in options.items():
            connection.setsockopt(socket.IPPROTO_TCP, option, value)

    def receive(self) -> bytes:
        """Wait for the next bytes, and return them. Return ``b""`` if the connection was closed or lost."""
        try:
            return self._connection.recv(CHUNK)
        except OSError:
            return b""

    def send(self, data: bytes) -> None:
        """Send bytes to the guest. Raise Refused if the connection is lost."""
        try:
            self._connection.sendall(data)
        except OSError as error:
            raise Refused(f"the connection to the guest was lost: {error.strerror}") from error

    def send_end(self) -> None:
        """Close the direction to the guest."""
        with suppress(OSError):
            self._connection.shutdown(socket.SHUT_WR)

    def close(self) -> None:
        """Close both directions."""
        with suppress(OSError):
            self._connection.shutdown(socket.SHUT_RDWR)


class ConsoleChannel:
    """The console of a guest, to which several users can be connected at the same time."""

    def __init__(self) -> None:
        """Create a channel without a console. `open_console` connects the channel to a console."""
        self._changed = threading.Condition()
        self._output: deque[bytes] = deque(maxlen=MAX_BACKLOG)
        self._ended = False
        self.write: Callable[[bytes], None] = lambda _data: None

    def append(self, data: bytes) -> None:
        """Queue output of the console. ``b""`` means that the console or the session has ended."""
        with self._changed:
            if data:
                self._output.append(data)
            else:
                self._ended = True
            self._changed.notify()

    def receive(self) -> bytes:
        """Wait for the next output, and return it. Return ``b""`` if the guest or the session has ended."""
        with self._changed:
            self._changed.wait_for(lambda: self._output or self._ended)
            return self._output.popleft() if self._output else b""

    def send(self, data: bytes) -> None:
        """Send input to the console. Raise Refused if the guest has ended."""
        self.write(data)

    def send_end(self) -> None:
        """Do nothing: a console has no end of input."""

    def close(self) -> None:
        """End the session."""
        self.append(b"")


class LogChannel:
    """The log of a guest's console: the stored files, then new output if the user follows the log."""

    def __init__(self, log_file: Path, *, follow: bool) -> None:
        """Create a channel that reads the current log ``log_file`` and its older files.

        If ``follow`` is true, `receive` waits for new output at the end of the log. Otherwise, raise Refused if no log
        exists.
        """
        self._log_file = log_file
        self._follow = follow
        self._closed = threading.Event()
        self._pieces = self._read()
        if not any(path.exists() for path in list_log_files(log_file)) and not follow:
            raise Refused("the guest has no console log yet: the guest has not written to its console")

    def receive(self) -> bytes:
        """Return the next bytes of the log. Return ``b""`` at the log's end, or when the session has ended."""
        return next(self._pieces, b"")

    def _read(self) -> Iterator[bytes]:
        for path in list_log_files(self._log_file)[:-1]:
            with _open_log(path) as descriptor:
                yield from _read_all(descriptor)
        while not self._closed.is_set():
            with _open_log(self._log_file) as descriptor:
                yield from _read_all(descriptor)
                while self._follow and not self._closed.wait(FOLLOW_S) and _is_current(self._log_file, descriptor):
                    yield from _read_all(descriptor)
                yield from _read_all(descriptor)
            if not self._follow:
                return

    def send(self, data: bytes) -> None:
        """Discard input: a log is read-only."""

    def send_end(self) -> None:
        """Do nothing: a log is read-only."""

    def close(self) -> None:
        """End the session."""
        self._closed.set()


@contextmanager
def _open_log(path: Path) -> Iterator[int | None]:
    """Yield a descriptor of a log, or None if the file is missing, is a symbolic link or cannot be read."""
    with ExitStack() as stack:
        descriptor = None
        with suppress(OSError):
            descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK)
            stack.callback(os.close, descriptor)
        yield descriptor


def _read_all(descriptor: int | None) -> Iterator[bytes]:
    while descriptor is not None and (data := os.read(descriptor, CHUNK)):
        yield data


def _is_current(path: Path, descriptor: int | None) -> bool:
    """Return whether the open file is still at ``path``: a rotation creates a new file at ``path``."""
    try:
        found = path.stat()
    except FileNotFoundError:
        return descriptor is None
    if descriptor is None:
        return False
    opened = os.fstat(descriptor)
    return (found.st_dev, found.st_ino) == (opened.st_dev, opened.st_ino)


@contextmanager
def open_console(consoles: GuestConsoles, domain: str) -> Iterator[ConsoleChannel]:
    """Yield a channel that is connected to a domain's console. Raise Refused if the guest does not run."""
    channel = ConsoleChannel()
    with consoles.connect(domain, channel.append) as write:
        channel.write = write
        yield channel


@contextmanager
def open_tcp(connection: AbstractContextManager[socket.socket]) -> Iterator[TcpChannel]:
    """Open a connection, yield a channel that uses the connection, and close the connection at the end of the block."""
    with connection as opened:
        yield TcpChannel(opened)
