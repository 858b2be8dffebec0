"""The cache of images from SBF's catalogue, in the folder ``<state>/images`` (`image_folder`).

A thread in the background fetches and unpacks an image, so the reconciler does not wait. The thread renames the image's
folder to its final name when the content is complete and verified. When the cache is full, images that no guest uses
are removed, the least recently used first.
"""

import os
import shutil
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from virtcloud.agent import log
from virtcloud.agent.files import describe_os_error
from virtcloud.agent.guests.image_fetch import ImageFetch, ImageSources
from virtcloud.agent.guests.image_folder import NEW, PARTIAL, SIZE, ImageFolder, content_name, read_size
from virtcloud.agent.guests.image_unpack import UnpackLimits, unpack
from virtcloud.agent.guests.images import GuestImage
from virtcloud.agent.guests.partial_files import remove_partial_file
from virtcloud.agent.guests.url_transfers import FULL
from virtcloud.agent.steps import StepPending
from virtcloud.model.element import Hypervisor
from virtcloud.model.errors import BadInput, Refused, Unreachable, VirtcloudError
from virtcloud.model.image import FETCHING, HEAD_BYTES, UNPACKING, ImageSource, Sha256, check_head
from virtcloud.model.message_text import to_mib
from virtcloud.model.values import Name

MAX_FETCHES: Final = 2
FIRST_PAUSE_S, LONGEST_PAUSE_S, UNWANTED_S = 1.0, 30.0, 120.0
RESERVE_BYTES: Final = 64 << 20
"""Bytes that the cache leaves free on the disk for other programs."""


@dataclass(frozen=True, slots=True)
class CacheSettings:
    """Settings of the cache.

    ``guests`` is the parent of the guests' folders. ``size`` is the maximum size of the cache in bytes.
    """

    folder: Path
    guests: Path
    architecture: str
    size: int
    unpacked: UnpackLimits


@dataclass(slots=True)
class _Fetch:
    """A fetch in the background.

    ``wanted_at`` is when a guest last needed the image. ``reserved`` is the cache's space in bytes for the fetch,
    including the stored bytes. During a pause before another attempt, ``trouble`` is the error of the last attempt; at
    other times, ``trouble`` is None. ``error`` is the error that ended the fetch, or None.
    """

    name: Name
    source: ImageSource
    wanted_at: float
    reserved: int = 0
    done: int = 0
    phase: str = FETCHING
    trouble: str | None = None
    error: VirtcloudError | None = None

    @property
    def missing(self) -> int:
        """The number of bytes of the image's file that the fetch has not stored yet. 0 if no space is reserved."""
        return self.source.size - self.done if self.phase == FETCHING and self.reserved else 0

    def __str__(self) -> str:
        """Return the progress for the user, for example "fetching image debian: 40 %"."""
        percent = f": {100 * self.done // self.source.size} %" if self.phase == FETCHING else ""
        trouble = f"; {self.trouble}; trying again" if self.trouble else ""
        return f"{self.phase} {self.name}{percent}{trouble}"


