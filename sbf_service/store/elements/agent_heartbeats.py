"""Collects the heartbeats of polling agents, so that one transaction records many heartbeats.

Each poll is a heartbeat, even if SBF answers the poll from memory. :mod:`sbf_service.store.elements.leases` records the
heartbeats of other calls.
"""

import json
from collections import defaultdict
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from threading import Lock

from sqlalchemy import Text, bindparam, or_, select, update

from sbf_service.store.elements.leases import require_agent
from sbf_service.store.store import Store
from sbf_service.store.tables.columns import equals_any, select_texts
from sbf_service.store.tables.tables import IS_RECONCILED, ElementRow
from sbf_service.store.unit_of_work import Unit
from virtcloud.model.edge import DEVICE_KINDS
from virtcloud.model.errors import VirtcloudError

_IN_LIST = ElementRow.name.in_(select_texts(bindparam("names", type_=Text)))
_LOCK_UNLOCKED = select(ElementRow.name).where(_IN_LIST).with_for_update(skip_locked=True, of=ElementRow)
_RECORD_HEARTBEATS = (
    update(ElementRow)
    .where(_IN_LIST)
    .where(or_(ElementRow.last_seen.is_(None), ElementRow.last_seen < bindparam("seen_at")))
    .values(last_seen=bindparam("seen_at"))
)
_READ_AGENT_ELEMENTS = select(
    ElementRow.name,
    ElementRow.wanted_revision,
    (
        ElementRow.reachable
        & ElementRow.trouble.is_(None)
        & (ElementRow.confirmed_revision == ElementRow.wanted_revision)
    ).label("is_settled"),
    ElementRow.last_seen,
).where(
    ElementRow.name.in_(bindparam("names", expanding=True)),
    IS_RECONCILED,
    ~equals_any(ElementRow.kind, DEVICE_KINDS),
)


@dataclass(frozen=True, slots=True)
class AgentElement:
    """The wanted revision of an agent's element.

    The element is *settled* if it is reachable, has confirmed this revision, and has no error report.
    """

    revision: int
    is_settled: bool


@dataclass
class AgentHeartbeats:
    """The heartbeats of polling agents, until :meth:`record` writes the heartbeats to the database. Thread-safe.

    If the recorded heartbeat of an agent is older than ``find_max_age()``, its next poll is recorded immediately.
    """

    store: Store
    find_max_age: Callable[[], timedelta]
    """The maximum age, which a reload of the settings can change."""
    _pending: dict[str, datetime] = field(default_factory=dict)
    _lock: Lock = field(default_factory=Lock)

    @property
    def max_wait(self) -> float:
        """The maximum delay of the answer to a poll, in seconds.

        After a longer delay, the agent's next heartbeat could be too late.
        """
        return self.find_max_age().total_seconds()

    def receive(self, name: str) -> AgentElement:
        """Receive an agent's heartbeat, and return the agent's element.

        Raise NotFound for an unknown element, and Conflict for a device, which has no agent.
        """
        found = self.receive_many([name])[name]
        if isinstance(found, VirtcloudError):
            raise found
        return found

    def find(self, name: str) -> AgentElement:
        """Return the element of an agent without a heartbeat. Raise the errors of :meth:`receive`."""
        with self.store.read() as unit:
            row = unit.connection.execute(_READ_AGENT_ELEMENTS, {"names": [name]}).one_or_none()
            if row is None:
                raise _explain_missing(unit, name)
        return AgentElement(row.wanted_revision, row.is_settled)

    def receive_many(self, names: Collection[str]) -> dict[str, AgentElement | VirtcloudError]:
        """Receive the heartbeats of at most 500 agents, with one query.

        Return, for each name, the element or the error that :meth:`receive` would raise.
        """
        with self.store.read() as unit:
            rows = unit.connection.execute(_READ_AGENT_ELEMENTS, {"names": list(names)}).all()
            found: dict[str, AgentElement | VirtcloudError] = {
                row.name: AgentElement(row.wanted_revision, row.is_settled) for row in rows
            }
            errors = {name: _explain_missing(unit, name) for name in names if name not in found}
            now = unit.now
        with self._lock:
            self._pending.update(dict.fromkeys(found, now))
        max_age = self.find_max_age()
        overdue = {row.name for row in rows if row.last_seen is None or now - row.last_seen >= max_age}
        if overdue:
            self.record(overdue)
        return found | errors

    def receive_settled(self, name: str, at: datetime) -> None:
        """Receive a heartbeat for a settled element, without a query.

        ``at`` is the time of the heartbeat by the database's clock.
        """
        with self._lock:
            self._pending[name] = at

    def record(self, names: Collection[str] | None = None) -> None:
        """Write the pending heartbeats of the elements ``names`` (None: of all elements) to the database.

        One statement records all heartbeats of a second, because the times are rounded down to whole seconds. A
        heartbeat stays pending if another transaction has locked the element's row: waiting for the lock could cause a
        deadlock. After a failure of the transaction, all heartbeats stay pending.
        """
        with self._lock:
            found = {name: at for name, at in self._pending.items() if names is None or name in names}
        if not found:
            return
        with self.store.change_row() as unit:
            free = unit.connection.execute(_LOCK_UNLOCKED, {"names": json.dumps(sorted(found))}).scalars().all()
            recorded = {name: found[name] for name in free}
            for second, heard in _group_by_second(recorded).items():
                unit.connection.execute(_RECORD_HEARTBEATS, {"names": json.dumps(heard), "seen_at": second})
        with self._lock:
            self._pending = {name: at for name, at in self._pending.items() if recorded.get(name) != at}


def _group_by_second(heartbeats: Mapping[str, datetime]) -> dict[datetime, list[str]]:
    found: dict[datetime, list[str]] = defaultdict(list)
    for name, at in heartbeats.items():
        found[at.replace(microsecond=0)].append(name)
    return found


def _explain_missing(unit: Unit, name: str) -> VirtcloudError:
    try:
        require_agent(unit, name)
    except VirtcloudError as error:
        return error
    raise AssertionError(f"element {name} has an agent")
