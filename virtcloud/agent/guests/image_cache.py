"""The cache of images from SBF's catalogue, in the folder ``<state>/images`` (`image_folder`).

A thread in the background fetches and unpacks an image, so the reconciler does not wait. An image gets its final name
when its content is complete and verified. When the cache is full, images that no guest uses are removed, the least
recently used first.
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
from virtcloud.agent.guests.cache_space import CacheSpace
from virtcloud.agent.guests.fetch_slots import FetchSlots
from virtcloud.agent.guests.fetch_states import FetchState, SlotYielded, identify_fetch
from virtcloud.agent.guests.image_fetch import ImageFetch, ImageSources, check_format
from virtcloud.agent.guests.image_folder import NEW, SIZE, ImageFolder, content_name
from virtcloud.agent.guests.image_unpack import UnpackLimits, unpack
from virtcloud.agent.guests.images import GuestImage
from virtcloud.agent.guests.partial_files import remove_partial_file
from virtcloud.agent.guests.url_transfers import FULL
from virtcloud.agent.steps import StepPending
from virtcloud.model.element import Hypervisor
from virtcloud.model.errors import Refused, Unreachable, VirtcloudError
from virtcloud.model.image import UNPACKING, ImageSource, Sha256
from virtcloud.model.values import Name

MAX_FETCHES: Final = 2
"""Limit of simultaneous fetches from URLs. Fetches from other sources have a separate limit of the same number."""
FIRST_PAUSE_S, LONGEST_PAUSE_S = 1.0, 30.0


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


@dataclass
class ImageCache:
    """The images that this host has fetched. Thread-safe. ``wake`` is called when a fetch ends."""

    settings: CacheSettings
    sources: ImageSources
    wake: Callable[[], object] = lambda: None
    pause: Callable[[float], object] = time.sleep
    clock: Callable[[], float] = time.monotonic
    _lock: threading.RLock = field(default_factory=threading.RLock)
    _fetches: dict[Sha256, FetchState] = field(default_factory=dict)
    _from_urls: FetchSlots = field(default_factory=lambda: FetchSlots(MAX_FETCHES))
    _from_others: FetchSlots = field(default_factory=lambda: FetchSlots(MAX_FETCHES))
    _cleaning: threading.Lock = field(default_factory=threading.Lock)
    _is_clean: bool = False

    @property
    def _folder(self) -> ImageFolder:
        return ImageFolder(self.settings.folder, self.settings.guests)

    @property
    def _space(self) -> CacheSpace:
        return CacheSpace(self._folder, self.settings.size, self._fetches, self._lock)

    def require(self, name: Name, source: ImageSource, guest_folder: Path) -> GuestImage:
        """Return an image, and record that a guest uses the image.

        The record lasts until `end_former_uses` or the removal of the guest's folder.

        If the image is not in the cache, start a fetch in the background, and raise StepPending until the fetch ends.
        Raise Refused if the image is for another architecture. If the fetch failed, raise the fetch's error; the next
        call starts a new fetch.
        """
        self._check_architecture(name, source)
        fetch_id = identify_fetch(name, source)
        with self._lock:
            image = self._folder.find(source)
            if image is not None:
                self._folder.record_use(source, guest_folder)
                return image
            fetch = self._fetches.get(fetch_id) or self._start(name, source)
            fetch.wanted_at = self.clock()
            if (error := fetch.error_for(name)) is not None:
                del self._fetches[fetch_id]
                raise error
            raise StepPending(fetch.describe(name))

    def _start(self, name: Name, source: ImageSource) -> FetchState:
        fetch, title = FetchState(name, source, self.clock()), f"fetch of image {source.sha256}"
        try:
            threading.Thread(target=self._run, args=(fetch,), name=title, daemon=True).start()
        except RuntimeError as error:
            raise Unreachable(f"image {name} cannot be fetched: the agent cannot start a thread: {error}") from error
        self._fetches[fetch.id] = fetch
        return fetch

    def _slots(self, fetch: FetchState) -> FetchSlots:
        return self._from_others if fetch.source.url is None else self._from_urls

    def _occupy_slot(self, fetch: FetchState) -> None:
        fetch.waits = True
        self._slots(fetch).acquire(fetch.server)
        fetch.waits = False

    def _check_architecture(self, name: Name, source: ImageSource) -> None:
        if source.architecture != self.settings.architecture:
            raise Refused(
                f"image {name}: expected an image for this host's architecture {self.settings.architecture}, got an "
                f"image for {source.architecture}; choose another image or another host"
            )

    def _run(self, fetch: FetchState) -> None:
        self._occupy_slot(fetch)
        try:
            self._install(fetch)
            self._slots(fetch).record_attempt(fetch.server, failed=False)
            with self._lock:
                self._fetches.pop(fetch.id, None)
        except Unreachable as error:  # keep the partial file for the next fetch
            if isinstance(error, SlotYielded):  # a guest that needs the image later starts the next fetch
                with self._lock:
                    self._fetches.pop(fetch.id, None)
            self._fail(fetch, error)
        except VirtcloudError as error:
            self._discard(fetch)
            self._fail(fetch, Refused(str(error)))
        except OSError as error:
            self._discard(fetch)
            self._fail(fetch, Refused(self._describe_os_error(error)))
        except Exception as error:  # noqa: BLE001 - raised by the next call of `require`
            self._fail(fetch, log.internal_error(error, image=fetch.name))
        finally:
            self._slots(fetch).release(fetch.server)
        self.wake()

    def _discard(self, fetch: FetchState) -> None:
        shutil.rmtree(self._folder.new_folder(fetch.id), ignore_errors=True)
        try:
            remove_partial_file(self._folder.partial_path(fetch.id))
        except OSError as error:
            log.warning("partial_image_not_removed", sha256=fetch.source.sha256, error=describe_os_error(error))

    def _fail(self, fetch: FetchState, error: VirtcloudError) -> None:
        log.warning("image_not_fetched", image=fetch.name, sha256=fetch.source.sha256, error=error)
        fetch.error, fetch.reserved = error, 0

    def _describe_os_error(self, error: OSError) -> str:
        folder = self.settings.folder
        if error.errno in FULL:
            return f"the disk of {folder} is full; free space, or move the agent's state folder"
        return f"the image cannot be stored in {folder}: {describe_os_error(error)}"

    def _install(self, fetch: FetchState) -> None:
        source = fetch.source
        if self._folder.find(source) is not None:  # fetched from another source while this fetch waited
            return
        partial, new = self._folder.partial_path(fetch.id), self._folder.new_folder(fetch.id)
        self._remove_remains()
        self.settings.folder.mkdir(mode=0o711, parents=True, exist_ok=True)
        self._space.make_room(fetch, source.size, partial.stat().st_size if partial.exists() else 0)
        ImageFetch(
            self.sources,
            lambda attempts, error: self._wait(fetch, attempts, error),
            lambda done: self._advance(fetch, done),
        ).run(fetch.name, source, partial)
        check_format(source, partial)
        shutil.rmtree(new, ignore_errors=True)
        new.mkdir(mode=0o700)
        size = self._fill(fetch, partial, new)
        (new / SIZE).write_text(str(size))
        os.sync()
        self._publish(fetch, new)
        remove_partial_file(partial)

    def _publish(self, fetch: FetchState, new: Path) -> None:
        target = self.settings.folder / fetch.source.sha256
        with self._lock:
            if self._folder.find(fetch.source) is None:
                shutil.rmtree(target, ignore_errors=True)  # an existing `target` has lost its content
                new.rename(target)
                fetch.reserved = 0  # from now on, the image counts as an entry of the cache's folder
                log.info("image_fetched", image=fetch.name, sha256=fetch.source.sha256, bytes=fetch.source.size)
        shutil.rmtree(new, ignore_errors=True)

    def _fill(self, fetch: FetchState, partial: Path, new: Path) -> int:
        """Create an image's content in the folder ``new``. Return the content's size in bytes.

        Only root can enter the folder of a root file system (LXC), which may contain setuid programs. All users can
        enter the folder of a disk, because QEMU may run as a user other than root.
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
        self._space.make_room(fetch, size, size)
        return size

    def _advance(self, fetch: FetchState, done: int) -> None:
        """Record that ``done`` bytes are stored. Raise SlotYielded if the fetch must leave its slot to another fetch.

        Otherwise a slow server could occupy a slot for days after the guests that needed the image have ended.
        """
        fetch.done = done
        if fetch.is_wanted(self.clock()):
            return
        with self._lock:
            is_slot_needed = any(fetch.delays(other) for other in self._fetches.values())
        if is_slot_needed:
            raise SlotYielded(
                f"the fetch ended after {done} of {fetch.source.size} bytes, because no guest needed the image, and "
                "another image waited; the next fetch continues after these bytes"
            )

    def _wait(self, fetch: FetchState, attempts: int, error: VirtcloudError) -> None:
        """Wait before the next attempt. Raise ``error`` if no guest has needed the image for `UNWANTED_S` seconds.

        Another fetch can run during the wait (`FetchSlots`).
        """
        fetch.trouble = str(error)
        if fetch.source.url is not None:  # a restart of SBF must not delay all images of SBF
            self._slots(fetch).record_attempt(fetch.server, failed=True)
        if not fetch.is_wanted(self.clock()):
            raise error
        self._slots(fetch).release(fetch.server)
        try:
            self.pause(min(FIRST_PAUSE_S * 2.0 ** min(attempts - 1, 30), LONGEST_PAUSE_S))
        finally:
            self._occupy_slot(fetch)
        fetch.trouble = None

    def _remove_remains(self) -> None:
        """Before the first fetch, remove images that a killed agent did not finish unpacking or removing.

        The removal can take minutes.
        """
        with self._cleaning:
            if self._is_clean:
                return
            for path in self.settings.folder.glob(f"{NEW}*"):
                shutil.rmtree(path) if path.is_dir() else path.unlink()
            self._is_clean = True
