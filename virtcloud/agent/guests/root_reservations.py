"""Reservations of containers' roots: a root is never read for a clone while its guest starts or runs.

The reconciler starts guests, and threads of sessions read roots. Each reserves the root first.
"""

import threading
from collections.abc import Iterator
from contextlib import contextmanager

from virtcloud.agent.difference import StepPending
from virtcloud.agent.guests.guest_roots import ContainerRoots, GuestRoot
from virtcloud.model.errors import Refused


class RootReservations:
    """The reserved roots of this host, by domain. Thread-safe."""

    def __init__(self, roots: ContainerRoots) -> None:
        """Reserve roots of ``roots``."""
        self._roots = roots
        self._lock = threading.Lock()
        self._read: set[str] = set()
        self._starting: set[str] = set()

    @contextmanager
    def for_start(self, domain: str, guest: str) -> Iterator[None]:
        """Reserve a root for the start of its guest within the block. Raise StepPending while the root is read."""
        with self._lock:
            if domain in self._read:
                raise StepPending(f"guest {guest} starts when its root has been cloned")
            self._starting.add(domain)
        try:
            yield
        finally:
            with self._lock:
                self._starting.discard(domain)

    @contextmanager
    def for_reading(self, domain: str, guest: str) -> Iterator[GuestRoot]:
        """Reserve the root of a stopped guest within the block, in which the guest does not start.

        Raise Refused if the root is reserved, or if there is no root.
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

    def _find(self, domain: str, guest: str) -> GuestRoot:
        root = self._roots.find(domain)
        if root is None:
            raise Refused(
                f"guest {guest}: expected a container that has run since its host started, found no root; start and "
                "stop a container first; a virtual machine cannot be cloned, because its disk contains its cluster's "
                "keys, and the agent does not mount disks of guests"
            )
        return root