@dataclass
class ImageCache:
    """The images that this host has fetched. Thread-safe. ``wake`` is called when a fetch ends."""

    settings: CacheSettings
    sources: ImageSources
    wake: Callable[[], object] = lambda: None
    pause: Callable[[float], object] = time.sleep
    clock: Callable[[], float] = time.monotonic
    _lock: threading.RLock = field(default_factory=threading.RLock)
    _fetches: dict[Sha256, _Fetch] = field(default_factory=dict)
    _running: threading.Semaphore = field(default_factory=lambda: threading.Semaphore(MAX_FETCHES))
    _is_clean: bool = False

    @property
    def _folder(self) -> ImageFolder:
        return ImageFolder(self.settings.folder, self.settings.guests)

    def require(self, name: Name, source: ImageSource, guest_folder: Path) -> GuestImage:
        """Return an image, and record that a guest uses it. The cache keeps the image while the guest's folder exists.

        If the image is not in the cache, start a fetch in the background. Raise StepPending until the fetch ends. Raise
        Refused if the image is for another architecture. If the fetch failed, raise its error; the next call then
        starts a new fetch.
        """
        self._check_architecture(name, source)
        with self._lock:
            self._remove_remains()
            image = self._folder.find(source)
            if image is not None:
                self._folder.record_use(source, guest_folder)
                return image
            fetch = self._fetches.get(source.sha256)
            if fetch is None:
                fetch = self._fetches[source.sha256] = _Fetch(name, source, self.clock())
                self._start(fetch)
            fetch.wanted_at = self.clock()
            if fetch.error is not None:
                del self._fetches[source.sha256]
                raise fetch.error
            raise StepPending(str(fetch))

    def _start(self, fetch: _Fetch) -> None:
        name = f"fetch of image {fetch.source.sha256}"
        threading.Thread(target=self._run, args=(fetch,), name=name, daemon=True).start()

    def _check_architecture(self, name: Name, source: ImageSource) -> None:
        if source.architecture != self.settings.architecture:
            raise Refused(
                f"image {name}: expected an image for this host's architecture {self.settings.architecture}, got an "
                f"image for {source.architecture}; choose another image or another host"
            )

    def _run(self, fetch: _Fetch) -> None:
        source = fetch.source
        with self._running:
            try:
                self._install(fetch)
                log.info("image_fetched", image=fetch.name, sha256=source.sha256, bytes=source.size)
                with self._lock:
                    self._fetches.pop(source.sha256, None)
            except Unreachable as error:  # keep the partial file for the next fetch
                self._fail(fetch, error)
            except VirtcloudError as error:
                self._discard(source)
                self._fail(fetch, Refused(f"image {fetch.name}: {error}"))
            except OSError as error:
                self._discard(source)
                self._fail(fetch, Refused(self._describe_os_error(fetch, error)))
            except Exception as error:  # noqa: BLE001 - raised by the next call of `require`
                self._fail(fetch, log.internal_error(error, image=fetch.name))
        self.wake()

    def _discard(self, source: ImageSource) -> None:
        """Remove the files of a failed fetch. Raise no OSError, but log the error if a partial file is not removed.

        The caller reports why the fetch failed.
        """
        shutil.rmtree(self._folder.new_folder(source), ignore_errors=True)
        try:
            remove_partial_file(self._folder.partial_path(source))
        except OSError as error:
            log.warning("partial_image_not_removed", sha256=source.sha256, error=describe_os_error(error))

    def _fail(self, fetch: _Fetch, error: VirtcloudError) -> None:
        log.warning("image_not_fetched", image=fetch.name, sha256=fetch.source.sha256, error=error)
        fetch.error, fetch.reserved = error, 0

    def _describe_os_error(self, fetch: _Fetch, error: OSError) -> str:
        folder = self.settings.folder
        if error.errno in FULL:
            return f"image {fetch.name}: the disk of {folder} is full; free space, or move the agent's state folder"
        return f"image {fetch.name}: cannot be stored in {folder}: {describe_os_error(error)}"

    def _install(self, fetch: _Fetch) -> None:
        source = fetch.source
        partial, new = self._folder.partial_path(source), self._folder.new_folder(source)
        self.settings.folder.mkdir(mode=0o711, parents=True, exist_ok=True)
        self._make_room(fetch, source.size, partial.stat().st_size if partial.exists() else 0)
        ImageFetch(self.sources, lambda attempts, error: self._wait(fetch, attempts, error), _set_done(fetch)).run(
            fetch.name, source, partial
        )
        with partial.open("rb") as file:
            _check_format(source, file.read(HEAD_BYTES))
        shutil.rmtree(new, ignore_errors=True)
        new.mkdir(mode=0o700)
        size = self._fill(fetch, partial, new)
        (new / SIZE).write_text(str(size))
        os.sync()
        target = self.settings.folder / source.sha256
        shutil.rmtree(target, ignore_errors=True)  # the folder exists only if another program removed its content
        new.rename(target)
        remove_partial_file(partial)

    def _fill(self, fetch: _Fetch, partial: Path, new: Path) -> int:
        """Create an image's content in the folder ``new``. Return the content's size in bytes.

        If the image is a root file system (LXC), only root can enter ``new``, because the file system may contain
        setuid programs. If the image is a disk (QEMU), all users of the host can enter ``new``, because QEMU may run as
        another user than root.
        """
        source, content = fetch.source, new / content_name(fetch.source)
        if source.kind is Hypervisor.QEMU:
            new.chmod(0o711)
            partial.chmod(0o644)
            partial.rename(content)
            return source.size
        fetch.phase = UNPACKING
        content.mkdir(mode=0o755)
        size = unpack(partial, source.format, content, self.settings.unpacked, source.architecture)
        partial.unlink()
        self._make_room(fetch, size, size)
        return size

    def _wait(self, fetch: _Fetch, attempts: int, error: VirtcloudError) -> None:
        """Wait before the next attempt. Raise ``error`` if no guest has needed the image for `UNWANTED_S` seconds.

        Another fetch can run during the wait. Otherwise, `MAX_FETCHES` servers that do not answer would stop all
        fetches.
        """
        fetch.trouble = str(error)
        if self.clock() - fetch.wanted_at > UNWANTED_S:
            raise error
        self._running.release()
        try:
            self.pause(min(FIRST_PAUSE_S * 2.0 ** min(attempts - 1, 30), LONGEST_PAUSE_S))
        finally:
            self._running.acquire()
        fetch.trouble = None

    def _make_room(self, fetch: _Fetch, size: int, stored: int) -> None:
        """Reserve ``size`` bytes for a fetch. ``stored`` of these bytes are already on the disk.

        Remove unused images if necessary. Raise Refused if all remaining images are in use.
        """
        while True:
            with self._lock:
                cached, missing = self._measure_others(fetch)
                free = shutil.disk_usage(self.settings.folder).free - RESERVE_BYTES - missing
                if cached + size <= self.settings.size and size - stored <= free:
                    fetch.reserved = size
                    return
            if not self._evict():
                raise Refused(self._describe_full(size, cached, free))

    def _measure_others(self, fetch: _Fetch) -> tuple[int, int]:
        """Return the bytes that images use or reserve, and how many of these bytes are not stored yet.

        Omit the image of ``fetch``.
        """
        others = [other for other in self._fetches.values() if other is not fetch and other.reserved]
        counted = {other.source.sha256 for other in (*others, fetch)}
        entries = (path for path in self._folder.list_entries() if path.name.removeprefix(PARTIAL) not in counted)
        size = sum(map(read_size, entries)) + sum(other.reserved for other in others)
        return size, sum(other.missing for other in others)

    def _evict(self) -> bool:
        with self._lock:
            running = (checksum for checksum, fetch in self._fetches.items() if fetch.error is None)
            unused = self._folder.list_unused(running)
            if not unused:
                return False
            hidden = self.settings.folder / f"{NEW}{unused[0].name}-evicted"
            unused[0].rename(hidden)
            remove_partial_file(unused[0])  # deletes the ETag file, which a partial file's rename does not move
        log.info("image_evicted", entry=unused[0].name)
        shutil.rmtree(hidden) if hidden.is_dir() else hidden.unlink()
        return True

    def _describe_full(self, size: int, cached: int, free: int) -> str:
        return (
            f"the cache {self.settings.folder} has no room for {to_mib(size)} MiB: images in use have "
            f"{to_mib(cached)} of {to_mib(self.settings.size)} MiB, and the disk has {to_mib(max(free, 0))} MiB free; "
            "free space, or change image_cache.size_mb in the agent's settings"
        )

    def _remove_remains(self) -> None:
        if self._is_clean:
            return
        for path in self.settings.folder.glob(f"{NEW}*"):
            shutil.rmtree(path) if path.is_dir() else path.unlink()
        self._is_clean = True


def _check_format(source: ImageSource, head: bytes) -> None:
    try:
        check_head(source.format, head)
    except BadInput as error:
        raise Refused(str(error)) from error


def _set_done(fetch: _Fetch) -> Callable[[int], None]:
    def set_done(done: int) -> None:
        fetch.done = done

    return set_done
