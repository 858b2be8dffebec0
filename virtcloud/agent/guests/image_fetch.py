"""Fetching an image's file from SBF, from a URL, or from the host's folder of images. Checks the checksum.

If a connection is cut or the agent restarts, the next attempt fetches only the missing part of the file (RFC 9110,
sections 14.2 and 13.1.5: Range and If-Range). Only a complete file with the correct checksum is used.
"""

import errno
import os
import socket
import stat
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from http.client import HTTPConnection, HTTPException, HTTPResponse, HTTPSConnection
from ipaddress import ip_address
from pathlib import Path
from typing import Final
from urllib.parse import urljoin, urlsplit

from virtcloud import __version__
from virtcloud.agent.files import describe_os_error
from virtcloud.agent.guests.partial_files import READ_BYTES, PartialFile
from virtcloud.client.connection import FileTransfer
from virtcloud.model.errors import Forbidden, NotFound, Refused, ServiceUnreachable, Unreachable, VirtcloudError
from virtcloud.model.image import HostFile, ImageSource
from virtcloud.model.values import Name

TIMEOUT_S: Final = 60.0
SLOW_BYTES: Final = 64 << 10
"""If a server sends fewer bytes in `TIMEOUT_S` seconds, the attempt ends.

Otherwise, a server that sends a byte from time to time would occupy one of the host's fetches forever.
"""
MAX_REDIRECTS: Final = 5
OK, PARTIAL_CONTENT, RANGE_NOT_SATISFIABLE = 200, 206, 416
REDIRECTS: Final = frozenset({301, 302, 303, 307, 308})
FIRST_SERVER_ERROR: Final = 500
TEMPORARY: Final = frozenset({408, 425, 429})
FULL: Final = frozenset({errno.ENOSPC, errno.EDQUOT})
DownloadFromSbf = Callable[[str, int, str | None], AbstractContextManager[FileTransfer]]
"""A function that opens a transfer of an image's file from SBF. The arguments are the image's name, the offset in
bytes, and the ETag of the part that was already fetched, or None.
"""


@dataclass(frozen=True, slots=True)
class ImageSources:
    """The sources of images. ``urls`` are the permitted beginnings of URLs. None: all URLs with public addresses."""

    sbf: DownloadFromSbf
    folder: Path
    urls: tuple[str, ...] | None = None

    def open(
        self, name: Name, source: ImageSource, offset: int, etag: str | None
    ) -> AbstractContextManager[FileTransfer]:
        """Return a context manager that opens a transfer of an image's file, from ``offset`` on.

        ``etag`` is the ETag of the file from which the bytes before ``offset`` came. If SBF or the URL's server has
        another version of the file now, the transfer starts at the beginning of the file. For a file of this host,
        ``etag`` is ignored. The context manager raises Refused if the source has no such file, and Unreachable if the
        source does not answer.
        """
        if source.file is not None:
            return _open_host_file(self.folder, source.file, offset)
        if source.url is not None:
            return open_url(source.url, offset, etag, self.urls)
        return self._open_at_sbf(name, offset, etag)

    @contextmanager
    def _open_at_sbf(self, name: Name, offset: int, etag: str | None) -> Iterator[FileTransfer]:
        try:
            with self.sbf(name, offset, etag) as transfer:
                yield transfer
        except (NotFound, Forbidden) as error:
            raise Refused(str(error)) from error
        except ServiceUnreachable as error:
            raise Unreachable(str(error)) from error


@contextmanager
def open_url(url: str, offset: int, etag: str | None, permitted: tuple[str, ...] | None) -> Iterator[FileTransfer]:
    """Yield a transfer of the file at a URL, from ``offset`` on. Follow at most `MAX_REDIRECTS` redirects.

    If ``etag`` is None or belongs to another version of the file, the transfer starts at the beginning of the file. If
    ``permitted`` is None, only public addresses are permitted: otherwise, a user could make this host send requests to
    internal services. Raise Refused for a URL that is not permitted or does not exist. Raise Unreachable if the server
    does not answer.
    """
    headers = {"user-agent": f"virtcloud/{__version__}", "accept-encoding": "identity"}
    if offset and etag:
        headers |= {"range": f"bytes={offset}-", "if-range": etag}
    try:
        connection, answer = _request(url, headers, permitted)
        try:
            start = offset if answer.status == PARTIAL_CONTENT else 0
            yield FileTransfer(start, _validator(answer), _chunks(url, answer))
        finally:
            connection.close()
    except (OSError, HTTPException) as error:
        if isinstance(error, OSError) and error.errno in FULL:
            raise
        raise Unreachable(f"{url}: {error}") from error


def _request(
    url: str, headers: dict[str, str], permitted: tuple[str, ...] | None
) -> tuple[HTTPConnection, HTTPResponse]:
    original = url
    for _ in range(MAX_REDIRECTS + 1):
        connection = _connect(url, permitted)
        parts = urlsplit(url)
        path = (parts.path or "/") + (f"?{parts.query}" if parts.query else "")
        connection.request("GET", path, headers=headers)
        answer = connection.getresponse()
        if answer.status in {OK, PARTIAL_CONTENT}:
            return connection, answer
        connection.close()
        if answer.status in REDIRECTS and (location := answer.headers.get("location")):
            url = urljoin(url, location)
            continue
        if answer.status == RANGE_NOT_SATISFIABLE:
            headers = {key: value for key, value in headers.items() if key not in {"range", "if-range"}}
            continue
        text = f"{url}: the server answered {answer.status} {answer.reason}"
        is_temporary = answer.status >= FIRST_SERVER_ERROR or answer.status in TEMPORARY
        raise Unreachable(text) if is_temporary else Refused(text)
    raise Refused(f"{original}: expected at most {MAX_REDIRECTS} redirects, got more")


