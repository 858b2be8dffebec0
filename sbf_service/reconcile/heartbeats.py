"""Lease heartbeats during conversations with devices, and time limits of conversations.

One thread renews leases. Another thread ends conversations whose lease was lost or could not be renewed in time. It
also ends conversations that exceed their time limit, because a device that sends a byte now and then would occupy its
worker forever. The second thread needs no database, so that this replica's conversation has ended before another
replica can acquire the element's lease. Both threads run only while there are conversations.
"""

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from threading import Condition, Thread

from sbf_service.log import get_log
from sbf_service.reconcile.sessions import DeviceSessions
from sbf_service.settings import ServiceTiming
from virtcloud.model.errors import DatabaseUnavailable
from virtcloud.model.values import Name

log = get_log(__name__)

WATCH_INTERVAL_S = 0.2
RENEWALS_PER_LEASE = 6
"""The number of renewals within the length of a lease."""
LEASE_LOST = "another replica has acquired its lease: the conversation was ended"


@dataclass(frozen=True, slots=True)
class HeldLease:
    """A lease on an element, with its begin and the time before its last renewal (monotonic, in seconds)."""

    name: Name
    fence: int
    began: float
    kept: float


def compute_deadline(hold: HeldLease, lease: float, conversation: float) -> tuple[float, str]:
    """Return the deadline of a conversation, and the reason that is reported when the deadline passes. Pure.

    The deadline leaves a third of the lease for bytes in transit, before another replica can acquire the lease.
    """
    ends = hold.began + conversation, f"the conversation was ended after {conversation:g} s"
    kept = hold.kept + lease * 2 / 3, "its lease could not be renewed in time: the conversation was ended"
    return min(ends, kept)


@dataclass
class LeaseHeartbeats:
    """Renews the leases of this replica's conversations. ``renew`` returns False for a lost lease."""

    renew: Callable[[Name, int], bool]
    sessions: DeviceSessions
    timing: ServiceTiming
    clock: Callable[[], float] = time.monotonic
    _holds: dict[Name, HeldLease] = field(default_factory=dict)
    _running: set[str] = field(default_factory=set)
    _lock: Condition = field(default_factory=Condition)

    @contextmanager
    def hold(self, name: Name, take: Callable[[], int | None]) -> Iterator[int | None]:
        """Acquire a lease and renew it until the context ends.

        Yield the fencing token, or None if another holder has the lease.
        """
        began = self.clock()
        fence = take()
        if fence is None:
            yield None
            return
        self._allow(HeldLease(name, fence, began, began))
        self._start()
        try:
            yield fence
        finally:
            with self._lock:
                self._holds.pop(name, None)
                self._lock.notify_all()
            self.sessions.clear_deadline(name)

    def renew_all(self) -> None:
        """Renew every lease once."""
        for hold in self._all():
            before = self.clock()
            try:
                kept = self.renew(hold.name, hold.fence)
            except DatabaseUnavailable:
                log.warning("lease_not_renewed", element=hold.name)
                continue
            if kept:
                self._allow(HeldLease(hold.name, hold.fence, hold.began, before), instead_of=hold)
            elif self._is_held(hold):
                self.sessions.disconnect(hold.name, LEASE_LOST)

    def end_overdue(self) -> None:
        """End every conversation whose deadline has passed."""
        for hold in self._all():
            until, why = self._limit(hold)
            if self.clock() >= until:
                self.sessions.disconnect(hold.name, why)

    def _allow(self, hold: HeldLease, instead_of: HeldLease | None = None) -> None:
        with self._lock:
            if instead_of is not None and self._holds.get(hold.name) != instead_of:
                return  # the conversation has ended
            self._holds[hold.name] = hold
            self.sessions.set_deadline(hold.name, *self._limit(hold))

    def _limit(self, hold: HeldLease) -> tuple[float, str]:
        return compute_deadline(hold, self.timing.lease.total_seconds(), self.timing.conversation_timeout)

    def _all(self) -> list[HeldLease]:
        with self._lock:
            return list(self._holds.values())

    def _is_held(self, hold: HeldLease) -> bool:
        with self._lock:
            return self._holds.get(hold.name) == hold

    def _start(self) -> None:
        """Start each of the two threads that does not run.

        If a thread cannot start, leases are not renewed, but deadlines still apply.
        """
        pause = self.timing.lease.total_seconds() / RENEWALS_PER_LEASE
        for work, every in ((self.renew_all, pause), (self.end_overdue, WATCH_INTERVAL_S)):
            name = f"leases-{work.__name__}"
            with self._lock:
                if name in self._running:
                    continue
                self._running.add(name)
            try:
                Thread(target=self._repeat, args=(name, work, every), name=name, daemon=True).start()
            except RuntimeError as error:
                log.fault("thread_fault", error)
                with self._lock:
                    self._running.discard(name)

    def _repeat(self, name: str, work: Callable[[], None], every: float) -> None:
        while True:
            with self._lock:
                if self._lock.wait_for(lambda: not self._holds, every):
                    self._running.discard(name)
                    return
            try:
                work()
            except Exception as error:  # noqa: BLE001 - one error must not end the leases of all devices
                log.fault("heartbeat_fault", error)
