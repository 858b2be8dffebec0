"""The protocol of the control server. A request is one line of JSON; frames then carry a program's streams.

A frame is a letter, a length of four bytes, and that many bytes. Frames to the node: ``i`` input, ``e`` end of input,
``w`` window size. Frames from the node: ``o`` output, ``r`` error output, ``x`` exit code, ``f`` failure.
"""

import json
import socket
import struct
from typing import Any

HEADER = struct.Struct("!cI")
LINE_LIMIT = 1 << 20


def send_line(connection: socket.socket, message: dict[str, Any]) -> None:
    """Send one JSON object as a line."""
    connection.sendall(json.dumps(message).encode() + b"\n")


def receive_line(connection: socket.socket) -> dict[str, Any]:
    """Receive one line and no bytes after it. Raise ConnectionError if the peer disconnected."""
    line = bytearray()
    while not line.endswith(b"\n"):
        seen = connection.recv(LINE_LIMIT, socket.MSG_PEEK)
        if not seen:
            raise ConnectionError("the connection ended before an answer came")
        line += connection.recv(seen.find(b"\n") + 1 or len(seen))
    message: dict[str, Any] = json.loads(line)
    return message


def send_frame(connection: socket.socket, letter: bytes, payload: bytes = b"") -> None:
    """Send one frame."""
    connection.sendall(HEADER.pack(letter, len(payload)) + payload)


def receive_frame(connection: socket.socket) -> tuple[bytes, bytes]:
    """Receive one frame. Raise ConnectionError if the peer disconnected."""
    letter, length = HEADER.unpack(_exactly(connection, HEADER.size))
    return letter, _exactly(connection, length)


def _exactly(connection: socket.socket, size: int) -> bytes:
    data = bytearray()
    while len(data) < size:
        part = connection.recv(size - len(data))
        if not part:
            raise ConnectionError("the connection ended within a frame")
        data += part
    return bytes(data)
