"""Probes the file servers in several network namespaces by the procedure NULL of NFS (RFC 7530, 15.1).

The agent runs `main` with ``python -I -S``, so the program uses only the standard library. The arguments are the port,
the time limit in seconds, and the descriptors of the namespaces. The output is one word for each namespace: ``answers``
or ``silent``. A server that closes the connection counts as answering: it may have reached its limit of connections.
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
"""The RPC call: transaction 1, RPC version 2, NFS version 4, procedure 0, no credentials (RFC 5531)."""
RECORD = struct.pack("!I", 1 << 31 | len(CALL)) + CALL


def main(arguments: Sequence[str]) -> None:
    """Probe all servers at the same time, and print one word for each namespace."""
    port, limit_s, *namespaces = arguments
    waiting = {number: opened for number, text in enumerate(namespaces) if (opened := _open(int(text), int(port)))}
    silent, deadline = set(waiting), time.monotonic() + float(limit_s)
    asked, poll = {opened.fileno(): number for number, opened in waiting.items()}, select.poll()
    for descriptor in asked:
        poll.register(descriptor, select.POLLIN)
    while silent and (left := deadline - time.monotonic()) > 0:
        for descriptor, _ in poll.poll(left * 1000):
            poll.unregister(descriptor)
            silent.discard(asked[descriptor])
    silent |= set(range(len(namespaces))) - set(waiting)
    words = ("silent" if number in silent else "answers" for number in range(len(namespaces)))
    sys.stdout.write(" ".join(words))


def _open(namespace: int, port: int) -> socket.socket | None:
    join_network_namespace(namespace)
    connection = socket.socket()
    connection.settimeout(1)  # a hanging server accepts no connection when its backlog is full
    with suppress(OSError):
        connection.connect(("127.0.0.1", port))
        connection.sendall(RECORD)
        return connection
    connection.close()
    return None
