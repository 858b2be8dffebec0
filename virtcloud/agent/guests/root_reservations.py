"""Reservations of guests' roots and disks, so that no root or disk is cloned while its guest is being started.

Before the reconciler starts a guest, it reserves the guest's root and disk. Before a thread clones a stopped guest, it
reserves the root and disk too.
"""

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import cycle
from pathlib import Path

from virtcloud.agent.guests.disk_archives import StoppedGuestDisk, find_guest_disk
from virtcloud.agent.guests.guest_roots import ContainerRoots, GuestRoot
from virtcloud.agent.guests.id_ranges import CLONE_IDS
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
        """Reserve a guest's root and disk for its start within the block. Raise StepPending while they are cloned."""
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
        """Reserve the root or the disk of a stopped guest for reading within the block. Yield the root or the disk.

        The guest cannot start within the block. Raise Refused if the guest is being started or cloned, or if it has
        neither a root nor a disk.
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