def _connect(url: str, permitted: tuple[str, ...] | None) -> HTTPConnection:
    parts = urlsplit(url)
    if parts.scheme not in {"http", "https"} or not parts.hostname:
        raise Refused(f"{url}: expected a URL with http or https")
    if permitted is not None and not url.startswith(permitted):
        allowed = ", ".join(permitted) or "none"
        raise Refused(
            f"{url}: this host fetches images only from: {allowed} (image_cache.urls in the agent's settings)"
        )
    kind = HTTPSConnection if parts.scheme == "https" else HTTPConnection
    connection = kind(parts.hostname, parts.port, timeout=TIMEOUT_S)
    if permitted is None:
        connection._create_connection = _connect_publicly  # type: ignore[attr-defined] # noqa: SLF001 - http.client has no other place to check the address that the name has now
    return connection


def _connect_publicly(address: tuple[str, int], *_options: object) -> socket.socket:
    """Connect to a public address of a host. Raise Refused if all addresses of the host are internal."""
    found = {entry[4][0] for entry in socket.getaddrinfo(address[0], address[1], type=socket.SOCK_STREAM)}
    public = sorted(str(text) for text in found if ip_address(str(text)).is_global)
    if not public:
        raise Refused(
            f"{address[0]}: expected a public address, got {', '.join(sorted(map(str, found)))}; to fetch images from "
            "an internal server, add the beginning of its URLs to image_cache.urls in the agent's settings"
        )
    return socket.create_connection((public[0], address[1]), TIMEOUT_S)


def _validator(answer: HTTPResponse) -> str | None:
    """Return the value that identifies this version of the file: a strong ETag, or else the header Last-Modified.

    Return None if the answer has neither.
    """
    etag = answer.headers.get("etag")
    return etag if etag and not etag.startswith("W/") else answer.headers.get("last-modified")


def _chunks(url: str, answer: HTTPResponse) -> Iterator[bytes]:
    """Yield the data of an answer. Raise Unreachable if fewer than `SLOW_BYTES` arrive within `TIMEOUT_S` seconds."""
    began, received = time.monotonic(), 0
    while data := answer.read1(READ_BYTES):
        yield data
        received += len(data)
        if time.monotonic() >= began + TIMEOUT_S:
            if received < SLOW_BYTES:
                raise Unreachable(f"{url}: the server sent only {received} bytes within {TIMEOUT_S:g} s")
            began, received = time.monotonic(), 0


@contextmanager
def _open_host_file(folder: Path, path: HostFile, offset: int) -> Iterator[FileTransfer]:
    """Yield a transfer of a file in the host's folder of images, from ``offset`` on.

    Raise Refused for anything but a regular file, and for a symbolic link to a file outside of the folder.
    """
    try:
        real = (folder / path).resolve(strict=True)
        if not real.is_relative_to(folder.resolve()):
            raise Refused(f"{folder / path}: expected a file in {folder}, got a link to {real}")
        with real.open("rb") as file:
            if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
                raise Refused(f"{folder / path}: expected a regular file, got something else")
            file.seek(offset)
            yield FileTransfer(offset, None, iter(lambda: file.read(READ_BYTES), b""))
    except OSError as error:
        if error.errno in FULL:
            raise
        raise Refused(f"{folder / path}: cannot be read: {describe_os_error(error)}") from error


@dataclass(frozen=True, slots=True)
class ImageFetch:
    """The fetch of one image.

    If the connection is cut, ``pause`` is called with the number of attempts without progress, and the last error.
    ``pause`` waits before the next attempt, or raises the error if no guest needs the image.
    """

    sources: ImageSources
    pause: Callable[[int, VirtcloudError], None]
    progress: Callable[[int], object]

    def run(self, name: Name, source: ImageSource, path: Path) -> None:
        """Fetch an image into the file ``path``. Raise Refused if the file is missing or has a wrong checksum."""
        partial = PartialFile(path, self.progress)
        try:
            resumed = partial.size > 0
            self._receive_all(name, source, partial)
            if partial.sha256 != source.sha256 and resumed:  # the file may have changed since the last attempt
                partial.clear()
                self._receive_all(name, source, partial)
            if partial.sha256 != source.sha256:
                raise Refused(
                    f"expected sha256 {source.sha256}, got {partial.sha256}: the source has another file now; add the "
                    "image again under another name"
                )
        finally:
            partial.close()

    def _receive_all(self, name: Name, source: ImageSource, partial: PartialFile) -> None:
        if partial.size > source.size:
            partial.clear()
        attempts = 0
        while partial.size < source.size:
            before = partial.size
            try:
                with self.sources.open(name, source, partial.size, partial.etag) as transfer:
                    partial.receive(transfer, source.size)
                error: VirtcloudError = Unreachable(f"the file ended after {partial.size} of {source.size} bytes")
            except Unreachable as unreachable:
                error = unreachable
            if partial.size < source.size:
                attempts = 1 if partial.size > before else attempts + 1
                self.pause(attempts, error)
