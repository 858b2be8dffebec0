"""Serves the metadata of a cluster's guests by HTTP, in the network namespace of the cluster's dnsmasq.

The agent runs `main` with ``python -I -S``, so the program uses only the standard library. The steps are:

1. print ``apart`` and the process ID, and read one line of JSON: the specification and the documents
2. join the network namespace, listen, drop all privileges, and close the standard output
3. answer requests, until the agent kills the process

The documents contain private keys. The documents are only in this process's memory, which processes of the same user
cannot read. The source address of a request identifies the guest (`guest_identity`), without credentials.

A guest cannot disturb other guests: the kernel accepts few connections per second from each guest. The program reads at
most `HEAD_BYTES` of a request. The program serves at most `CONNECTIONS` connections of a guest at once, each for at
most `LIMIT_S` seconds. Each connection carries one request (RFC 9112, 9.6: ``Connection: close``).
"""

import ipaddress
import os
import socket
import sys
import threading
import time
from collections import Counter
from collections.abc import Mapping
from contextlib import suppress
from http import HTTPStatus

from virtcloud.agent.host_services.server_isolation import (
    close_input,
    drop_privileges,
    forbid_inspection,
    fork_from_agent,
    join_network_namespace,
    limit_resources,
    read_specification,
)

HEAD_BYTES, LIMIT_S = 8192, 10.0
CONNECTIONS, ALL_CONNECTIONS = 4, 128
"""Limits of open connections: of each guest, and of all guests together."""
STACK_BYTES = 256 << 10
PAUSE_S = 0.1
"""Seconds of pause after an error of the listening socket."""
LATEST = "latest"
VERSIONS = ("2009-04-04", LATEST)
"""The supported versions of the data source EC2, all with the same documents."""
USER_DATA = "user-data"
METHODS = ("GET", "HEAD")
END_OF_HEAD = b"\r\n\r\n"
Documents = Mapping[str, str]


def main() -> None:
    """Serve metadata until the process is killed. Exit with code 1 and a message if the start fails."""
    try:
        server = _start()
    except OSError as error:
        sys.exit(str(error))
    server.serve()


def _start() -> "MetadataServer":
    os.dup2(1, 2)
    fork_from_agent()
    spec = read_specification()
    join_network_namespace(spec["namespace"])
    listener = _listen(spec["port"])
    limit_resources()
    drop_privileges(spec["uid"], spec["gid"], ())
    forbid_inspection()  # necessary: fs.suid_dumpable may permit inspection after a change of the user
    threading.stack_size(STACK_BYTES)
    os.chdir("/")
    close_input()
    os.dup2(0, 1)
    os.dup2(0, 2)
    return MetadataServer(listener, spec["guests"], spec["addresses"])


def _listen(port: int) -> socket.socket:
    dual = socket.has_dualstack_ipv6()
    family = socket.AF_INET6 if dual else socket.AF_INET
    return socket.create_server(("", port), family=family, backlog=ALL_CONNECTIONS, dualstack_ipv6=dual)


class MetadataServer:
    """Answers the requests of guests. A separate thread serves each connection."""

    def __init__(self, listener: socket.socket, guests: list[Documents], addresses: Mapping[str, int]) -> None:
        """Create a server.

        ``addresses`` maps a source address to an index in ``guests``.
        """
        self._listener = listener
        self._guests = guests
        self._addresses = addresses
        self._open: Counter[int] = Counter()
        self._lock = threading.Lock()

    def serve(self) -> None:
        """Accept connections until the process ends."""
        while True:
            try:
                connection, peer = self._listener.accept()
            except OSError:
                time.sleep(PAUSE_S)
                continue
            self._begin(connection, self._addresses.get(_address(peer[0])))

    def _begin(self, connection: socket.socket, guest: int | None) -> None:
        if guest is None or not self._count(guest):
            connection.close()
            return
        try:
            threading.Thread(target=self._serve_guest, args=(connection, guest), daemon=True).start()
        except RuntimeError:  # the host has no memory for a thread
            self._end(connection, guest)

    def _count(self, guest: int) -> bool:
        with self._lock:
            is_free = self._open[guest] < CONNECTIONS and self._open.total() < ALL_CONNECTIONS
            self._open[guest] += is_free
            return is_free

    def _serve_guest(self, connection: socket.socket, guest: int) -> None:
        deadline = time.monotonic() + LIMIT_S
        try:
            with suppress(OSError):  # the guest closed the connection, or exceeded the time limit
                answer = make_answer(_read_head(connection, deadline), self._guests[guest])
                connection.settimeout(max(deadline - time.monotonic(), PAUSE_S))
                connection.sendall(answer)
                connection.shutdown(socket.SHUT_WR)
        finally:
            self._end(connection, guest)

    def _end(self, connection: socket.socket, guest: int) -> None:
        connection.close()
        with self._lock:
            self._open[guest] -= 1


def make_answer(head: bytes, documents: Documents) -> bytes:
    """Return the answer to a request. ``head`` is the request up to the empty line, or its first `HEAD_BYTES` bytes."""
    if not head.endswith(END_OF_HEAD):
        return _render(HTTPStatus.REQUEST_HEADER_FIELDS_TOO_LARGE)
    words = head.partition(b"\r\n")[0].decode("latin-1").split(" ")
    if len(words) != 3 or not words[2].startswith("HTTP/1."):  # noqa: PLR2004 - method, path and version
        return _render(HTTPStatus.BAD_REQUEST)
    method, target, _ = words
    if method not in METHODS:
        return _render(HTTPStatus.METHOD_NOT_ALLOWED)
    text = documents.get(_find_path(target))
    if text is None:
        return _render(HTTPStatus.NOT_FOUND, with_body=method == "GET")
    return _render(HTTPStatus.OK, text, with_body=method == "GET")


def _render(status: HTTPStatus, text: str | None = None, *, with_body: bool = True) -> bytes:
    body = (f"{status.phrase}\n" if text is None else text).encode()
    lines = [f"HTTP/1.1 {status.value} {status.phrase}", "Content-Type: text/plain; charset=utf-8", "Connection: close"]
    if status is HTTPStatus.METHOD_NOT_ALLOWED:
        lines.append(f"Allow: {', '.join(METHODS)}")
    head = "\r\n".join((*lines, f"Content-Length: {len(body)}")).encode() + END_OF_HEAD
    return head + body if with_body else head


def _find_path(target: str) -> str:
    parts = [part for part in target.partition("?")[0].split("/") if part]
    if parts and parts[0] in VERSIONS:
        parts = parts[1:] if parts[1:] == [USER_DATA] else [LATEST, *parts[1:]]
    return "/" + "/".join(parts)


def _read_head(connection: socket.socket, deadline: float) -> bytes:
    data = b""
    while END_OF_HEAD not in data and len(data) < HEAD_BYTES:
        remaining = deadline - time.monotonic()
        if remaining <= 0:
            raise TimeoutError
        connection.settimeout(remaining)
        received = connection.recv(HEAD_BYTES - len(data))
        if not received:
            raise ConnectionResetError
        data += received
    head, end, _ = data.partition(END_OF_HEAD)
    return head + end


def _address(text: str) -> str:
    """Return an address in the form that the addresses in the specification have.

    For example, "fe80::1%svc0" becomes "fe80::1", and "::ffff:10.0.0.1" becomes "10.0.0.1".
    """
    address = ipaddress.ip_address(text.partition("%")[0])
    mapped = getattr(address, "ipv4_mapped", None)
    return str(mapped or address)
