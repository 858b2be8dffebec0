"""Settled agents: agents whose elements have confirmed the wanted revision and have no error report.

SBF answers the polls of settled agents without a query (:mod:`sbf_service.http.settled_polls`), from revisions in
memory. Any change of an element removes its agent from the settled agents; a notice announces a change by another
replica. After a lost notice, an agent stays settled for at most 15 s, because the change reader reads all settled
agents every 15 s.
"""

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from threading import Lock

from sqlalchemy import select

from sbf_service.store.store import Store
from sbf_service.store.tables.columns import equals_any
from sbf_service.store.tables.tables import ElementRow
from sbf_service.store.unit_of_work import TOPOLOGY_TOPIC
from virtcloud.model.edge import DEVICE_KINDS

ELEMENT_TOPIC = "element:"
KINDS_OF_TOPICS = (ELEMENT_TOPIC, "confirmed:")
"""The beginnings of the change topics that end with an element's name, such as ``element:brno-h1``."""
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

    ``gets_notices`` returns whether this replica receives other replicas' notices. ``clock`` returns a monotonic time
    in seconds.
    """

    store: Store
    gets_notices: Callable[[], bool]
    clock: Callable[[], float] = time.monotonic
    _revisions: dict[str, int] = field(default_factory=dict)
    _changed: set[str] = field(default_factory=set)
    """The topics that changed since the last :meth:`load` began."""
    _read_at: tuple[datetime, float] | None = None
    """The database's time during the last :meth:`load`, and the time of ``clock`` at the same moment."""
    _lock: Lock = field(default_factory=Lock)
    _loading: Lock = field(default_factory=Lock)
    """The lock held during :meth:`load`: a simultaneous load would clear ``_changed`` of the first load."""

    def find(self, element: str) -> int | None:
        """Return the wanted revision of an element whose agent is settled, or None.

        Without notices, return None: this replica cannot know whether the agent is settled.
        """
        return self._revisions.get(element) if self.gets_notices() else None

    def omit_current(self, versions: Mapping[str, int | None]) -> dict[str, int | None]:
        """Return ``versions`` (by topic) without current topics.

        A topic ``element:NAME`` is current if its version is the revision of NAME's settled agent. One call for the
        topics of 10,000 waiting agents takes a third of the time of separate calls.
        """
        revisions, start = self._revisions, len(ELEMENT_TOPIC)
        return {
            topic: version
            for topic, version in versions.items()
            if version is None or revisions.get(topic[start:]) != version or not topic.startswith(ELEMENT_TOPIC)
        }

    def estimate_time(self) -> datetime:
        """Return the database's time, computed from the last :meth:`load` and ``clock``.

        Call :meth:`load` before the first call.
        """
        assert self._read_at is not None  # noqa: S101 - a settled agent was read
        read_at, clock_then = self._read_at
        return read_at + timedelta(seconds=self.clock() - clock_then)

    def load(self) -> None:
        """Read the settled agents, except agents whose elements change meanwhile."""
        with self._loading:
            with self._lock:
                self._changed = set()
            with self.store.read() as unit:
                read_at = unit.now, self.clock()
                found = dict(unit.connection.execute(_READ_SETTLED).all())
            with self._lock:
                self._revisions, self._read_at = found, read_at
                self._remove(self._changed)

    def on_change(self, topics: frozenset[str]) -> None:
        """Remove the agents of elements in ``topics`` from the settled agents."""
        with self._lock:
            self._changed |= topics
            self._remove(topics)

    def _remove(self, topics: frozenset[str] | set[str]) -> None:
        if TOPOLOGY_TOPIC in topics:  # a change of the topology can remove elements without naming them
            self._revisions = {}
            return
        for topic in topics:
            for kind in KINDS_OF_TOPICS:
                if topic.startswith(kind):
                    self._revisions.pop(topic.removeprefix(kind), None)
