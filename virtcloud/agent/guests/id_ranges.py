"""The ranges of user and group IDs of this host's containers. Each container has a separate range.

On the host, user n of a container has the ID n plus the first ID of the container's range. No account of the host has
these IDs. The file ``ids`` in the guest's folder records the first ID of the range.
"""

import threading
from pathlib import Path
from typing import Final

from virtcloud.agent.files import write_durably
from virtcloud.model.errors import Refused

IDS_PER_GUEST: Final = 1 << 16
FIRST_ID: Final = 0x10000000
END: Final = 0x70000000
"""All IDs are below this number. systemd and other programs use some of the higher IDs (systemd.io/UIDS-GIDS)."""
CLONE_IDS: Final = range(END - IDS_PER_GUEST, END)
"""The user IDs with which qemu-img reads disks of virtual machines (`disk_archives`). No container gets these IDs."""
RECORD = "ids"


class IdRanges:
    """Allocates ranges of IDs to the guests whose folders are in ``folder``."""

    def __init__(self, folder: Path, first: int = FIRST_ID) -> None:
        """Create an object that allocates ranges from the ID ``first`` on."""
        self._folder = folder
        self._first = first
        self._lock = threading.Lock()
        self._unrecorded: dict[str, int] = {}
        """The first ID of each range whose record is being written. The key is the domain of the range's guest.

        Other threads allocate none of these ranges to another guest.
        """

    def find(self, domain: str) -> int | None:
        """Return the first ID of a guest's range, or None if no range is recorded for the guest."""
        try:
            return int((self._folder / domain / RECORD).read_text())
        except (FileNotFoundError, ValueError):
            return None

    def ensure(self, domain: str) -> int:
        """Return the first ID of a guest's range. If the guest has no range, allocate the lowest free range.

        The guest's folder must exist. Raise Refused if all ranges are in use, and OSError if the range cannot be
        recorded.
        """
        with self._lock:
            existing = self._unrecorded.get(domain, self.find(domain))
            if existing is not None:
                return existing
            used = {self.find(path.parent.name) for path in self._folder.glob(f"*/{RECORD}")}
            first = self._unrecorded[domain] = self._find_free(domain, used | set(self._unrecorded.values()))
        try:
            # `GuestRoots` synchronizes the folder later, when it writes the record of the guest's root file system.
            write_durably(self._folder / domain / RECORD, f"{first}\n".encode(), sync_folder=False)
        finally:
            with self._lock:
                del self._unrecorded[domain]
        return first

    def _find_free(self, domain: str, used: set[int | None]) -> int:
        for first in range(self._first, CLONE_IDS.start, IDS_PER_GUEST):
            if _is_free(first, used):
                return first
        raise Refused(
            f"no user IDs are free for guest {domain}: expected a free range of {IDS_PER_GUEST} IDs from {self._first} "
            f"on, found only ranges in use (guests: {len(used)}); set a lower first_id under [guests] in the settings "
            "of this host's agent"
        )


def _is_free(first: int, used: set[int | None]) -> bool:
    return not any(other is not None and abs(first - other) < IDS_PER_GUEST for other in used)
