"""Transfers of files from URLs of untrusted servers.

This module ends slow transfers. A server's name can resolve to the address of an internal service. Therefore this
module connects only to public addresses, unless the agent's settings list the permitted URLs.
"""

import errno
import socket
import threading
import time
from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager, suppress
from http.client import HTTPConnection, HTTPException, HTTPResponse, HTTPSConnection
from types import TracebackType
from typing import Final, Self
from urllib.parse import unquote, urljoin, urlsplit

from virtcloud import __version__
from virtcloud.agent.guests.partial_files import READ_BYTES
from virtcloud.agent.resolved_addresses import is_public
from virtcloud.client.connection import FileTransfer
from virtcloud.model.errors import Refused, Unreachable

TIMEOUT_S: Final = 60.0
SLOW_BYTES: Final = 64 << 10
"""If a server sends fewer than this number of bytes in `TIMEOUT_S` seconds, the attempt ends.

A host runs only a few fetches at the same time. Without this limit, a fetch from a slow server could run forever, and
other fetches would wait.
"""
MAX_REDIRECTS: Final = 5
OK, PARTIAL_CONTENT, RANGE_NOT_SATISFIABLE = 200, 206, 416
REDIRECTS: Final = frozenset({301, 302, 303, 307, 308})
FIRST_SERVER_ERROR: Final = 500
TEMPORARY: Final = frozenset({408, 425, 429})
FULL: Final = frozenset({errno.ENOSPC, errno.EDQUOT})


@contextmanager
def open_url(url: str, offset: int, etag: str | None, permitted: tuple[str, ...] | None) -> Iterator[FileTransfer]:
    """Yield a transfer of the file at a URL, from ``offset`` on. Follow at most `MAX_REDIRECTS` redirects.

    If ``etag`` is None, or if the server's current version of the file does not have this ETag, the transfer starts at
    the file's beginning. ``permitted`` lists the beginnings of permitted URLs. If ``permitted`` is None, every URL with
    a public address is permitted.

    Raise Refused if the URL is invalid or not permitted. Also raise Refused if the server answers with a permanent
    error such as 404, or with too many redirects. Raise Unreachable if the server does not answer, answers with a
    temporary error such as 503, or is too slow.
    """
    headers = {"user-agent": f"virtcloud/{__version__}", "accept-encoding": "identity"}
    if offset and etag:
        headers |= {"range": f"bytes={offset}-", "if-range": etag}
    with _Watchdog() as watchdog:
        try:
            connection, answer = _request(url, headers, permitted, watchdog)
            try:
                start = offset if answer.status == PARTIAL_CONTENT else 0
                yield FileTransfer(start, _validator(answer), _chunks(url, answer, watchdog))
            finally:
                answer.close()  # the answer may have taken over the connection's socket
                connection.close()
        except (OSError, HTTPException) as error:
            if isinstance(error, OSError) and error.errno in FULL:
                raise
            watchdog.check(url)
            raise Unreachable(f"{url}: {error}") from error


class _Watchdog:
    """Ends the connection of an attempt that receives fewer than `SLOW_BYTES` bytes in `TIMEOUT_S` seconds.

    A socket's timeout begins again with each byte, also in headers and in the sizes of chunks.
    """

    def __init__(self) -> None:
        self._ended, self._lock = threading.Event(), threading.Lock()
        self._socket: socket.socket | None = None
        self._is_slow = False
        self.received = 0

    def __enter__(self) -> Self:
        self._thread = threading.Thread(target=self._run, name="image server", daemon=True)
        self._thread.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._ended.set()
        self._thread.join()
        self._replace(None)

    def watch(self, opened: socket.socket) -> socket.socket:
        """Watch the connection ``opened`` instead of the previous connection. Return ``opened``."""
        self._replace(opened.dup())  # TLS closes the original descriptor
        return opened

    def check(self, url: str) -> None:
        """Raise Unreachable if the attempt was too slow."""
        if self._is_slow:
            raise Unreachable(f"{url}: the server sent less than {SLOW_BYTES} bytes within {TIMEOUT_S:g} s")

    def _replace(self, opened: socket.socket | None) -> None:
        with self._lock:
            if self._socket is not None:
                self._socket.close()
            self._socket = opened
            self._end_slow()

    def _end_slow(self) -> None:
        if self._is_slow and self._socket is not None:
            with suppress(OSError):  # the server has closed the connection
                self._socket.shutdown(socket.SHUT_RDWR)

    def _run(self) -> None:
        counted = 0
        while not self._ended.wait(TIMEOUT_S):
            if self.received - counted < SLOW_BYTES:
                with self._lock:
                    self._is_slow = True
                    self._end_slow()
                return
            counted = self.received


