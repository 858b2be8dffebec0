"""Starts workers: at once on a change, each second for what other replicas changed, later after a failure.

A thread per busy device, at most ``settings.workers`` of them, so that a slow or dead device delays no other one. All
threads are daemons: the service can end in the middle of anything, and another start goes on from the revisions.

Which devices are busy, which wait after a failure, and which are next. No I/O; the converger locks it.
"""

import random
import time
from collections.abc import Callable, Collection, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from functools import partial
from threading import Condition, Event, Thread

from sbf_service.domain.due_elements import DeviceStatus, RetryState, choose_due_devices, compute_retry
from sbf_service.log import get_log
from sbf_service.reconcile.deadlines import DeadlineSweep
from sbf_service.reconcile.transactions import DeviceStatuses
from sbf_service.reconcile.worker import ReconcileOutcome, Worker
from sbf_service.settings import ServiceSettings
from virtcloud.model.errors import Conflict, DatabaseUnavailable
from virtcloud.model.values import Name


@dataclass
class WorkQueue:
    """One replica's work. ``clock`` is monotonic, in seconds; ``jitter`` is a random number from 0 to 1.

    ``since`` is the database's time of the first look: whatever was read before that is read again, since a device may
    have restarted while no replica had a session with it.
    """

    settings: ServiceSettings
    clock: Callable[[], float]
    jitter: Callable[[], float]
    busy: set[Name] = field(default_factory=set)
    retries: dict[Name, RetryState] = field(default_factory=dict)
    since: datetime | None = None

    def take(self, found: Iterable[DeviceStatus], now: datetime, lost: Collection[Name]) -> list[DeviceStatus]:
        """Choose the devices to converge now and mark them busy; those that ended their session are due at once."""
        known = {one.name: one for one in found}
        self.since = self.since or now
        chosen = choose_due_devices(
            [replace(one, checked_at=None) if one.name in lost else one for one in known.values()],
            now=now,
            clock=self.clock(),
            drift_interval=timedelta(seconds=self.settings.timing.drift_interval),
            busy=self.busy,
            retries=self.retries,
            room=self.settings.workers - len(self.busy),
            since=self.since,
        )
        self.busy.update(chosen)
        return [known[name] for name in chosen]

    def remember(self, one: DeviceStatus, outcome: ReconcileOutcome) -> None:
        """Record what came of a try; a device that failed waits before the next one."""
        before = self.retries.pop(one.name, None)
        if outcome is ReconcileOutcome.FAILED:
            pause = (self.settings.timing.retry_first, self.settings.timing.retry_most)
            self.retries[one.name] = compute_retry(before, one.wanted, self.clock(), pause, self.jitter())

    def waits(self) -> list[float]:
        """Return in how many seconds each device that waits is due."""
        waits = [retry.not_before - self.clock() for name, retry in self.retries.items() if name not in self.busy]
        return [wait for wait in waits if wait > 0]


log = get_log(__name__)

POLL_INTERVAL_S = 1.0
COALESCE_S = 0.05
"""Changes that come closer together than this are looked at together."""
STOP_TIMEOUT_S = 1.0
DEVICE_WAIT_S = 10.0
STALLED_AFTER_S = 30.0
"""Who has not looked around for this long is stuck, or has no database."""


def start_thread(work: Callable[[], None], name: str) -> None:
    """Start a daemon thread."""
    Thread(target=work, name=name, daemon=True).start()


