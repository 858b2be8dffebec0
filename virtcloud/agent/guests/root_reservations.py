"""Reservations of guests' roots and disks: a root or disk must not be cloned while its guest is being started.

A *root* is the root file system of a container. A *disk* is the disk of a virtual machine. The reconciler reserves a
guest's root and disk before a start. Another thread reserves them before a clone.
"""

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import cycle
from pathlib import Path

from virtcloud.agent.guests.disk_archives import StoppedGuestDisk, find_guest_disk
from virtcloud.agent.guests.guest_roots import ContainerRoots
from virtcloud.agent.guests.id_ranges import CLONE_IDS
from virtcloud.agent.guests.rooted_files import GuestRoot
from virtcloud.agent.steps import StepPending
from virtcloud.model.errors import Refused


class RootReservations:
    """The reserved roots and disks of this host, by domain. Thread-safe."""

    def __init__(self, roots: ContainerRoots, folder: Path) -> None:
        """Create an object for the roots of ``roots``, and the disks in the guests' folders below ``folder``."""
        self._roots = roots
        self._folder = folder
        self._users = cycle(CLONE_IDS)
        self._lock = threading.Lock()
        self._read: set[str] = set()
        self._starting: set[str] = set()

    @contextmanager
    def for_start(self, domain: str, guest: str) -> Iterator[None]:
        """Reserve a guest's root and disk while the block starts the guest.

        Raise StepPending if the root or disk is being cloned.
        """
        with self._lock:
            if domain in self._read:
                raise StepPending(f"guest {guest} starts when it has been cloned")
            self._starting.add(domain)
        try:
            yield
        finally:
            with self._lock:
                self._starting.discard(domain)

    @contextmanager
    def for_reading(self, domain: str, guest: str) -> Iterator[GuestRoot | StoppedGuestDisk]:
        """Reserve a stopped guest's root or disk for reading within the block, and yield the root or disk.

        Raise Refused if the guest is being started or cloned, or has neither a root nor a disk.
        """
        with self._lock:
            if domain in self._read | self._starting:
                raise Refused(f"guest {guest} is being {'cloned' if domain in self._read else 'started'}: try again")
            self._read.add(domain)
        try:
            yield self._find(domain, guest)
        finally:
            with self._lock:
                self._read.discard(domain)

    def _find(self, domain: str, guest: str) -> GuestRoot | StoppedGuestDisk:
        found = self._roots.find(domain) or find_guest_disk(self._folder / domain, next(self._users))
        if found is None:
            raise Refused(
                f"guest {guest}: expected a container that has run since its host started, or a virtual machine whose "
                "image has a disk; found neither root nor disk; start and stop the guest first"
            )
        return found
