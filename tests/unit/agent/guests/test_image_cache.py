"""Tests of the cache of images. A real HTTP server on the loopback sends the images, and can cut connections."""

import errno
import io
import os
import shutil
import signal
import socket
import subprocess
import sys
import threading
import time
from collections import namedtuple
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from support.hosts import image_host
from support.hosts.image_host import IMAGE, QCOW2, FileServer, Host, serve_file

from virtcloud.agent.guests import image_cache, image_folder, url_transfers
from virtcloud.agent.guests.fetch_states import identify_fetch
from virtcloud.agent.guests.image_cache import MAX_FETCHES
from virtcloud.agent.guests.image_folder import read_size
from virtcloud.agent.guests.images import QemuImage
from virtcloud.agent.guests.partial_files import PartialFile
from virtcloud.agent.steps import StepPending
from virtcloud.client.connection import FileTransfer
from virtcloud.model.errors import Refused, Unreachable
from virtcloud.model.image import ImageSource
from virtcloud.model.values import Name

BACKED = QCOW2[:8] + (512).to_bytes(8) + QCOW2[16:]
EXTERNAL_DATA = QCOW2[:72] + (4).to_bytes(8) + QCOW2[80:]


def test_a_fetched_disk_has_the_images_content(host: Host) -> None:
    image = host.get()
    assert isinstance(image, QemuImage)
    assert image.disk is not None
    assert (image.disk.read_bytes(), image.disk_format) == (QCOW2, "qcow2")


def wait_for_share(host: Host, share: str = "50 %") -> None:
    deadline = time.monotonic() + 20
    while time.monotonic() < deadline:
        with pytest.raises(StepPending, match=r"fetching image disk: \d+ %") as pending:
            host.cache.require(IMAGE, host.source(), host.path / "guests/g1")
        if str(pending.value) == f"fetching image disk: {share}":
            return
        time.sleep(0.01)
    pytest.fail(f"no progress: {pending.value}")


