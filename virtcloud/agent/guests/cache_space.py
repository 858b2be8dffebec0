"""The disk space of the cache of images: reservations of fetches, and the removal of unused images."""

import shutil
import threading
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from virtcloud.agent import log
from virtcloud.agent.guests.fetch_states import FetchState
from virtcloud.agent.guests.image_folder import NEW, ImageFolder, read_size
from virtcloud.agent.guests.partial_files import remove_partial_file
from virtcloud.model.errors import Refused
from virtcloud.model.image import Sha256
from virtcloud.model.message_text import to_mib

RESERVE_BYTES: Final = 64 << 20
"""Bytes that the cache leaves free on the disk for other programs."""


@dataclass(frozen=True, slots=True)
class CacheSpace:
    """The space of the cache, at most ``size`` bytes. ``lock`` protects ``fetches`` and the folder ``images``."""

    images: ImageFolder
    size: int
    fetches: Mapping[Sha256, FetchState]
    lock: threading.RLock

    def make_room(self, fetch: FetchState, size: int, stored: int) -> None:
        """Reserve ``size`` bytes for a fetch, of which ``stored`` bytes are already on the disk.

        Remove unused images if necessary. Raise Refused if all remaining images are in use.
        """
        while True:
            with self.lock:
                cached, missing = self._measure_others(fetch)
                free = shutil.disk_usage(self.images.folder).free - RESERVE_BYTES - missing
                if cached + size <= self.size and size - stored <= free:
                    fetch.reserved = size
                    return
            if not self._evict():
                raise Refused(self._describe_full(size, cached, free))

    def _measure_others(self, fetch: FetchState) -> tuple[int, int]:
        """Return the bytes that other images and fetches use or reserve, and how many of these are not stored yet."""
        others = [other for other in self.fetches.values() if other is not fetch and other.reserved]
        counted = {self.images.partial_path(other.id) for other in (*others, fetch)}
        if self.images.find(fetch.source) is None:  # the cache will replace the image's incomplete folder
            counted.add(self.images.folder / fetch.source.sha256)
        entries = (path for path in self.images.list_entries() if path not in counted)
        size = sum(map(read_size, entries)) + sum(other.reserved for other in others)
        return size, sum(other.missing for other in others)

    def _evict(self) -> bool:
        with self.lock:
            running = [fetch for fetch in self.fetches.values() if fetch.error is None]
            unused = self.images.list_unused((fetch.id, fetch.source.sha256) for fetch in running)
            if not unused:
                return False
            hidden = self.images.folder / f"{NEW}{unused[0].name}-evicted"
            unused[0].rename(hidden)
            remove_partial_file(unused[0])  # deletes the ETag file of a renamed partial file
        log.info("image_evicted", entry=unused[0].name)
        shutil.rmtree(hidden) if hidden.is_dir() else hidden.unlink()
        return True

    def _describe_full(self, size: int, cached: int, free: int) -> str:
        return (
            f"the cache {self.images.folder} has no room for {to_mib(size)} MiB: images in use have "
            f"{to_mib(cached)} of {to_mib(self.size)} MiB, and the disk has {to_mib(max(free, 0))} MiB free besides "
            f"the {to_mib(RESERVE_BYTES)} MiB that the cache leaves to other programs; delete other files "
            "on the disk, or increase image_cache.size_mb in the agent's settings"
        )