def _request(
    url: str, headers: dict[str, str], permitted: tuple[str, ...] | None, watchdog: _Watchdog
) -> tuple[HTTPConnection, HTTPResponse]:
    original, url = url, _resolve(url, "")
    for _ in range(MAX_REDIRECTS + 1):
        connection = _connect(url, permitted, watchdog)
        answer = _exchange(connection, url, headers)
        if answer.status in {OK, PARTIAL_CONTENT}:
            return connection, answer
        connection.close()
        if answer.status in REDIRECTS and (location := answer.headers.get("location")):
            url = _resolve(url, location)
            continue
        if answer.status == RANGE_NOT_SATISFIABLE:
            headers = {key: value for key, value in headers.items() if key not in {"range", "if-range"}}
            continue
        text = f"{url}: the server answered {answer.status} {answer.reason}"
        is_temporary = answer.status >= FIRST_SERVER_ERROR or answer.status in TEMPORARY
        raise Unreachable(text) if is_temporary else Refused(text)
    raise Refused(f"{original}: expected at most {MAX_REDIRECTS} redirects, got more")


def _exchange(connection: HTTPConnection, url: str, headers: dict[str, str]) -> HTTPResponse:
    parts = urlsplit(url)
    path = (parts.path or "/") + (f"?{parts.query}" if parts.query else "")
    try:
        connection.request("GET", path, headers=headers)
        return connection.getresponse()
    except BaseException:
        connection.close()
        raise


def _resolve(url: str, location: str) -> str:
    try:
        resolved = urljoin(url, location)
        parts = urlsplit(resolved)
        _ = parts.port, resolved.encode("ascii"), (parts.hostname or "").encode("idna")
    except ValueError as error:
        raise Refused(f"{url}: expected a URL, got {location or url!r}: {error}") from error
    return resolved


def _connect(url: str, permitted: tuple[str, ...] | None, watchdog: _Watchdog) -> HTTPConnection:
    parts = urlsplit(url)
    if parts.scheme not in {"http", "https"} or not parts.hostname:
        raise Refused(f"{url}: expected a URL with http or https")
    if permitted is not None and not any(_begins_with(url, beginning) for beginning in permitted):
        allowed = ", ".join(permitted) or "none"
        raise Refused(
            f"{url}: this host fetches images only from: {allowed} (image_cache.urls in the agent's settings)"
        )
    kind = HTTPSConnection if parts.scheme == "https" else HTTPConnection
    connection = kind(parts.hostname, parts.port, timeout=TIMEOUT_S)

    def create(address: tuple[str, int], *_options: object) -> socket.socket:
        found = dict.fromkeys(str(entry[4][0]) for entry in socket.getaddrinfo(*address, type=socket.SOCK_STREAM))
        chosen = list(found) if permitted is not None else _select_public(address[0], found)
        return watchdog.watch(_connect_to_first(chosen, address[1], time.monotonic() + TIMEOUT_S))

    connection._create_connection = create  # type: ignore[attr-defined] # noqa: SLF001 - http.client has no other place to check the address that the name has now
    return connection


def _begins_with(url: str, beginning: str) -> bool:
    """Return whether ``url`` starts with ``beginning``, and contains no ``..`` that could lead out of ``beginning``.

    A host's name in ``beginning`` must be complete: ``https://mirror`` does not permit
    ``https://mirror.attacker.example``.
    """
    host, parts = urlsplit(beginning).hostname, urlsplit(url)
    return url.startswith(beginning) and host in {None, parts.hostname} and ".." not in unquote(parts.path).split("/")


def _select_public(host: str, addresses: Collection[str]) -> list[str]:
    public = [address for address in addresses if is_public(address)]
    if not public:
        raise Refused(
            f"{host}: expected a public address, got {', '.join(sorted(addresses))}; to fetch images from "
            "an internal server, add the beginning of its URLs to image_cache.urls in the agent's settings"
        )
    return public


def _connect_to_first(addresses: Sequence[str], port: int, deadline: float) -> socket.socket:
    """Connect to the first address that accepts a connection. ``deadline`` is a time of ``time.monotonic()``.

    Each attempt can take an equal part of the remaining time.
    """
    first, *others = addresses
    try:
        opened = socket.create_connection((first, port), max(deadline - time.monotonic(), 0.1) / len(addresses))
    except OSError:
        if not others:
            raise
        return _connect_to_first(others, port, deadline)
    opened.settimeout(TIMEOUT_S)
    return opened


def _validator(answer: HTTPResponse) -> str | None:
    etag = answer.headers.get("etag")
    return etag if etag and not etag.startswith("W/") else answer.headers.get("last-modified")


def _chunks(url: str, answer: HTTPResponse, watchdog: _Watchdog) -> Iterator[bytes]:
    while data := answer.read1(READ_BYTES):
        watchdog.received += len(data)
        yield data
    watchdog.check(url)
