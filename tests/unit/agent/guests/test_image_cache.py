"""Tests of the cache of images with a real HTTP server on the loopback, which can cut connections."""

import hashlib
import io
import os
import shutil
import signal
import subprocess
import sys
import tarfile
import threading
import time
from collections import namedtuple
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from virtcloud.agent.guests.image_cache import CacheSettings, ImageCache
from virtcloud.agent.guests.image_fetch import ImageSources
from virtcloud.agent.guests.image_unpack import UnpackLimits
from virtcloud.agent.guests.images import GuestImage, LxcImage, QemuImage
from virtcloud.agent.steps import StepPending
from virtcloud.client.connection import FileTransfer
from virtcloud.model.errors import NotFound, Refused, Unreachable
from virtcloud.model.image import ImageSource
from virtcloud.model.values import Name

QCOW2 = b"QFI\xfb" + (3).to_bytes(4) + bytes(504) + os.urandom(3000)
BACKED = QCOW2[:8] + (512).to_bytes(8) + QCOW2[16:]
EXTERNAL_DATA = QCOW2[:72] + (4).to_bytes(8) + QCOW2[80:]
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

    def answer(self, handler: BaseHTTPRequestHandler) -> None:
        """Answer one request."""
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
        handler.wfile.write(body[: self.cuts.pop(0)] if self.cuts else body)
        handler.wfile.flush()
        if self.stalls:
            self.stalls = False
            handler.rfile.read(1)

    def _send_head(self, handler: BaseHTTPRequestHandler, status: int, headers: dict[str, str]) -> None:
        handler.send_response(status)
        for name, value in headers.items():
            handler.send_header(name, value)
        handler.end_headers()


@pytest.fixture
def server() -> Iterator[FileServer]:
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
        http.shutdown()
        thread.join()


@contextmanager
def no_sbf(_name: str, _offset: int, _etag: str | None) -> Iterator[FileTransfer]:
    raise NotFound("image disk is not known")
    yield


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
        """Create the cache again, as after a restart of the agent."""
        settings = CacheSettings(
            self.path / "images", self.path / "guests", "x86_64", self.size, UnpackLimits(self.unpacked, 100)
        )
        sources = ImageSources(no_sbf, self.path / "local", self.urls)
        self.done = threading.Event()
        self.cache = ImageCache(settings, sources, self.done.set, lambda _: None)
        return self.cache

    def source(self, data: bytes | None = None, **changes: object) -> ImageSource:
        """Return the source of an image at the server."""
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
        """Wait until an image is fetched for a guest, and return the image. Raise the error of a failed fetch."""
        wanted = source or self.source()
        try:
            return self.cache.require(IMAGE, wanted, self.path / "guests" / guest)
        except StepPending:
            assert self.done.wait(20)
            self.done.clear()
            return self.cache.require(IMAGE, wanted, self.path / "guests" / guest)

    @property
    def files(self) -> list[str]:
        """Return the paths of all files and folders in the cache, sorted."""
        found = (path.relative_to(self.path / "images") for path in (self.path / "images").rglob("*"))
        return sorted(str(path) for path in found)


@pytest.fixture
def host(tmp_path: Path, server: FileServer) -> Host:
    return Host(tmp_path, server)


def test_a_fetched_disk_has_the_images_content(host: Host) -> None:
    image = host.get()
    assert isinstance(image, QemuImage)
    assert image.disk is not None
    assert (image.disk.read_bytes(), image.disk_format) == (QCOW2, "qcow2")


