"""The parsed topologies of a store, and parsing without garbage collections.

A large topology consists of millions of objects without reference cycles. Garbage collections would take two thirds of
the time of parsing. Each later full collection would visit the objects again, and delay calls by up to half a second.
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
"""A document of at least this size, in bytes, is large."""
BEFORE_ALL_VERSIONS = -1
KEPT_VERSIONS = 2
_lock = Lock()
_users: set[object] = set()


@dataclass(frozen=True, slots=True)
class TopologyCache:
    """The two newest topologies of a store, by version, and the reserved VLAN IDs of sites.

    Units that began before the last change use the older topology. The topologies share the objects of equal parts. A
    thread holds ``reading`` while it parses documents; other threads wait for the result.
    """

    topologies: dict[int, Topology] = field(default_factory=dict)
    excluded: dict[tuple[int | None, Name], VlanSet] = field(default_factory=dict)
    reading: Lock = field(default_factory=Lock)

    def add(self, version: int, topology: Topology) -> None:
        """Cache this version, and remove all versions except the two newest."""
        self.topologies[version] = topology
        for outdated in sorted(self.topologies)[:-KEPT_VERSIONS]:
            self.topologies.pop(outdated, None)
        for key in [key for key in list(self.excluded) if key[0] not in self.topologies]:
            self.excluded.pop(key, None)

    def copy(self) -> "TopologyCache":
        """Return a copy for a unit that will be rolled back: its topology must not get into this cache."""
        return TopologyCache(dict(self.topologies), dict(self.excluded))

    def find_former(self, version: int) -> tuple[int, Topology | None]:
        """Return the newest cached version up to ``version``, and its topology.

        If no such version is cached, return None as the topology, and a number below all versions.
        """
        known = [(number, found) for number, found in list(self.topologies.items()) if number <= version]
        return max(known, key=itemgetter(0), default=(BEFORE_ALL_VERSIONS, None))


@contextmanager
def collect_later(size: int) -> Iterator[None]:
    """Disable garbage collections during the context if a document of ``size`` bytes is large. Thread-safe.

    At the end of the last of simultaneous contexts, exclude all existing objects from later collections
    (``gc.freeze``). Python still frees an object without references, unless it is in a reference cycle.
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
