"""A minimal client of NFSv4.2 (RFC 8881, RFC 7862) in user space."""

import socket
import struct
from collections.abc import Sequence
from contextlib import AbstractContextManager
from typing import Final, NamedTuple, Self

PROGRAM, VERSION, COMPOUND = 100003, 4, 1
OK, EXIST, INVAL, ROFS, STALE, MINOR_VERS_MISMATCH = 0, 17, 22, 30, 70, 10021
OP_CREATE, OP_GETATTR, OP_GETFH, OP_LOOKUP, OP_PUTFH, OP_PUTROOTFH, OP_READ, OP_READLINK = 6, 9, 10, 15, 22, 24, 25, 27
OP_EXCHANGE_ID, OP_CREATE_SESSION, OP_SEQUENCE = 42, 43, 53
NF4DIR: Final = 2
CHANNEL = struct.pack(">7I", 0, 65536, 65536, 65536, 16, 4, 0)
ANONYMOUS_STATE = bytes(16)
AUTH_SYS = 1
TIMEOUT_S = 10.0


def opaque(data: bytes) -> bytes:
    """Encode variable-length data in XDR (RFC 4506)."""
    return struct.pack(">I", len(data)) + data + bytes(-len(data) % 4)


class Answer(NamedTuple):
    """The status of a request (0: success), and the encoded results of its operations, one after the other."""

    status: int
    results: bytes


class NfsClient(AbstractContextManager["NfsClient"]):
    """A connection to a server, and a session on this connection. All requests claim to be from user ID ``uid``."""

    def __init__(self, address: str, uid: int = 0, port: int = 2049) -> None:
        self._socket = socket.create_connection((address, port), TIMEOUT_S)
        self._uid = uid
        self._xid = self._sequence = 0
        self._session = b""

    def __exit__(self, *_: object) -> None:
        self._socket.close()

    def start_session(self) -> Self:
        owner = opaque(b"test" + self._socket.getsockname()[0].encode())
        answer = self.call(struct.pack(">I8s", OP_EXCHANGE_ID, b"verifier") + owner + struct.pack(">3I", 0, 0, 0))
        client, sequence = struct.unpack_from(">QI", answer.results, 8)
        request = struct.pack(">IQII", OP_CREATE_SESSION, client, sequence, 0) + CHANNEL * 2
        answer = self.call(request + struct.pack(">IIII", 0x40000000, 1, 0, 0))
        self._session = answer.results[8:24]
        return self

    def call(self, *operations: bytes, minor: int = 2) -> Answer:
        """Send a request with exactly these operations. Return the status, and the results of all operations."""
        self._xid += 1
        header = struct.pack(">6I", self._xid, 0, 2, PROGRAM, VERSION, COMPOUND)
        credentials = struct.pack(">I", 0) + opaque(b"test") + struct.pack(">3I", self._uid, self._uid, 0)
        auth = struct.pack(">I", AUTH_SYS) + opaque(credentials) + struct.pack(">II", 0, 0)
        body = header + auth + opaque(b"") + struct.pack(">II", minor, len(operations)) + b"".join(operations)
        self._socket.sendall(struct.pack(">I", len(body) | 1 << 31) + body)
        answer = self._receive()
        status, _tag, count = struct.unpack_from(">3I", answer, 24)
        return Answer(status, answer[36:] if count else b"")

    def ask(self, path: Sequence[str], *operations: bytes, handle: bytes | None = None) -> Answer:
        """Send operations on a file. ``path`` begins at the root or, with ``handle``, at the file of this handle.

        Return the status, and the results of ``operations``.
        """
        self._sequence += 1
        sequence = struct.pack(">I", OP_SEQUENCE) + self._session + struct.pack(">4I", self._sequence, 0, 0, 0)
        start = struct.pack(">I", OP_PUTROOTFH) if handle is None else struct.pack(">I", OP_PUTFH) + opaque(handle)
        lookups = [struct.pack(">I", OP_LOOKUP) + opaque(name.encode()) for name in path]
        answer = self.call(sequence, start, *lookups, *operations)
        return Answer(answer.status, answer.results[44 + 8 * (1 + len(path)) :])

    def read(self, *path: str, handle: bytes | None = None) -> bytes | int:
        """Return the first 4 KiB of a file, or the status of the error."""
        request = struct.pack(">I", OP_READ) + ANONYMOUS_STATE + struct.pack(">QI", 0, 4096)
        answer = self.ask(path, request, handle=handle)
        if answer.status:
            return answer.status
        (length,) = struct.unpack_from(">I", answer.results, 12)
        return answer.results[16 : 16 + length]

    def find_handle(self, *path: str) -> bytes:
        answer = self.ask(path, struct.pack(">I", OP_GETFH))
        assert not answer.status, answer.status
        (length,) = struct.unpack_from(">I", answer.results, 8)
        return answer.results[12 : 12 + length]

    def make_folder(self, *path: str) -> int:
        request = struct.pack(">II", OP_CREATE, NF4DIR) + opaque(path[-1].encode()) + struct.pack(">II", 0, 0)
        return self.ask(path[:-1], request).status

    def _receive(self) -> bytes:
        answer, last = b"", False
        while not last:
            (mark,) = struct.unpack(">I", self._receive_exactly(4))
            last = bool(mark >> 31)
            answer += self._receive_exactly(mark & 0x7FFFFFFF)
        return answer

    def _receive_exactly(self, size: int) -> bytes:
        data = b""
        while len(data) < size:
            part = self._socket.recv(size - len(data))
            if not part:
                raise ConnectionError("the server closed the connection")
            data += part
        return data
