"""The queue of a replica's worker scheduler: busy devices, pauses after failures, and devices that wait for a worker.

With thousands of due devices, for example after an outage of a site, a reading of all due devices takes longer than the
creation of many clusters. Between these readings, the scheduler therefore reads only the devices that changed, and
`CANDIDATES` waiting devices for each free worker. SBF starts a worker only for a device whose status was read in the
same round.
"""

from collections.abc import Callable, Collection, Iterable, Iterator
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from itertools import islice
from typing import Final

from sbf_service.domain.due_elements import (
    DeviceStatus,
    DueDevices,
    RetryState,
    choose_due_devices,
    compute_retry,
    find_urgency,
)
from sbf_service.reconcile.worker import ReconcileOutcome
from sbf_service.settings import ServiceSettings
from virtcloud.model.values import Name

MAX_NAMED: Final = 200
"""The maximum number of changed devices that one reading selects by name, instead of all due devices."""
CANDIDATES: Final = 4
"""The number of waiting devices that one reading selects for each free worker.

All replicas have the same waiting devices in the same order, so another replica may have reconciled the first ones.
"""


@dataclass
class WorkQueue:
    """The busy devices of one replica, and the devices that must wait.

    The scheduler's lock protects the queue. ``clock`` returns a monotonic time in seconds. ``jitter`` returns a random
    number from 0 to 1.

    - ``retries``: the devices that must pause after a failure.
    - ``waiting``: the devices that were due at the last reading, but found no free worker. The most urgent device is
      first.
    - ``changed``: the elements to read in the next round.
    - ``since``: the database's time at the first query, or an earlier time if the database's clock stepped backwards.
      A device that was last read before ``since`` is due: it may have restarted while this replica was stopped.
    """

    settings: ServiceSettings
    clock: Callable[[], float]
    jitter: Callable[[], float]
    busy: set[Name] = field(default_factory=set)
    retries: dict[Name, RetryState] = field(default_factory=dict)
    waiting: dict[Name, DeviceStatus] = field(default_factory=dict)
    changed: set[Name] = field(default_factory=set)
    since: datetime | None = None

    @property
    def room(self) -> int:
        """The number of further devices for which a worker can start now."""
        return max(0, self.settings.workers - len(self.busy))

    @property
    def can_start_waiting(self) -> bool:
        """Whether a worker is free for a waiting device."""
        return self.room > 0 and any(self._list_free())

    def select(self, lost: Collection[Name], *, reads_all: bool) -> DueDevices | None:
        """Return the condition by which the database query selects devices that may be due.

        ``lost`` are the devices that ended their sessions. If ``reads_all``, or if more than ``MAX_NAMED`` devices
        changed, select all due devices, and all devices that are in ``lost`` or whose last reconciliation failed.
        Otherwise, select these devices, if they are not busy:

        - the changed devices,
        - up to ``room`` devices in ``lost``,
        - up to ``room`` devices whose pause after a failure has ended,
        - up to `CANDIDATES` * ``room`` waiting devices.

        Unless ``reads_all``, return None if no worker can start, or if there is no device to select.
        """
        drift_interval, room = timedelta(seconds=self.settings.timing.drift_interval), self.room
        if not reads_all and not room:
            return None
        changed = self.changed - self.busy
        if reads_all or len(changed) > MAX_NAMED:
            self.changed.clear()
            return DueDevices(drift_interval, self.since, frozenset({*lost, *self.retries}))
        self.changed.clear()
        rested = (name for name in self.retries if name not in self.busy and not self._must_pause(name))
        idle = (name for name in lost if name not in self.busy)
        waiting = islice(self._list_free(), CANDIDATES * room)
        names = frozenset({*changed, *islice(idle, room), *islice(rested, room), *waiting})
        return DueDevices(drift_interval, self.since, names, only_names=True) if names else None

    def choose_next(
        self, selected: DueDevices, statuses: Iterable[DeviceStatus], now: datetime, lost: Collection[Name]
    ) -> list[DeviceStatus]:
        """Return the devices to reconcile now, and mark these devices as busy.

        ``statuses`` are the statuses of the ``selected`` devices. A device in ``lost`` ended its session and is due.
        """
        by_name = {status.name: status for status in statuses}
        self.since = now if self.since is None else min(self.since, now)
        due = choose_due_devices(
            [replace(status, checked_at=None) if name in lost else status for name, status in by_name.items()],
            now=now,
            clock=self.clock(),
            drift_interval=timedelta(seconds=self.settings.timing.drift_interval),
            busy=self.busy,
            retries=self.retries,
            since=self.since,
        )
        chosen, rest = due[: self.room], {name: by_name[name] for name in due[self.room :]}
        self._update_waiting(selected, rest)
        self.busy.update(chosen)
        return [by_name[name] for name in chosen]

    def _update_waiting(self, selected: DueDevices, rest: dict[Name, DeviceStatus]) -> None:
        if selected.only_names:
            others = {name: status for name, status in self.waiting.items() if name not in selected.names}
            rest = dict(sorted((others | rest).items(), key=lambda item: find_urgency(item[1]))) if rest else others
        self.waiting = rest

    def release(self, name: Name) -> None:
        """Mark a device as not busy, so that the next round reads it."""
        self.busy.discard(name)
        self.changed.add(name)

    def record_outcome(self, status: DeviceStatus, outcome: ReconcileOutcome) -> None:
        """Record the outcome of a reconciliation. A failed device must pause before the next attempt."""
        before = self.retries.pop(status.name, None)
        if outcome is ReconcileOutcome.FAILED:
            pause = (self.settings.timing.retry_first, self.settings.timing.retry_most)
            self.retries[status.name] = compute_retry(before, status.wanted, self.clock(), pause, self.jitter())

    def list_waits(self) -> list[float]:
        """Return the remaining pauses, in seconds, of the devices that failed and are not busy."""
        waits = [retry.not_before - self.clock() for name, retry in self.retries.items() if name not in self.busy]
        return [wait for wait in waits if wait > 0]

    def _list_free(self) -> Iterator[Name]:
        return (name for name in self.waiting if name not in self.busy)

    def _must_pause(self, name: Name) -> bool:
        return self.clock() < self.retries[name].not_before
