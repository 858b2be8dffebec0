"""The worker scheduler, which starts a worker for every due device.

A device is due immediately when its wanted state changes, and after a pause when a reconciliation failed.

Each busy device has a thread, so that a slow device does not delay others. At most ``settings.workers`` devices are
busy. Each second, a query reads all due devices, and finds the changes of other replicas. Between these queries, SBF
reads only the devices that this replica changed or that can start now (:mod:`.work_queue`). All threads are daemon
threads: the process can exit at any time, because the revisions in the database show the unfinished work.
"""

import random
import time
from collections.abc import Callable, Collection, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from threading import Condition, Event, Thread

from sbf_service.domain.due_elements import DeviceStatus, DueDevices
from sbf_service.log import get_log
from sbf_service.reconcile.deadlines import DeadlineSweep
from sbf_service.reconcile.device_statuses import DeviceStatuses
from sbf_service.reconcile.work_queue import WorkQueue
from sbf_service.reconcile.worker import ReconcileOutcome, Worker
from sbf_service.settings import ServiceSettings
from sbf_service.store.elements.settled_agents import ELEMENT_TOPIC
from virtcloud.model.errors import Conflict, DatabaseUnavailable
from virtcloud.model.values import Name

log = get_log(__name__)

POLL_INTERVAL_S = 1.0
COALESCE_S = 0.05
STOP_TIMEOUT_S = 1.0
DEVICE_WAIT_S = 10.0
STALLED_AFTER_S = 30.0
"""The scheduler counts as blocked after this time without a completed round."""


def start_thread(work: Callable[[], None], name: str) -> None:
    """Start a daemon thread."""
    Thread(target=work, name=name, daemon=True).start()


def _try_step(step: Callable[[], None]) -> bool:
    """Run a step, and return whether it succeeded. Log an error, because no error may end the service."""
    try:
        step()
    except DatabaseUnavailable:
        log.warning("waiting_for_database")
    except Exception as error:  # noqa: BLE001 - an error in one round must not end the service
        log.fault("sweep_fault", error)
    else:
        return True
    return False


