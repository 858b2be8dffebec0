"""Clones of guests: the root or disk of a stopped guest becomes an image in SBF's catalogue.

A session of kind ``clone`` starts a clone, and sends the progress as lines of JSON. The agent packs the root or disk
into a temporary file, because SBF requires the checksum and the size before the content. If the user disconnects, the
agent stops the clone, and SBF discards the upload.
"""

import queue
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, ExitStack, closing, contextmanager, suppress
from pathlib import Path
from typing import Final, Protocol

from virtcloud.agent import log
from virtcloud.agent.guest_access.session_listener import find_segment
from virtcloud.agent.guests.disk_archives import DiskArchive, StoppedGuestDisk, open_disk_archive
from virtcloud.agent.guests.root_archives import RootArchive, list_key_lines, open_root_archive
from virtcloud.agent.guests.rooted_files import GuestRoot
from virtcloud.agent.network import names
from virtcloud.model.errors import Refused, VirtcloudError
from virtcloud.model.guest_sessions import CloneProgress, GuestSession
from virtcloud.model.image import CatalogueImage, ImageContent
from virtcloud.model.values import Name
from virtcloud.model.wanted import GuestWanted, Segment, WantedDocument

REPORT_S: Final = 0.5
"""Shortest time in seconds between two lines of progress, except lines that must always be sent."""
CloneSource = GuestRoot | StoppedGuestDisk
ReserveSource = Callable[[str, str], AbstractContextManager[CloneSource]]
"""A function that reserves a guest's root or disk during a ``with`` block. The guest cannot start during the block.

The arguments are the names of the domain and of the guest.
"""


class CloneApi(Protocol):
    """The calls of SBF that clones need."""

    def wanted(self, element: str) -> WantedDocument:
        """Return the wanted document of this host."""

    def upload_clone(
        self, element: str, session: GuestSession, content: ImageContent, data: Iterable[bytes]
    ) -> CatalogueImage:
        """Upload the image ``data`` to SBF for a session of this host."""


class CloneCancelledError(Exception):
    """The user has disconnected: stop the clone."""


class CloneChannel:
    """A channel with the progress of a clone."""

    def __init__(self) -> None:
        """Create a channel without lines."""
        self._lines: queue.SimpleQueue[bytes] = queue.SimpleQueue()
        self._cancelled = threading.Event()
        self._reported = 0.0

    def report(self, progress: CloneProgress, *, always: bool = False) -> None:
        """Queue a line for the user.

        Discard a line that follows the previous queued line in less than `REPORT_S` seconds. If ``always`` is true,
        discard no line. Raise CloneCancelledError if the user has disconnected.
        """
        if self._cancelled.is_set():
            raise CloneCancelledError
        if always or time.monotonic() - self._reported > REPORT_S:
            self._reported = time.monotonic()
            self._lines.put(progress.model_dump_json(exclude_none=True).encode() + b"\n")

    def end(self) -> None:
        """Queue the end of the lines."""
        self._lines.put(b"")

    def receive(self) -> bytes:
        """Wait for the next line, and return it. Return ``b""`` after the last line."""
        return self._lines.get()

    def send(self, data: bytes) -> None:
        """Discard input: a clone has no input."""

    def send_end(self) -> None:
        """Do nothing: a clone has no input."""

    def close(self) -> None:
        """Request the end of the clone. Idempotent."""
        self._cancelled.set()
        self.end()


class GuestCloner:
    """Makes images from the roots and disks of this host's stopped guests."""

    def __init__(self, element: Name, folder: Path, reserve: ReserveSource, sbf: CloneApi) -> None:
        """Create an object that writes archives to the file system of ``folder``."""
        self._element = element
        self._folder = folder
        self._reserve = reserve
        self._sbf = sbf

    @contextmanager
    def open_clone(self, session: GuestSession, segment: Segment) -> Iterator[CloneChannel]:
        """Clone a guest in a thread. Yield the channel with the progress. At the end of the block, stop the clone.

        Raise Refused if the guest is not stopped, or has neither a root nor a disk.
        """
        with self._reserve(names.domain_name(segment.id, session.guest), session.guest) as source:
            guest = self._require_stopped(session)
            channel = CloneChannel()
            worker = threading.Thread(target=self._run, args=(session, guest, source, channel), name="session clone")
            worker.daemon = True
            worker.start()
            try:
                yield channel
            finally:
                channel.close()
                worker.join()

    def _require_stopped(self, session: GuestSession) -> GuestWanted:
        """Return the session's guest in the current wanted document of this host.

        The caller has reserved the guest, so the guest cannot start later.
        """
        segment = find_segment(self._sbf.wanted(self._element).wanted, session)
        guest = next(guest for guest in segment.guests if guest.name == session.guest)
        if guest.power != "off":
            raise Refused(f"guest {guest.name} runs: stop it first (virtcloud guest stop), or pass --stop")
        return guest

    def _run(self, session: GuestSession, guest: GuestWanted, source: CloneSource, channel: CloneChannel) -> None:
        with suppress(CloneCancelledError):
            try:
                image = self._clone(session, guest, source, channel)
                log.info("guest_cloned", guest=guest.name, image=image.name, size=image.source.size)
                channel.report(CloneProgress(image=image), always=True)
            except VirtcloudError as error:
                log.warning("guest_not_cloned", guest=guest.name, error=error)
                channel.report(CloneProgress(error=str(error)), always=True)
            except Exception as error:  # noqa: BLE001 - a fault of one clone must not end the agent
                message = log.internal_error(error, element=self._element, guest=guest.name)
                channel.report(CloneProgress(error=str(message)), always=True)
        channel.end()

    def _clone(
        self, session: GuestSession, guest: GuestWanted, source: CloneSource, channel: CloneChannel
    ) -> CatalogueImage:
        with ExitStack() as stack:
            archive: RootArchive | DiskArchive
            if isinstance(source, StoppedGuestDisk):
                archive = stack.enter_context(open_disk_archive(self._folder))
                packing = archive.pack(source, list_key_lines(guest.seed))
            else:
                archive = stack.enter_context(open_root_archive(self._folder))
                packing = archive.pack(source, list_key_lines(guest.seed))
            stack.enter_context(closing(packing))
            for size in packing:
                channel.report(CloneProgress(packed=size))
            content = archive.describe()
            channel.report(CloneProgress(packed=content.size, size=content.size), always=True)
            parts = _report_parts(archive, content.size, channel)
            return self._sbf.upload_clone(self._element, session, content, parts)


def _report_parts(archive: RootArchive | DiskArchive, size: int, channel: CloneChannel) -> Iterator[bytes]:
    sent = 0
    for data in archive.read():
        yield data
        sent += len(data)
        channel.report(CloneProgress(packed=size, sent=sent, size=size))