def test_a_fetch_reports_its_progress_and_blocks_nobody(host: Host, server: FileServer) -> None:
    server.cuts, server.stalls = [len(QCOW2) // 2], True
    deadline = time.monotonic() + 20
    while time.monotonic() < deadline:
        with pytest.raises(StepPending, match=r"fetching image disk: \d+ %") as pending:
            host.cache.require(IMAGE, host.source(), host.path / "guests/g1")
        if str(pending.value) == "fetching image disk: 50 %":
            return
        time.sleep(0.01)
    pytest.fail(f"no progress: {pending.value}")


def test_a_cut_connection_is_continued_where_it_ended(host: Host, server: FileServer) -> None:
    server.cuts = [1000, 500]
    host.get()
    assert server.ranges == [None, "bytes=1000-", "bytes=1500-"]


def test_an_unavailable_server_is_asked_again(host: Host, server: FileServer) -> None:
    server.statuses = [503, 503]
    host.get()
    assert len(server.ranges) == 3


def test_a_changed_file_is_fetched_from_its_beginning(host: Host, server: FileServer) -> None:
    server.cuts = [1000]
    server.etags = ['"one"', '"two"']
    host.get()
    assert server.ranges == [None, "bytes=1000-"]


@pytest.mark.parametrize(
    ("data", "changes", "message"),
    [
        (QCOW2[:-1] + b"!", {}, "expected sha256"),
        (QCOW2 + b"more", {}, "expected a file of 3512 bytes, got a longer file"),
        (BACKED, {"own": True}, "without a backing file"),
        (EXTERNAL_DATA, {"own": True}, "without an external data file"),
        (QCOW2, {"format": "raw"}, "expected a file in format raw, got a file in format qcow2"),
        (QCOW2, {"architecture": "aarch64"}, "this host's architecture x86_64, got an image for aarch64"),
    ],
    ids=["checksum", "length", "backing-file", "data-file", "format", "architecture"],
)
def test_an_unsuitable_file_is_refused_and_leaves_nothing(
    host: Host, server: FileServer, data: bytes, changes: dict[str, Any], message: str
) -> None:
    source = host.source(data if changes.pop("own", False) else QCOW2, **changes)
    server.data = data
    with pytest.raises(Refused, match=message):
        host.get(source)
    assert host.files == []


def test_a_missing_file_is_refused(host: Host, server: FileServer) -> None:
    server.statuses = [404]
    with pytest.raises(Refused, match=r"image disk: .*the server answered 404"):
        host.get()


def test_a_refused_image_is_fetched_again_later(host: Host, server: FileServer) -> None:
    server.statuses = [404]
    with pytest.raises(Refused):
        host.get()
    assert isinstance(host.get(), QemuImage)


def test_a_fetch_that_no_guest_needs_ends_and_continues_later(host: Host, server: FileServer) -> None:
    server.cuts, server.statuses = [1000], []
    ticks = iter(range(0, 100000, 200))
    host.cache.clock = lambda: float(next(ticks))
    with pytest.raises(Unreachable, match="the file ended after 1000 of"):
        host.get()
    host.restarted()
    host.get()
    assert server.ranges == [None, "bytes=1000-"]


PROGRAM = """
import sys, threading
from pathlib import Path
sys.path[:0] = sys.argv[3:]
from test_image_cache import FileServer, Host, IMAGE
host = Host(Path(sys.argv[1]), FileServer(url=sys.argv[2]))
try:
    host.cache.require(IMAGE, host.source(), host.path / "guests/g1")
except Exception as pending:
    print(pending, flush=True)
threading.Event().wait()
"""


def test_a_killed_agent_leaves_no_half_image(host: Host, server: FileServer) -> None:
    server.cuts, server.stalls = [1000], True
    source = host.source()
    code = PROGRAM.replace("host.source()", f"host.source().model_copy(update={{'sha256': '{source.sha256}'}})")
    argv = [sys.executable, "-c", code, str(host.path), server.url, str(Path(__file__).parent)]
    partial = host.path / f"images/.partial-{source.sha256}"
    with subprocess.Popen(argv, stdout=subprocess.PIPE) as agent:  # noqa: S603 - our own
        deadline = time.monotonic() + 20
        while not (partial.exists() and partial.stat().st_size == 1000) and time.monotonic() < deadline:
            time.sleep(0.02)
        agent.send_signal(signal.SIGKILL)
    assert [path.name for path in (host.path / "images").iterdir() if not path.name.startswith(".")] == []
    host.restarted()
    host.get()
    assert server.ranges == [None, "bytes=1000-"]


def test_what_a_killed_unpacking_left_is_removed(host: Host) -> None:
    (host.path / "images/.new-x/rootfs").mkdir(parents=True)
    host.get()
    assert not (host.path / "images/.new-x").exists()


def test_a_removed_image_is_fetched_again(host: Host, server: FileServer) -> None:
    host.get()
    shutil.rmtree(host.path / "images" / host.source().sha256)
    assert isinstance(host.get(), QemuImage)
    assert len(server.ranges) == 2


def fetch_others(host: Host, server: FileServer, number: int) -> list[ImageSource]:
    """Fetch ``number`` images, each for a different guest. Return the images' sources."""
    sources = []
    for index in range(number):
        server.data = QCOW2 + bytes([index])
        sources.append(host.source())
        host.get(sources[-1], f"g{index}")
        os.utime(host.path / "images" / sources[-1].sha256 / "size", (index, index))
    return sources


def test_the_least_recently_used_image_is_evicted(host: Host, server: FileServer) -> None:
    host.size = 8000
    host.restarted()
    first, second = fetch_others(host, server, 2)
    for guest in ("g0", "g1"):
        shutil.rmtree(host.path / "guests" / guest)
    host.get(first, "g2")
    shutil.rmtree(host.path / "guests/g2")
    server.data = QCOW2 + b"third"
    host.get(guest="g3")
    cached = {path.name for path in (host.path / "images").iterdir()}
    assert (first.sha256 in cached, second.sha256 in cached) == (True, False)


def test_an_image_in_use_is_never_evicted(host: Host, server: FileServer) -> None:
    host.size = 8000
    host.restarted()
    sources = fetch_others(host, server, 2)
    server.data = QCOW2 + b"third"
    with pytest.raises(Refused, match="has no room for 1 MiB: images in use have 1 of 1 MiB"):
        host.get(guest="g3")
    cached = {path.name for path in (host.path / "images").iterdir()}
    assert {source.sha256 for source in sources} <= cached


def test_a_full_disk_is_named_and_leaves_nothing(host: Host, monkeypatch: pytest.MonkeyPatch) -> None:
    usage = namedtuple("usage", "total used free")  # noqa: PYI024 - as shutil's own
    monkeypatch.setattr(shutil, "disk_usage", lambda _: usage(100, 100, 0))
    with pytest.raises(Refused, match="the disk has 0 MiB free; free space"):
        host.get()
    assert host.files == []


@pytest.mark.parametrize("redirected", [False, True])
def test_internal_addresses_need_a_setting(tmp_path: Path, server: FileServer, *, redirected: bool) -> None:
    host = Host(tmp_path, server, urls=None if not redirected else (server.url,))
    if redirected:
        server.location = "http://127.0.0.1:9/other"
    with pytest.raises(Refused, match=r"image_cache.urls in the agent's settings"):
        host.get()


def test_a_file_of_the_hosts_folder_is_checked_and_copied(host: Host) -> None:
    (host.path / "local").mkdir()
    (host.path / "local/disk.qcow2").write_bytes(QCOW2)
    image = host.get(host.source(url=None, file="disk.qcow2"))
    assert isinstance(image, QemuImage)
    assert image.disk is not None
    assert image.disk.read_bytes() == QCOW2


def test_a_link_out_of_the_hosts_folder_is_refused(host: Host) -> None:
    (host.path / "local").mkdir()
    (host.path / "secret").write_bytes(QCOW2)
    (host.path / "local/disk.qcow2").symlink_to("../secret")
    with pytest.raises(Refused, match=r"expected a file in .*/local, got a link to"):
        host.get(host.source(url=None, file="disk.qcow2"))


def test_an_image_that_sbf_does_not_have_is_refused(host: Host) -> None:
    with pytest.raises(Refused, match="image disk is not known"):
        host.get(host.source(url=None))


needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="NOT TESTED: only root can unpack a root file system")


