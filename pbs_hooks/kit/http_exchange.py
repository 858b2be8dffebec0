"""One HTTP request with one deadline for the whole exchange: connection, TLS, and every byte of the answer."""

import http.client
import io
import os
import socket
import ssl
from typing import Any, Dict, Iterator, NamedTuple, Optional, Tuple
from urllib.parse import urlsplit

from pbs_hooks.kit.deadline import Deadline, run_in_child

MAX_ANSWER_BYTES = 4 << 20
RECORD_BYTES = 16384
"""The maximum length of a TLS record (RFC 8446, section 5.1)."""
DEFAULT_PORTS = {"http": 80, "https": 443, "unix": 80}
SocketAddress = Tuple[int, Any]

known_addresses = {}  # type: Dict[Tuple[str, int], Tuple[SocketAddress, ...]]
"""For each host and port whose last connection succeeded: all addresses of the host.

The address that answered comes first, because a dead address can block pbs_server for a second. If all known addresses
of a host fail, the next request resolves the host's name again.
"""
tls_contexts = {}  # type: Dict[Tuple[Optional[str], float], ssl.SSLContext]
"""TLS contexts by CA file and its modification time. Reading certificates takes tens of milliseconds."""


class AnswerTooLong(ValueError):
    """An answer has more than `MAX_ANSWER_BYTES` bytes."""


class HttpRequest(NamedTuple):
    """A request: the address of the server, and the data to send."""

    url: str
    method: str
    path: str
    headers: Dict[str, str]
    body: Optional[bytes] = None
    ca_file: Optional[str] = None


def send_request(call: HttpRequest, deadline: Deadline) -> Tuple[int, bytes]:
    """Send a request. Return the status and the body of the answer.

    Raise OSError, ValueError, http.client.HTTPException, DeadlineExceeded or ChildError. Raise AnswerTooLong (a
    ValueError) for a body of more than `MAX_ANSWER_BYTES` bytes.
    """
    server = urlsplit(call.url)
    opened = _connect(server.scheme, server.hostname, server.port, server.path, deadline)
    try:
        if server.scheme == "https":
            opened.settimeout(deadline.left())
            opened = _tls_context(call.ca_file).wrap_socket(opened, server_hostname=server.hostname)
        connection = http.client.HTTPConnection(
            server.hostname or "localhost", server.port or DEFAULT_PORTS[server.scheme]
        )
        connection.sock = _DeadlineSocket(opened, deadline)
        base = "" if server.scheme == "unix" else server.path
        connection.request(call.method, base + call.path, call.body, dict(call.headers, Connection="close"))
        answer = connection.getresponse()
        text = answer.read(MAX_ANSWER_BYTES + 1)
    finally:
        opened.close()
    if len(text) > MAX_ANSWER_BYTES:
        raise AnswerTooLong("expected at most %d bytes, got more" % MAX_ANSWER_BYTES)
    if answer.length:  # a read with a limit does not report the early end of an answer
        raise http.client.IncompleteRead(text, answer.length)
    return answer.status, text


class _DeadlineSocket:
    """The part of a socket's interface that http.client uses. All operations together have one deadline."""

    def __init__(self, opened: socket.socket, deadline: Deadline) -> None:
        self._socket, self._deadline = opened, deadline

    def sendall(self, data: bytes) -> None:
        for start in range(0, len(data), RECORD_BYTES):  # with TLS, the time limit begins anew with each record
            self._socket.settimeout(self._deadline.left())
            self._socket.sendall(data[start : start + RECORD_BYTES])

    def makefile(self, _mode: str) -> io.BufferedReader:
        return io.BufferedReader(_DeadlineReader(self._socket, self._deadline))

    def close(self) -> None:
        """Do nothing: send_request closes the socket."""


class _DeadlineReader(io.RawIOBase):
    def __init__(self, opened: socket.socket, deadline: Deadline) -> None:
        super().__init__()
        self._socket, self._deadline = opened, deadline

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        self._socket.settimeout(self._deadline.left())
        return self._socket.recv_into(buffer)


def _connect(scheme: str, host: Optional[str], port: Optional[int], path: str, deadline: Deadline) -> socket.socket:
    if scheme == "unix":
        return _open_socket((socket.AF_UNIX, path), deadline.left())
    where = (host or "", port or DEFAULT_PORTS[scheme])
    known = known_addresses.pop(where, None)
    addresses = known or tuple(_resolve(where, deadline))
    number, opened = _connect_first(addresses, deadline)
    known_addresses[where] = addresses[number:] + addresses[:number]
    return opened


def _connect_first(addresses: Tuple[SocketAddress, ...], deadline: Deadline) -> Tuple[int, socket.socket]:
    """Connect to the first address that answers, and return the index of this address and the connection.

    Each address gets an equal share of the remaining time.
    """
    fault = OSError("the host has no address")
    for number, address in enumerate(addresses):
        try:
            return number, _open_socket(address, deadline.left() / (len(addresses) - number))
        except OSError as error:  # noqa: PERF203 - a host has few addresses
            fault = error
    raise fault


def _open_socket(address: SocketAddress, seconds: float) -> socket.socket:
    family, where = address
    opened = socket.socket(family, socket.SOCK_STREAM)
    try:
        opened.settimeout(seconds)
        opened.connect(where)
        if family != socket.AF_UNIX:
            opened.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    except BaseException:
        opened.close()
        raise
    return opened


def _resolve(where: Tuple[str, int], deadline: Deadline) -> Iterator[SocketAddress]:
    """Yield the addresses of a host. A child process resolves names, because a name server may not answer."""
    host, port = where
    try:
        addresses = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_NUMERICHOST)
    except socket.gaierror:
        addresses = run_in_child(lambda: socket.getaddrinfo(host, port, type=socket.SOCK_STREAM), deadline)
    for family, _type, _protocol, _name, address in addresses:
        yield family, tuple(address)


def _tls_context(ca_file: Optional[str]) -> ssl.SSLContext:
    key = (ca_file, os.stat(ca_file).st_mtime if ca_file else 0.0)
    if key not in tls_contexts:
        context = ssl.create_default_context(cafile=ca_file)
        if hasattr(ssl, "TLSVersion"):  # Python 3.7 or later
            context.minimum_version = ssl.TLSVersion.TLSv1_2
        else:
            context.options |= ssl.OP_NO_TLSv1 | ssl.OP_NO_TLSv1_1
        tls_contexts[key] = context
    return tls_contexts[key]
