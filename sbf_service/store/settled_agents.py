"""The settled agents: those whose elements have confirmed their whole wanted revision.

A replica has their revisions in memory. Most polls of agents wait for a newer revision than the settled one, and SBF
answers these polls without a query (:mod:`sbf_service.http.settled_polls`). A change removes an agent from the settled
agents, also a change by another replica. The slow poll of the change reader reads all settled agents again, so a lost
notice has an effect for 15 s at most.
"""

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from threading import Lock

from sqlalchemy import select

from sbf_service.store.columns import equals_any
from sbf_service.store.tables import ElementRow
from sbf_service.store.unit_of_work import TOPOLOGY_TOPIC, Store
from virtcloud.model.edge import DEVICE_KINDS

KINDS_OF_TOPICS = ("element:", "confirmed:")
"""The first characters of the topics that are followed by an element's name."""
_READ_SETTLED = select(ElementRow.name, ElementRow.wanted_revision).where(
    ElementRow.present,
    ElementRow.reachable,
    ElementRow.trouble.is_(None),
    ElementRow.confirmed_revision == ElementRow.wanted_revision,
    ~equals_any(ElementRow.kind, DEVICE_KINDS),
)


@dataclass
class SettledAgents:
    """The revisions of settled agents, by element. Thread-safe.

    ``gets_notices`` returns whether other replicas' changes arrive at this replica. ``clock`` is monotonic, in seconds.
    """

    store: Store
    gets_notices: Callable[[], bool]
    clock: Callable[[], float] = time.monotonic
    _revisions: dict[str, int] = field(default_factory=dict)
    _changed: set[str] = field(default_factory=set)
    """The topics that changed since the last reading began."""
    _read_at: tuple[datetime, float] | None = None
    """The database's time of the last reading, and the time of ``clock``."""
    _lock: Lock = field(default_factory=Lock)
    _loading: Lock = field(default_factory=Lock)
    """Held by the one reading: a second reading at the same time would lose the changes since the first one began."""

    def find(self, element: str) -> int | None:
        """Return the settled revision of an element; None if the element is not settled, or if SBF does not know."""
        return self._revisions.get(element) if self.gets_notices() else None

    def estimate_time(self) -> datetime:
        """Return the database's time, as far as it follows from the last reading. Requires a settled agent."""
        assert self._read_at is not None  # noqa: S101 - a settled agent was read
        read_at, clock_then = self._read_at
        return read_at + timedelta(seconds=self.clock() - clock_then)

    def load(self) -> None:
        """Read the settled agents from the database. Agents that change during the reading are left out."""
        with self._loading:
            with self._lock:
                self._changed = set()
            with self.store.read() as unit:
                read_at = unit.now, self.clock()
                found = {row.name: row.wanted_revision for row in unit.connection.execute(_READ_SETTLED)}
            with self._lock:
                self._revisions, self._read_at = found, read_at
                self._remove(self._changed)

    def on_change(self, topics: frozenset[str]) -> None:
        """Remove the agents whose elements have changed."""
        with self._lock:
            self._changed |= topics
            self._remove(topics)

    def _remove(self, topics: frozenset[str] | set[str]) -> None:
        if TOPOLOGY_TOPIC in topics:  # names no removed element
            self._revisions = {}
        for topic in topics:
            for kind in KINDS_OF_TOPICS:
                if topic.startswith(kind):
                    self._revisions.pop(topic.removeprefix(kind), None)
