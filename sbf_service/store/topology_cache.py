"""The parsed topologies of a store. Only the parser of a topology creates objects in millions.

These objects have no cycles. Python's garbage collections during the parsing would take two thirds of its time, and
each later full collection would visit these objects again, which delays calls by up to half a second.
"""

import gc
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from operator import itemgetter
from threading import Lock

from virtcloud.model.topology import Topology
from virtcloud.model.values import Name
from virtcloud.model.vlans import VlanSet

LARGE = 1 << 20
"""The size in bytes from which a document is large."""
BEFORE_ALL_VERSIONS = -1
KEPT_VERSIONS = 2
_lock = Lock()
_users: set[object] = set()


@dataclass(frozen=True, slots=True)
class TopologyCache:
    """A store's newest topologies by version, and for each site the VLAN IDs that the site's devices reserve.

    The version before the newest is kept for units that began before the last change. Both have the same objects for
    equal parts. ``reading`` is held while a thread parses documents, so that other threads wait for the result.
    """

    topologies: dict[int, Topology] = field(default_factory=dict)
    excluded: dict[tuple[int | None, Name], VlanSet] = field(default_factory=dict)
    reading: Lock = field(default_factory=Lock)

    def add(self, version: int, topology: Topology) -> None:
        """Cache this version, and remove all but the newest versions."""
        self.topologies[version] = topology
        for outdated in sorted(self.topologies)[:-KEPT_VERSIONS]:
            self.topologies.pop(outdated, None)
        for key in [key for key in list(self.excluded) if key[0] not in self.topologies]:
            self.excluded.pop(key, None)

    def copy(self) -> "TopologyCache":
        """Return a copy for a unit that will be rolled back."""
        return TopologyCache(dict(self.topologies), dict(self.excluded))

    def find_former(self, version: int) -> tuple[int, Topology | None]:
        """Return the newest cached version that is not newer than ``version``."""
        known = [(number, found) for number, found in list(self.topologies.items()) if number <= version]
        return max(known, key=itemgetter(0), default=(BEFORE_ALL_VERSIONS, None))


@contextmanager
def collect_later(size: int) -> Iterator[None]:
    """Disable collections during the context if a document of ``size`` bytes is large. Thread-safe.

    Afterwards, collections no longer visit the objects that exist then. Objects without cycles are still freed.
    """
    if size < LARGE:
        yield
        return
    user = object()
    with _lock:
        _users.add(user)
        gc.disable()
    try:
        yield
    finally:
        with _lock:
            _users.remove(user)
            if not _users:
                gc.freeze()
                gc.enable()
