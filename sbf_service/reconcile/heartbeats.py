"""Lease heartbeats during conversations with devices, and time limits of conversations.

Two threads run during conversations. The first thread renews leases, and ends conversations whose lease was lost. The
second thread ends conversations whose lease was not renewed in time, or that exceed their time limit: a device that
sends single bytes could occupy its worker forever. The second thread does not use the database. A conversation
therefore ends before another replica can acquire the lease, even if the database does not answer.
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
LEASE_LOST = "another replica has acquired the device's lease: the conversation was ended"


@dataclass(frozen=True, slots=True)
class HeldLease:
    """A lease on an element.

    ``began`` and ``renewed`` are the monotonic times, in seconds, just before the acquisition and the last renewal.
    """

    name: Name
    fence: int
    began: float
    renewed: float


def compute_deadline(held: HeldLease, lease: float, conversation: float) -> tuple[float, str]:
    """Return the deadline of a conversation, and the error message after the deadline. Pure.

    ``lease`` (the length of a lease) and ``conversation`` (a time limit) are in seconds. At the deadline, a third of
    the lease remains, so that bytes in transit reach the device before another replica can acquire the lease.
    """
    conversation_end = held.began + conversation, f"the conversation was ended after {conversation:g} s"
    message = "the device's lease could not be renewed in time: the conversation was ended"
    lease_end = held.renewed + lease * 2 / 3, message
    return min(conversation_end, lease_end)


@dataclass
class LeaseHeartbeats:
    """Renews the leases of the devices with which this replica has conversations.

    ``renew`` takes a device's name and fencing token, and returns False if another replica has acquired the lease.
    """

    renew: Callable[[Name, int], bool]
    sessions: DeviceSessions
    timing: ServiceTiming
    clock: Callable[[], float] = time.monotonic
    _held: dict[Name, HeldLease] = field(default_factory=dict)
    _running: set[str] = field(default_factory=set)
    _lock: Condition = field(default_factory=Condition)

    @contextmanager
    def hold(self, name: Name, acquire: Callable[[], int | None]) -> Iterator[int | None]:
        """Acquire a lease and renew it until the context ends.

        Yield the fencing token, or None if another holder has the lease.
        """
        began = self.clock()
        fence = acquire()
        if fence is None:
            yield None
            return
        self._register(HeldLease(name, fence, began, began))
        self._start()
        try:
            yield fence
        finally:
            with self._lock:
                self._held.pop(name, None)
                self._lock.notify_all()
            self.sessions.clear_deadline(name)

    def renew_all(self) -> None:
        """Renew every lease once. End the conversations of leases that another replica has acquired."""
        for held in self._list_held():
            before = self.clock()
            try:
                was_renewed = self.renew(held.name, held.fence)
            except DatabaseUnavailable:
                log.warning("lease_not_renewed", element=held.name)
                continue
            if was_renewed:
                self._register(HeldLease(held.name, held.fence, held.began, before), former=held)
            else:
                self._disconnect(held, LEASE_LOST)

    def end_overdue(self) -> None:
        """End every conversation whose deadline has passed."""
        for held in self._list_held():
            until, why = self._compute_deadline(held)
            if self.clock() >= until:
                self._disconnect(held, why)

    def _register(self, held: HeldLease, former: HeldLease | None = None) -> None:
        """Store a lease, and set the deadline of its conversation.

        Do nothing if ``former``, the lease to replace, is no longer stored: the conversation has ended.
        """
        with self._lock:
            if former is not None and self._held.get(held.name) != former:
                return
            self._held[held.name] = held
            self.sessions.set_deadline(held.name, *self._compute_deadline(held))

    def _compute_deadline(self, held: HeldLease) -> tuple[float, str]:
        return compute_deadline(held, self.timing.lease.total_seconds(), self.timing.conversation_timeout)

    def _list_held(self) -> list[HeldLease]:
        with self._lock:
            return list(self._held.values())

    def _disconnect(self, held: HeldLease, why: str) -> None:
        with self._lock:
            if self._held.get(held.name) == held:
                self.sessions.disconnect(held.name, why)

    def _start(self) -> None:
        """Start the missing threads. Without a thread, each session still checks its own deadline."""
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
                if self._lock.wait_for(lambda: not self._held, every):
                    self._running.discard(name)
                    return
            try:
                work()
            except Exception as error:  # noqa: BLE001 - one error must not end the leases of all devices
                log.fault("heartbeat_fault", error)
