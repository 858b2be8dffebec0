"""The parsed topologies of a store. Only the parser of a topology creates objects in millions.

These objects have no cycles. Python's garbage collections during the parsing would take two thirds of its time, and
each later full collection would visit these objects again, which delays calls by up to half a second.
"""

import gc
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from threading import Lock

from virtcloud.model.errors import NotFound
from virtcloud.model.topology import STORED, Topology
from virtcloud.model.values import Name
from virtcloud.model.vlans import VlanSet

LARGE = 1 << 20
"""The size in bytes from which a document is large."""
_lock = Lock()
_users: set[object] = set()


@dataclass(frozen=True, slots=True)
class TopologyCache:
    """A store's parsed topologies by version, and for each site the VLAN IDs that the site's devices reserve."""

    topologies: dict[int, Topology] = field(default_factory=dict)
    excluded: dict[tuple[int | None, Name], VlanSet] = field(default_factory=dict)

    def replace(self, version: int, topology: Topology) -> None:
        """Cache this version and remove all other versions."""
        self.topologies.clear()
        self.excluded.clear()
        self.topologies[version] = topology

    def copy(self) -> "TopologyCache":
        """Return a copy for a unit that will be rolled back."""
        return TopologyCache(dict(self.topologies), dict(self.excluded))


def parse_stored_topology(document: str | None) -> Topology:
    """Parse the topology in the database. Raise NotFound if there is none."""
    if document is None:
        raise NotFound("there is no topology yet: put one with PUT /v1/topology")
    with collect_later(len(document)):
        return Topology.model_validate_json(document, context=STORED)


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
