"""Asks the file servers in several network namespaces whether they answer: procedure NULL of NFS (RFC 7530, 15.1).

The agent runs `main` with ``python -I -S``. The program uses only the standard library. Its arguments are the port, the
time limit in seconds, and the descriptors of the namespaces. It prints one word for each namespace: ``answers`` or
``silent``. A server that closes the connection answers: it may have as many connections as it accepts.
"""

import select
import socket
import struct
import sys
import time
from collections.abc import Sequence
from contextlib import suppress

from virtcloud.agent.host_services.server_isolation import join_network_namespace

CALL = struct.pack("!10I", 1, 0, 2, 100003, 4, 0, 0, 0, 0, 0)
"""Transaction 1, call, RPC version 2, NFS version 4, procedure 0, and no credentials (RFC 5531)."""
RECORD = struct.pack("!I", 1 << 31 | len(CALL)) + CALL


def main(arguments: Sequence[str]) -> None:
    """Ask all servers at the same time. Print one line."""
    port, limit_s, *namespaces = arguments
    waiting = {number: opened for number, text in enumerate(namespaces) if (opened := _open(int(text), int(port)))}
    silent, deadline = set(waiting), time.monotonic() + float(limit_s)
    while silent and (left := deadline - time.monotonic()) > 0:
        asked = {waiting[number]: number for number in silent}
        readable, _, _ = select.select(asked, [], [], left)
        silent -= {asked[connection] for connection in readable}
    silent |= set(range(len(namespaces))) - set(waiting)
    words = ("silent" if number in silent else "answers" for number in range(len(namespaces)))
    sys.stdout.write(" ".join(words))


def _open(namespace: int, port: int) -> socket.socket | None:
    """Return a connection in a namespace with the call sent. Return None if nobody listens."""
    join_network_namespace(namespace)
    connection = socket.socket()
    connection.settimeout(1)  # a full backlog: the server does not accept connections
    with suppress(OSError):
        connection.connect(("127.0.0.1", port))
        connection.sendall(RECORD)
        return connection
    connection.close()
    return None