def member(name: str, data: bytes = b"", **changes: Any) -> tuple[tarfile.TarInfo, bytes]:  # noqa: ANN401 - TarInfo's fields
    info = tarfile.TarInfo(name)
    info.size, info.mode = len(data), 0o755
    for key, value in changes.items():
        setattr(info, key, value)
    return info, data


INIT = member("sbin/init", b"#!/bin/sh\n")


def archive(
    *members: tuple[tarfile.TarInfo, bytes], mode: str = "w", init: tuple[tarfile.TarInfo, bytes] = INIT
) -> bytes:
    """Return an archive with these members and the file ``init``, by default an /sbin/init."""
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode=mode) as tar:  # type: ignore[call-overload]
        for info, data in (*members, init):
            tar.addfile(info, io.BytesIO(data))
    return buffer.getvalue()


@needs_root
@pytest.mark.parametrize(
    ("image_format", "data"),
    [("tar", archive()), ("tar.gz", archive(mode="w:gz")), ("tar.xz", archive(mode="w:xz"))],
    ids=["tar", "gz", "xz"],
)
def test_archives_are_unpacked(host: Host, server: FileServer, image_format: str, data: bytes) -> None:
    server.data = data
    image = host.get(host.source(format=image_format))
    assert isinstance(image, LxcImage)
    assert (image.rootfs / "sbin/init").read_bytes() == b"#!/bin/sh\n"


