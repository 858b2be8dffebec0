"""The protocol between a lab's control server (``control_server.py``) and its clients.

A request is one line of JSON. After a request ``exec``, which runs a program, both sides send frames. A frame consists
of a letter, the length of the payload (four bytes), and the payload. Frames of the client: ``i`` input, ``e`` end of
input, ``w`` window size. Frames of the server: ``o`` output, ``r`` error output, ``x`` exit code, ``f`` failure.
"""

import contextlib
import json
import select
import socket
import struct
from typing import Any

HEADER = struct.Struct("!cI")
LINE_LIMIT = 1 << 20
CHUNK = 65536
CLOSE_TIMEOUT_S = 5.0


def send_line(connection: socket.socket, message: dict[str, Any]) -> None:
    """Send one JSON object as a line."""
    connection.sendall(json.dumps(message).encode() + b"\n")


def receive_line(connection: socket.socket) -> dict[str, Any]:
    """Receive one line, and leave the bytes after the line unread. Return the JSON object of the line.

    Raise ConnectionError if the peer disconnected. Raise ValueError if the line is not JSON.
    """
    line = bytearray()
    while not line.endswith(b"\n"):
        available = connection.recv(LINE_LIMIT, socket.MSG_PEEK)
        if not available:
            raise ConnectionError("the connection ended before an answer was received")
        line += connection.recv(available.find(b"\n") + 1 or len(available))
    message: dict[str, Any] = json.loads(line)
    return message


def send_frame(connection: socket.socket, letter: bytes, payload: bytes = b"") -> None:
    """Send one frame."""
    connection.sendall(HEADER.pack(letter, len(payload)) + payload)


def receive_frame(connection: socket.socket) -> tuple[bytes, bytes]:
    """Receive one frame. Raise ConnectionError if the peer disconnected."""
    letter, length = HEADER.unpack(_receive_exactly(connection, HEADER.size))
    return letter, _receive_exactly(connection, length)


def _receive_exactly(connection: socket.socket, size: int) -> bytes:
    data = bytearray()
    while len(data) < size:
        part = connection.recv(size - len(data))
        if not part:
            raise ConnectionError("the connection ended within a frame")
        data += part
    return bytes(data)


def wait_until_disconnected(connection: socket.socket) -> None:
    """Wait until the peer disconnects. Read no data, so that another thread can still read earlier data of the peer."""
    disconnected = select.poll()
    disconnected.register(connection, select.POLLRDHUP)
    disconnected.poll()


def read_until_end(connection: socket.socket) -> None:
    """Read the client's remaining input until the client disconnects.

    With unread input, close() would reset the connection, and the client would lose the last frames.
    """
    with contextlib.suppress(OSError):
        connection.shutdown(socket.SHUT_WR)
        connection.settimeout(CLOSE_TIMEOUT_S)
        while connection.recv(CHUNK):
            continue