@dataclass
class WorkerScheduler:
    """Keeps every device at what is wanted, and time's deadlines kept."""

    candidates: DeviceStatuses
    worker: Worker
    sweep: DeadlineSweep
    settings: ServiceSettings
    clock: Callable[[], float] = time.monotonic
    jitter: Callable[[], float] = random.random
    sleep: Callable[[float], None] = time.sleep
    spawn: Callable[[Callable[[], None], str], None] = start_thread
    watch: Callable[[str, str, float], None] = lambda _platform, _outcome, _seconds: None
    """Told of each try: the device's platform, what came of it, how many seconds it took."""
    _backlog: WorkQueue = field(init=False)
    _lock: Condition = field(default_factory=Condition)
    _wake: Event = field(default_factory=Event)
    _swept: float | None = None
    _looked: float | None = None
    _stopping: bool = False
    _thread: Thread | None = None

    def __post_init__(self) -> None:
        """Begin with no device busy and none waiting."""
        self._backlog = WorkQueue(self.settings, self.clock, self.jitter)

    def start(self) -> None:
        """Start; what this replica left leased when it died is taken up at once."""
        self.candidates.give_up_leases(self.worker.holder)
        self._thread = Thread(target=self._run, name="converger", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """Start no more work; waits a second at most. Workers in the middle of something are left to end with us."""
        self._stopping = True
        self._wake.set()
        if self._thread is not None:
            self._thread.join(STOP_TIMEOUT_S)

    @property
    def alive(self) -> bool:
        """Whether it was started and still looks around."""
        running = self._thread is not None and self._thread.is_alive()
        return running and self._looked is not None and self.clock() - self._looked < STALLED_AFTER_S

    def wake(self, changed: Iterable[str]) -> None:
        """Look at once: something changed."""
        if any(name.startswith("element:") for name in changed):
            self._wake.set()

    @contextmanager
    def alone(self, name: Name, patience: float = DEVICE_WAIT_S) -> Iterator[None]:
        """Keep this replica's workers off a device. Raises Conflict when one is at it for longer than ``patience``."""
        with self._lock:
            if not self._lock.wait_for(lambda: name not in self._backlog.busy, patience):
                raise Conflict(f"{name} has been worked on for {patience:g} s: ask again when that has ended")
            self._backlog.busy.add(name)
        try:
            yield
        finally:
            with self._lock:
                self._free(name)
            self._wake.set()

    def _free(self, name: Name) -> None:
        self._backlog.busy.discard(name)
        self._lock.notify_all()

    def _run(self) -> None:
        while not self._stopping:
            self._wake.clear()
            self.look_around()
            if self._wake.wait(self._pause()):
                self._gather()

    def look_around(self) -> None:
        """Sweep when a second has passed since the last sweep, and start a worker for each device that is due."""
        try:
            self._sweep()
            self._start_due()
            self._looked = self.clock()
        except DatabaseUnavailable:
            log.warning("waiting_for_database")
        except Exception as error:  # noqa: BLE001 - what one look meets must not end the service
            log.fault("sweep_fault", error)

    def _gather(self) -> None:
        """Let a change that comes right after a look wait a little for others: each look reads all switches."""
        since = COALESCE_S if self._looked is None else self.clock() - self._looked
        if since < COALESCE_S and not self._stopping:
            self.sleep(COALESCE_S - since)

    def _sweep(self) -> None:
        """Look at the clock's side of things each second; what a confirmation moves is moved with it."""
        if self._swept is None or self.clock() - self._swept >= POLL_INTERVAL_S:
            self._swept = self.clock()
            self.sweep.run()

    def _pause(self) -> float:
        """Say how long nothing will be due that is not said by a wake-up."""
        with self._lock:
            return min([POLL_INTERVAL_S, *self._backlog.waits()])

    def _start_due(self) -> None:
        now, found = self.candidates.find(self.worker.holder)
        lost = self.worker.sessions.lost()
        with self._lock:
            chosen = self._backlog.take(found, now, lost)
            forgotten = self.worker.sessions.names() - {one.name for one in found} - self._backlog.busy
            self._backlog.busy.update(forgotten)
        for one in chosen:
            self._spawn(
                partial(self._work, one), one.name, partial(self._backlog.remember, one, ReconcileOutcome.FAILED)
            )
        for name in forgotten:
            self._spawn(partial(self._end_session, name), name)

    def _spawn(self, work: Callable[[], None], name: Name, failed: Callable[[], None] = lambda: None) -> None:
        """Start the thread of a device that is marked busy; without a thread the device is free again."""
        try:
            self.spawn(work, f"converge-{name}")
        except RuntimeError as error:
            log.fault("thread_fault", error, element=name)
            with self._lock:
                failed()
                self._free(name)

    def _end_session(self, name: Name) -> None:
        """End the session with a device that is not in the topology any more."""
        try:
            self.worker.sessions.drop(name)
        finally:
            with self._lock:
                self._free(name)

    def _work(self, one: DeviceStatus) -> None:
        begun = self.clock()
        try:
            outcome = self.worker.converge(one.name)
        except DatabaseUnavailable:
            outcome = ReconcileOutcome.FAILED
        except Exception as error:  # noqa: BLE001 - likewise; it is tried again
            log.fault("converge_fault", error, element=one.name)
            outcome = ReconcileOutcome.FAILED
        with self._lock:  # both at once: one that is free, and not known to have failed, is tried again at once
            self._backlog.remember(one, outcome)
            self._free(one.name)
        self._wake.set()
        self.watch(one.platform, outcome.name.lower(), self.clock() - begun)
