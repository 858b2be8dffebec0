"""A host's cache of images, and an HTTP server of one file. The server can cut connections."""

import hashlib
import math
import os
import threading
import time
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, suppress
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

from virtcloud.agent.guests.image_cache import CacheSettings, ImageCache
from virtcloud.agent.guests.image_fetch import ImageSources
from virtcloud.agent.guests.image_unpack import UnpackLimits
from virtcloud.agent.guests.images import GuestImage
from virtcloud.agent.steps import StepPending
from virtcloud.client.connection import FileTransfer
from virtcloud.model.errors import NotFound
from virtcloud.model.image import ImageSource
from virtcloud.model.values import Name

QCOW2 = b"QFI\xfb" + (3).to_bytes(4) + bytes(504) + os.urandom(3000)
IMAGE = Name("disk")
MIB = 1 << 20


@dataclass
class FileServer:
    """An HTTP server with one file. With ``cuts`` = [100, 20], the next two answers end after 100 and 20 bytes."""

    data: bytes = QCOW2
    etags: list[str] = field(default_factory=lambda: ['"one"'])
    cuts: list[int] = field(default_factory=list)
    statuses: list[int] = field(default_factory=list)
    location: str | None = None
    ranges: list[str | None] = field(default_factory=list)
    url: str = ""
    stalls: bool = False
    """Whether the next answer stops after its last byte, with an open connection, until ``ends`` is set."""
    ends: threading.Event = field(default_factory=threading.Event)
    drips: bool = False
    """Whether the next answer arrives byte by byte."""

    def answer(self, handler: BaseHTTPRequestHandler) -> None:
        self.ranges.append(handler.headers["range"])
        if self.location is not None:
            self._send_head(handler, 302, {"location": self.location, "content-length": "0"})
            return
        if self.statuses:
            self._send_head(handler, self.statuses.pop(0), {"content-length": "0"})
            return
        etag = self.etags.pop(0) if len(self.etags) > 1 else self.etags[0]
        resumed = handler.headers["if-range"] == etag
        start = int(handler.headers["range"].removeprefix("bytes=").rstrip("-")) if resumed else 0
        body = self.data[start:]
        self._send_head(handler, 206 if resumed else 200, {"etag": etag, "content-length": str(len(body))})
        for position in range(len(body) if self.drips else 0):
            self.drips = False
            handler.wfile.write(body[position : position + 1])
            time.sleep(0.02)
        handler.wfile.write(body[: self.cuts.pop(0)] if self.cuts else body)
        handler.wfile.flush()
        if self.stalls:
            self.stalls = False
            self.ends.wait()

    def _send_head(self, handler: BaseHTTPRequestHandler, status: int, headers: dict[str, str]) -> None:
        handler.send_response(status)
        for name, value in headers.items():
            handler.send_header(name, value)
        handler.end_headers()


@contextmanager
def serve_file() -> Iterator[FileServer]:
    served = FileServer()

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            with suppress(OSError):
                served.answer(self)

        def log_message(self, *_: object) -> None:
            """Print nothing."""

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as http:
        served.url = f"http://127.0.0.1:{http.server_port}/disk"
        thread = threading.Thread(target=http.serve_forever, args=(0.01,))
        thread.start()
        yield served
        served.ends.set()
        http.shutdown()
        thread.join()


def no_sbf(_name: str, _offset: int, _etag: str | None) -> AbstractContextManager[FileTransfer]:
    raise NotFound("image disk is not known")


@dataclass
class Host:
    """A host's cache of images, with the folders of its guests."""

    path: Path
    server: FileServer
    urls: tuple[str, ...] | None = ("http://127.0.0.1:",)
    size: int = 64 * MIB
    unpacked: int = 4 * MIB

    def __post_init__(self) -> None:
        self.cache = self.restarted()

    def restarted(self) -> ImageCache:
        settings = CacheSettings(
            self.path / "images", self.path / "guests", "x86_64", self.size, UnpackLimits(self.unpacked, 100)
        )
        sources = ImageSources(no_sbf, self.path / "local", self.urls)
        self.done = threading.Event()
        self.cache = ImageCache(settings, sources, self.done.set, lambda _: None)
        return self.cache

    def source(self, data: bytes | None = None, **changes: object) -> ImageSource:
        content = self.server.data if data is None else data
        keys: dict[str, Any] = {
            "sha256": hashlib.sha256(content).hexdigest(),
            "size": len(content),
            "format": "qcow2",
            "architecture": "x86_64",
            "url": self.server.url,
        }
        return ImageSource.model_validate(keys | changes)

    def get(self, source: ImageSource | None = None, guest: str = "g1") -> GuestImage:
        """Wait until an image is fetched for a guest. Raise the error of a failed fetch."""
        wanted = source or self.source()
        try:
            return self.cache.require(IMAGE, wanted, self.path / "guests" / guest)
        except StepPending:
            assert self.done.wait(20)
            self.done.clear()
            return self.cache.require(IMAGE, wanted, self.path / "guests" / guest)

    def end_fetches(self) -> None:
        """End all fetches, including those that wait for a stalled server. Wait until their threads have ended."""
        self.cache.clock = lambda: math.inf  # at this time, no guest needs an image, so the next error ends each fetch
        self.server.ends.set()
        for thread in threading.enumerate():
            if thread.name.startswith("fetch of image"):
                thread.join(20)
                assert not thread.is_alive()

    @property
    def files(self) -> list[str]:
        found = (path.relative_to(self.path / "images") for path in (self.path / "images").rglob("*"))
        return sorted(str(path) for path in found)