def test_a_fetch_reports_its_progress_and_blocks_no_caller(host: Host, server: FileServer) -> None:
    server.cuts, server.stalls = [len(QCOW2) // 2], True
    wait_for_share(host)


def test_simultaneous_fetches_do_not_exceed_the_caches_size(host: Host, server: FileServer) -> None:
    host.size = 6000
    host.restarted()
    server.cuts, server.stalls = [len(QCOW2) // 2], True
    wait_for_share(host)
    server.data = QCOW2 + b"other"
    with pytest.raises(Refused, match="has no room for 1 MiB: images in use have 1 of 1 MiB"):
        host.get(guest="g2")


def test_a_fetch_continues_where_its_connection_was_cut(host: Host, server: FileServer) -> None:
    server.cuts = [1000, 500]
    host.get()
    assert server.ranges == [None, "bytes=1000-", "bytes=1500-"]


@pytest.mark.parametrize("etag", [b"", b"\0" * 5, b"\xff\xfe", b'"one"\n'])
def test_an_etag_that_a_power_failure_damaged_is_not_sent(host: Host, server: FileServer, etag: bytes) -> None:
    partial = host.path / f"images/.partial-{identify_fetch(IMAGE, host.source())}"
    partial.parent.mkdir()
    partial.write_bytes(QCOW2[:1000])
    partial.with_suffix(".etag").write_bytes(etag)
    host.get()
    assert server.ranges == [None]


def test_unused_images_are_evicted_despite_a_damaged_record(host: Host, server: FileServer) -> None:
    host.size = 8000
    host.restarted()
    first, _ = fetch_others(host, server, 2)
    shutil.rmtree(host.path / "guests")
    (host.path / "guests/g9").mkdir(parents=True)
    (host.path / "guests/g9/image.sha256").write_bytes(b"\xff" * 64)
    server.data = QCOW2 + b"third"
    host.get(guest="g3")
    assert first.sha256 not in host.files


class NearlyFullFile(io.FileIO):
    """A file that writes at most three bytes at a time, as an unbuffered file can do on a nearly full disk."""

    def write(self, data: Any) -> int:
        return super().write(data[:3])


def test_a_fetch_continues_after_an_incomplete_write(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "fdopen", lambda descriptor, mode, _buffering: NearlyFullFile(descriptor, mode))
    partial = PartialFile(tmp_path / "partial", lambda _: None)
    partial.receive(FileTransfer(0, None, iter([QCOW2])), len(QCOW2))
    partial.close()
    assert (tmp_path / "partial").read_bytes() == QCOW2


def test_a_partial_file_that_cannot_be_synced_is_closed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(_descriptor: int) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    partial, before = PartialFile(tmp_path / "partial", lambda _: None), len(list(Path("/proc/self/fd").iterdir()))
    monkeypatch.setattr(os, "fsync", refuse)
    with pytest.raises(OSError, match="No space left on device"):
        partial.close()
    assert len(list(Path("/proc/self/fd").iterdir())) == before - 1


def test_servers_that_do_not_answer_delay_no_other_image(host: Host) -> None:
    host.cache.pause = lambda _: time.sleep(0.01)
    for number in range(MAX_FETCHES):
        silent = host.source(str(number).encode(), url="http://127.0.0.1:9/silent")
        with pytest.raises(StepPending):
            host.cache.require(IMAGE, silent, host.path / "guests/g2")
    assert isinstance(host.get(), QemuImage)


def test_many_images_of_a_server_that_does_not_answer_delay_no_other_server(
    host: Host, server: FileServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(url_transfers, "TIMEOUT_S", 1)
    pauses: list[float] = []
    host.cache.pause = pauses.append
    with socket.create_server(("127.0.0.1", 0)) as silent:  # accepts connections, and never answers
        for number in range(10):
            source = host.source(str(number).encode(), url=f"http://127.0.0.1:{silent.getsockname()[1]}/{number}")
            require_pending(host, IMAGE, source)
        assert isinstance(host.get(), QemuImage)
        attempts = len(pauses)
        host.cache.clock = lambda: time.monotonic() + 200  # no guest needs the other images
    assert attempts < 5


def test_a_server_that_sends_too_slowly_is_asked_again(
    host: Host, server: FileServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(url_transfers, "TIMEOUT_S", 0.2)
    server.drips = True
    host.get()
    assert server.ranges[0] is None
    assert str(server.ranges[1]).startswith("bytes=")


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
        (QCOW2[:-1] + bytes([QCOW2[-1] ^ 1]), {}, "expected sha256"),
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


def test_a_fetch_fails_even_if_its_file_cannot_be_removed(
    host: Host, server: FileServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(_path: Path) -> None:
        raise OSError(errno.EROFS, os.strerror(errno.EROFS))

    monkeypatch.setattr(image_cache, "remove_partial_file", fail)
    source, server.data = host.source(), QCOW2 + b"more"
    with pytest.raises(Refused, match="expected a file of 3512 bytes, got a longer file"):
        host.get(source)


def test_a_missing_file_is_refused(host: Host, server: FileServer) -> None:
    server.statuses = [404]
    with pytest.raises(Refused, match=r"image disk: .*the server answered 404"):
        host.get()


@pytest.mark.parametrize("location", ["http://[::1/", "http://mirror:99999/", "http://a..b/", "/\u00e4"])
def test_a_redirect_to_a_malformed_url_is_refused(host: Host, server: FileServer, location: str) -> None:
    server.location = location
    with pytest.raises(Refused, match=r"image disk: http://.*/disk: expected a URL, got"):
        host.get()


@pytest.mark.parametrize("url", ["http://[x/disk", "http://a]/disk"])
def test_an_image_with_a_malformed_url_is_refused(host: Host, url: str) -> None:
    with pytest.raises(Refused, match=r"image disk: .*expected a URL, got"):
        host.get(host.source(b"disk", url=url))


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


def test_a_slow_unneeded_fetch_ends_when_another_image_is_requested(
    host: Host, server: FileServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(image_cache, "MAX_FETCHES", 1)
    host.restarted()
    server.drips = True
    require_pending(host, IMAGE, host.source())
    await_true(lambda: not server.drips)
    host.cache.clock = lambda: time.monotonic() + 200
    with serve_file() as other:
        other.data = QCOW2 + b"other"
        source = host.source(other.data, url=other.url)
        require_pending(host, Name("other"), source)
        await_true(lambda: host.cache.require(Name("other"), source, host.path / "guests/g2"))


def test_an_abandoned_fetch_starts_again_when_its_image_is_requested(
    host: Host, server: FileServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(image_cache, "MAX_FETCHES", 1)
    host.restarted()
    source, server.drips = host.source(), True
    require_pending(host, IMAGE, source)
    await_true(lambda: not server.drips)
    host.cache.clock = lambda: time.monotonic() + 200
    with serve_file() as other:
        other.data = QCOW2 + b"other"
        require_pending(host, Name("other"), host.source(other.data, url=other.url))
        assert host.done.wait(20)
        host.cache.clock = lambda: time.monotonic() + 400
        await_true(lambda: host.cache.require(IMAGE, source, host.path / "guests/g1"))


def test_only_the_fetch_that_stored_an_image_is_logged(
    host: Host, server: FileServer, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO")
    server.cuts, server.stalls = [1000], True
    wait_for_share(host, "28 %")
    host.get(local_source(host, QCOW2), "g2")
    server.ends.set()
    assert host.done.wait(20)
    assert [record.message.split()[0] for record in caplog.records].count("image_fetched") == 1


def test_slow_urls_do_not_delay_a_file_of_the_host(
    host: Host, server: FileServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(image_cache, "MAX_FETCHES", 1)
    host.restarted()
    server.cuts, server.stalls = [1000], True
    wait_for_share(host, "28 %")
    assert isinstance(host.get(local_source(host, QCOW2 + b"local"), "g2"), QemuImage)


@pytest.mark.parametrize("name", ["disk", "other"])
def test_an_image_does_not_wait_for_fetches_from_other_sources(host: Host, server: FileServer, name: str) -> None:
    server.cuts, server.stalls = [1000], True
    require_pending(host, Name(name), host.source())
    assert isinstance(host.get(local_source(host, QCOW2)), QemuImage)


def test_the_error_of_a_shared_fetch_names_the_requested_image(host: Host, server: FileServer) -> None:
    source, server.data = host.source(), QCOW2 + b"more"
    require_pending(host, Name("bobs"), source)
    assert host.done.wait(20)
    with pytest.raises(Refused, match=r"^image disk: expected a file of 3512 bytes"):
        host.cache.require(IMAGE, source, host.path / "guests/g1")


def test_a_finished_fetch_does_not_replace_an_image_already_stored(host: Host, server: FileServer) -> None:
    server.cuts, server.stalls = [1000], True
    wait_for_share(host, "28 %")
    image = host.get(local_source(host, QCOW2), "g2")
    assert isinstance(image, QemuImage)
    assert image.disk is not None
    before = image.disk.stat()
    server.ends.set()
    assert host.done.wait(20)
    assert image.disk.stat().st_ino == before.st_ino
    assert list((host.path / "images").glob(".*")) == []


def test_a_fetch_starts_again_after_its_thread_failed_to_start(host: Host, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(_thread: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    with monkeypatch.context() as patch:
        patch.setattr(threading.Thread, "start", fail)
        with pytest.raises(Unreachable, match="image disk cannot be fetched: the agent cannot start a thread: can't"):
            host.get()
    assert isinstance(host.get(), QemuImage)


def require_pending(host: Host, name: Name, source: ImageSource) -> None:
    with pytest.raises(StepPending):
        host.cache.require(name, source, host.path / "guests/g1")


def local_source(host: Host, data: bytes) -> ImageSource:
    (host.path / "local").mkdir()
    (host.path / "local/disk.qcow2").write_bytes(data)
    return host.source(data, url=None, file="disk.qcow2")


def await_true(reached: Callable[[], object]) -> None:
    deadline = time.monotonic() + 20
    while True:
        with suppress(StepPending):
            if reached():
                return
        assert time.monotonic() < deadline
        time.sleep(0.01)


PROGRAM = """
import sys, threading
from pathlib import Path
sys.path[:0] = sys.argv[3:]
from support.hosts.image_host import FileServer, Host, IMAGE
host = Host(Path(sys.argv[1]), FileServer(url=sys.argv[2]))
try:
    host.cache.require(IMAGE, host.source(), host.path / "guests/g1")
except Exception as pending:
    print(pending, flush=True)
threading.Event().wait()
"""


def test_a_killed_agent_leaves_no_incomplete_image(host: Host, server: FileServer) -> None:
    server.cuts, server.stalls = [1000], True
    source = host.source()
    code = PROGRAM.replace("host.source()", f"host.source().model_copy(update={{'sha256': '{source.sha256}'}})")
    argv = [sys.executable, "-c", code, str(host.path), server.url, str(Path(image_host.__file__).parents[2])]
    partial = host.path / f"images/.partial-{identify_fetch(IMAGE, source)}"
    with subprocess.Popen(argv, stdout=subprocess.PIPE) as agent:  # noqa: S603 - our own
        while agent.poll() is None and not (partial.exists() and partial.stat().st_size == 1000):
            time.sleep(0.02)
        agent.send_signal(signal.SIGKILL)
    assert [path.name for path in (host.path / "images").iterdir() if not path.name.startswith(".")] == []
    host.restarted()
    host.get()
    assert server.ranges == [None, "bytes=1000-"]


def test_remains_of_an_interrupted_unpacking_are_removed(host: Host) -> None:
    (host.path / "images/.new-x/rootfs").mkdir(parents=True)
    host.get()
    assert not (host.path / "images/.new-x").exists()


def test_remains_are_not_removed_in_the_reconcilers_thread(host: Host, monkeypatch: pytest.MonkeyPatch) -> None:
    removing: list[tuple[str, bool]] = []
    rmtree = shutil.rmtree

    def remove(path: Path, **options: Any) -> None:
        removing.append((path.name, threading.current_thread() is threading.main_thread()))
        rmtree(path, **options)

    (host.path / "images/.new-x").mkdir(parents=True)
    monkeypatch.setattr(shutil, "rmtree", remove)
    host.get()
    assert removing[0] == (".new-x", False)


def test_a_removed_image_is_fetched_again(host: Host, server: FileServer) -> None:
    host.get()
    shutil.rmtree(host.path / "images" / host.source().sha256)
    assert isinstance(host.get(), QemuImage)
    assert len(server.ranges) == 2


def fetch_others(host: Host, server: FileServer, number: int) -> list[ImageSource]:
    sources = []
    for index in range(number):
        server.data = QCOW2 + bytes([index])
        sources.append(host.source())
        host.get(sources[-1], f"g{index}")
        os.utime(host.path / "images" / sources[-1].sha256 / "size", (index, index))
    return sources


def test_an_image_is_usable_although_its_size_was_removed(host: Host) -> None:
    image = host.get()
    for path in (host.path / "images").glob("*/size"):
        path.unlink()
        assert read_size(path.parent) == len(QCOW2)
    assert host.get(guest="g2") == image


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


def test_the_partial_file_of_an_abandoned_fetch_is_evicted(host: Host, server: FileServer) -> None:
    host.size = 4000
    host.restarted()
    server.cuts = [1000]
    ticks = iter(range(0, 100000, 200))
    host.cache.clock = lambda: float(next(ticks))
    with pytest.raises(StepPending):
        host.cache.require(IMAGE, host.source(), host.path / "guests/g1")
    assert host.done.wait(20)
    host.done.clear()
    server.data = QCOW2 + b"other"
    assert isinstance(host.get(guest="g2"), QemuImage)
    assert [path.name for path in (host.path / "images").glob(".*")] == []


def test_a_partial_file_of_an_earlier_version_is_evicted(host: Host) -> None:
    """Earlier versions of the agent named a partial file after the image's checksum, not after the fetch."""
    host.size = 4000
    host.restarted()
    former = host.path / f"images/.partial-{host.source().sha256}"
    former.parent.mkdir()
    former.write_bytes(QCOW2[:2000])
    assert isinstance(host.get(), QemuImage)
    assert not former.exists()


def test_a_fetch_succeeds_although_a_guest_is_removed_meanwhile(
    host: Host, server: FileServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    host.size = 8000
    host.restarted()
    fetch_others(host, server, 2)
    shutil.rmtree(host.path / "guests/g0")
    glob = Path.glob

    def find_removed(path: Path, pattern: str) -> list[Path]:
        removed = path / "g0/image.sha256"  # the kernel listed this file just before its removal
        return [*glob(path, pattern), *([removed] if path == host.path / "guests" else [])]

    monkeypatch.setattr(Path, "glob", find_removed)
    server.data = QCOW2 + b"third"
    assert isinstance(host.get(guest="g3"), QemuImage)


def test_a_full_disk_is_reported_and_no_file_remains(host: Host, monkeypatch: pytest.MonkeyPatch) -> None:
    usage = namedtuple("usage", "total used free")  # noqa: PYI024 - as shutil's own
    monkeypatch.setattr(shutil, "disk_usage", lambda _: usage(100, 60, 40))
    with pytest.raises(Refused, match=r"0 MiB free besides the 64 MiB that the cache leaves .*; delete other files"):
        host.get()
    assert host.files == []


def test_an_image_is_refused_if_its_use_cannot_be_recorded(host: Host, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    host.get()
    monkeypatch.setattr(image_folder, "write_durably", refuse)
    with pytest.raises(Refused, match=r"cannot record the use of an image in .*/g2: No space left on device"):
        host.get(guest="g2")


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