@dataclass
class WorkerScheduler:
    """Schedules workers that reconcile devices, and enforces cluster deadlines."""

    statuses: DeviceStatuses
    worker: Worker
    sweep: DeadlineSweep
    settings: ServiceSettings
    clock: Callable[[], float] = time.monotonic
    jitter: Callable[[], float] = random.random
    sleep: Callable[[float], None] = time.sleep
    spawn: Callable[[Callable[[], None], str], None] = start_thread
    record_metrics: Callable[[str, str, float], None] = lambda _platform, _outcome, _seconds: None
    """The scheduler calls this function with the platform, outcome and duration (in seconds) of each reconciliation."""
    _queue: WorkQueue = field(init=False)
    _lock: Condition = field(default_factory=Condition)
    _wake: Event = field(default_factory=Event)
    _last_sweep: float | None = None
    _last_round: float | None = None
    _last_check: float | None = None
    _last_complete: float | None = None
    _stopping: bool = False
    _thread: Thread | None = None

    def __post_init__(self) -> None:
        """Create the queue."""
        self._queue = WorkQueue(self.settings, self.clock, self.jitter)

    def start(self) -> None:
        """Release the leases of this replica's previous process, and start the scheduler's thread."""
        self.statuses.release_leases(self.worker.holder)
        self._thread = Thread(target=self._run, name="converger", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """Start no more workers. Wait at most a second for the scheduler's thread. Running workers continue."""
        self._stopping = True
        self._wake.set()
        if self._thread is not None:
            self._thread.join(STOP_TIMEOUT_S)

    @property
    def alive(self) -> bool:
        """Whether the scheduler's thread runs and completed a round less than :data:`STALLED_AFTER_S` ago."""
        running = self._thread is not None and self._thread.is_alive()
        return running and self._last_round is not None and self.clock() - self._last_round < STALLED_AFTER_S

    def wake(self, changed: Iterable[str]) -> None:
        """Start the next round early if ``changed`` contains an element's topic, such as ``"element:brno-sw1"``.

        The next round reads these elements.
        """
        elements = [topic.removeprefix(ELEMENT_TOPIC) for topic in changed if topic.startswith(ELEMENT_TOPIC)]
        if elements:
            with self._lock:
                self._queue.changed.update(map(Name, elements))
            self._wake.set()

    @contextmanager
    def exclude_workers(self, name: Name, patience: float = DEVICE_WAIT_S) -> Iterator[None]:
        """Exclude this replica's workers from a device during the context.

        Raise Conflict if the device is still busy after ``patience`` seconds.
        """
        with self._lock:
            if not self._lock.wait_for(lambda: name not in self._queue.busy, patience):
                raise Conflict(f"{name} has been busy for {patience:g} s: repeat the request later")
            self._queue.busy.add(name)
        try:
            yield
        finally:
            with self._lock:
                self._free(name)
            self._wake.set()

    def _free(self, name: Name) -> None:
        self._queue.release(name)
        self._lock.notify_all()

    def _run(self) -> None:
        while not self._stopping:
            self._wake.clear()
            self.run_once(reads_all=self._is_complete_due())
            if self._wake.wait(self._pause()):
                self._coalesce()

    def _is_complete_due(self) -> bool:
        return self._last_complete is None or self.clock() - self._last_complete >= POLL_INTERVAL_S

    def run_once(self, *, reads_all: bool = True) -> None:
        """Run one round: the deadline sweep, at most once a second, and a worker for each due device.

        Unless ``reads_all``, read only the devices that changed or that can start now. The workers start even if the
        sweep fails.
        """
        if all([_try_step(self._sweep), _try_step(partial(self._start_due, reads_all=reads_all))]):
            self._last_round = self.clock()

    def _coalesce(self) -> None:
        since = COALESCE_S if self._last_round is None else self.clock() - self._last_round
        if since < COALESCE_S and not self._stopping:
            self.sleep(COALESCE_S - since)

    def _sweep(self) -> None:
        if self._last_sweep is None or self.clock() - self._last_sweep >= POLL_INTERVAL_S:
            self._last_sweep = self.clock()
            self.sweep.run()

    def _pause(self) -> float:
        since = 0.0 if self._last_complete is None else self.clock() - self._last_complete
        with self._lock:
            return min([max(0.0, POLL_INTERVAL_S - since), *self._queue.list_waits()])

    def _start_due(self, *, reads_all: bool = True) -> None:
        last_complete, self._last_complete = self._last_complete, None  # after an error, the next round reads all
        lost = self.worker.sessions.find_lost()
        with self._lock:
            selected = self._queue.select(lost, reads_all=reads_all)
        if selected is not None:
            self._start_selected(selected, lost)
        is_complete = selected is not None and not selected.only_names
        self._last_complete = self.clock() if is_complete else last_complete

    def _start_selected(self, selected: DueDevices, lost: Collection[Name]) -> None:
        now, statuses = self.statuses.read(self.worker.holder, selected)
        removed = self._find_removed()
        with self._lock:
            chosen = self._queue.choose_next(selected, statuses, now, lost)
            removed -= self._queue.busy
            self._queue.busy.update(removed)
            if self._queue.can_start_waiting:  # for example, if another replica reconciles the selected devices
                self._wake.set()
        for status in chosen:
            record_failure = partial(self._queue.record_outcome, status, ReconcileOutcome.FAILED)
            self._spawn(partial(self._work, status), status.name, record_failure)
        for name in removed:
            self._spawn(partial(self._end_session, name), name)

    def _find_removed(self) -> set[Name]:
        """Return the devices that have a session, but that SBF no longer reconciles.

        Return nothing if the last check was less than a second ago.
        """
        if self._last_check is not None and self.clock() - self._last_check < POLL_INTERVAL_S:
            return set()
        self._last_check = self.clock()
        return self.statuses.find_removed(self.worker.sessions.names())

    def _spawn(self, work: Callable[[], None], name: Name, on_failure: Callable[[], None] = lambda: None) -> None:
        """Run ``work`` in a new thread.

        If the thread cannot start, call ``on_failure``, and mark the device as not busy.
        """
        try:
            self.spawn(work, f"converge-{name}")
        except RuntimeError as error:
            log.fault("thread_fault", error, element=name)
            with self._lock:
                on_failure()
                self._free(name)

    def _end_session(self, name: Name) -> None:
        try:
            self.worker.sessions.end(name)
        finally:
            with self._lock:
                self._free(name)

    def _work(self, status: DeviceStatus) -> None:
        started = self.clock()
        try:
            outcome = self.worker.reconcile(status.name)
        except DatabaseUnavailable:
            outcome = ReconcileOutcome.FAILED
        except Exception as error:  # noqa: BLE001 - every error must be recorded as a failure
            log.fault("reconcile_fault", error, element=status.name)
            outcome = ReconcileOutcome.FAILED
        # One critical section: otherwise, the device could be reconciled again before its failure and pause are
        # recorded.
        with self._lock:
            self._queue.record_outcome(status, outcome)
            self._free(status.name)
        self._wake.set()
        self.record_metrics(status.platform, outcome.name.lower(), self.clock() - started)