@needs_root
@pytest.mark.skipif(shutil.which("zstd") is None, reason="NOT TESTED: zstd is not installed")
def test_an_archive_of_zstd_is_unpacked(host: Host, server: FileServer) -> None:
    server.data = subprocess.run(["zstd", "-cq"], input=archive(), capture_output=True, check=True).stdout  # noqa: S607
    image = host.get(host.source(format="tar.zst"))
    assert isinstance(image, LxcImage)
    assert (image.rootfs / "sbin/init").exists()


@needs_root
def test_only_root_reaches_programs_of_an_image(host: Host, server: FileServer) -> None:
    server.data = archive(member("bin/su", b"x", mode=0o4755))
    image = host.get(host.source(format="tar"))
    assert isinstance(image, LxcImage)
    modes = (image.rootfs / "bin/su").stat().st_mode & 0o7777, image.rootfs.parent.stat().st_mode & 0o7777
    assert modes == (0o4755, 0o700)


@needs_root
def test_programs_keep_their_capabilities(host: Host, server: FileServer) -> None:
    capability = bytes.fromhex("0100000200200000000000000000000000000000")
    headers = {"SCHILY.xattr.security.capability": capability.decode("utf-8", "surrogateescape")}
    server.data = archive(member("bin/ping", b"x", pax_headers=headers))
    image = host.get(host.source(format="tar"))
    assert isinstance(image, LxcImage)
    assert os.getxattr(image.rootfs / "bin/ping", "security.capability") == capability


@needs_root
def test_an_archive_writes_nothing_outside_its_folder(host: Host, server: FileServer) -> None:
    victim = host.path / "victim"
    victim.mkdir()
    link = {"type": tarfile.SYMTYPE, "linkname": str(victim)}
    up = "../" * 30 + str(victim).lstrip("/")
    server.data = archive(
        member("out", **link),
        member("out/one", b"x"),
        member(f"{up}/two", b"x"),
        member(f"{victim}/three", b"x"),
        member("hard", type=tarfile.SYMTYPE, linkname="/etc/passwd"),
        member("hard", b"x"),
    )
    passwd = Path("/etc/passwd").read_bytes()
    with suppress(Refused):
        host.get(host.source(format="tar"))
    assert (list(victim.iterdir()), Path("/etc/passwd").read_bytes()) == ([], passwd)


@needs_root
def test_an_archive_creates_no_devices(host: Host, server: FileServer) -> None:
    server.data = archive(
        member("dev/sda", type=tarfile.BLKTYPE, devmajor=8), member("dev/fifo", type=tarfile.FIFOTYPE)
    )
    image = host.get(host.source(format="tar"))
    assert isinstance(image, LxcImage)
    assert sorted(path.name for path in image.rootfs.rglob("*")) == ["init", "sbin"]


@needs_root
@pytest.mark.parametrize(
    ("data", "message"),
    [
        (archive(member("zeros", bytes(8 * MIB)), mode="w:gz"), "more than 4194304 bytes or 100 files"),
        (archive(*(member(f"f{n}") for n in range(200)), mode="w:gz"), "more than 4194304 bytes or 100 files"),
        (archive(mode="w:gz")[:-20], "cannot unpack the archive"),
    ],
    ids=["bytes", "files", "damaged"],
)
def test_a_bomb_or_a_damaged_archive_is_refused(host: Host, server: FileServer, data: bytes, message: str) -> None:
    server.data = data
    with pytest.raises(Refused, match=message):
        host.get(host.source(format="tar.gz"))
    assert host.files == []


@needs_root
def test_a_root_file_system_needs_an_init_for_the_host(host: Host, server: FileServer) -> None:
    elf = b"\x7fELF\x02\x01\x01" + bytes(11) + (183).to_bytes(2, "little")
    server.data = archive(init=member("sbin/init", elf))
    with pytest.raises(Refused, match="archive: expected programs for x86_64, but /sbin/init is for aarch64"):
        host.get(host.source(format="tar"))
