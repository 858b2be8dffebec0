"""Starts workers: at once on a change, each second for what other replicas changed, later after a failure.

A thread per busy device, at most ``settings.workers`` of them, so that a slow or dead device delays no other one. All
threads are daemons: the service can end in the middle of anything, and another start goes on from the revisions.
"""

import random
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from threading import Condition, Event, Thread

from sbf_service.converge.backlog import Backlog
from sbf_service.converge.candidates import Candidates
from sbf_service.converge.choose import Candidate
from sbf_service.converge.sweep import Sweep
from sbf_service.converge.worker import Outcome, Worker
from sbf_service.log import get_log
from sbf_service.settings import Settings
from virtcloud.model.errors import Conflict, DatabaseUnavailable
from virtcloud.model.values import Name

log = get_log(__name__)

LOOK_AGAIN_S = 1.0
GATHER_S = 0.05
"""Changes that come closer together than this are looked at together."""
STOP_S = 1.0
PATIENCE_S = 10.0
ALIVE_S = 30.0
"""Who has not looked around for this long is stuck, or has no database."""


def start_thread(work: Callable[[], None], name: str) -> None:
    """Start a daemon thread."""
    Thread(target=work, name=name, daemon=True).start()


@dataclass
class Converger:
    """Keeps every device at what is wanted, and time's deadlines kept."""

    candidates: Candidates
    worker: Worker
    sweep: Sweep
    settings: Settings
    clock: Callable[[], float] = time.monotonic
    jitter: Callable[[], float] = random.random
    sleep: Callable[[float], None] = time.sleep
    spawn: Callable[[Callable[[], None], str], None] = start_thread
    watch: Callable[[str, str, float], None] = lambda _platform, _outcome, _seconds: None
    """Told of each try: the device's platform, what came of it, how many seconds it took."""
    _backlog: Backlog = field(init=False)
    _lock: Condition = field(default_factory=Condition)
    _wake: Event = field(default_factory=Event)
    _swept: float | None = None
    _looked: float | None = None
    _stopping: bool = False
    _thread: Thread | None = None

    def __post_init__(self) -> None:
        """Begin with no device busy and none waiting."""
        self._backlog = Backlog(self.settings, self.clock, self.jitter)

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
            self._thread.join(STOP_S)

    @property
    def alive(self) -> bool:
        """Whether it was started and still looks around."""
        running = self._thread is not None and self._thread.is_alive()
        return running and self._looked is not None and self.clock() - self._looked < ALIVE_S

    def wake(self, changed: Iterable[str]) -> None:
        """Look at once: something changed."""
        if any(name.startswith("element:") for name in changed):
            self._wake.set()

    @contextmanager
    def alone(self, name: Name, patience: float = PATIENCE_S) -> Iterator[None]:
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
        since = GATHER_S if self._looked is None else self.clock() - self._looked
        if since < GATHER_S and not self._stopping:
            self.sleep(GATHER_S - since)

    def _sweep(self) -> None:
        """Look at the clock's side of things each second; what a confirmation moves is moved with it."""
        if self._swept is None or self.clock() - self._swept >= LOOK_AGAIN_S:
            self._swept = self.clock()
            self.sweep.run()

    def _pause(self) -> float:
        """Say how long nothing will be due that is not said by a wake-up."""
        with self._lock:
            return min([LOOK_AGAIN_S, *self._backlog.waits()])

    def _start_due(self) -> None:
        now, found = self.candidates.find(self.worker.holder)
        lost = self.worker.sessions.lost()
        with self._lock:
            chosen = self._backlog.take(found, now, lost)
            forgotten = self.worker.sessions.names() - {one.name for one in found} - self._backlog.busy
            self._backlog.busy.update(forgotten)
        for one in chosen:
            self._spawn(partial(self._work, one), one.name, partial(self._backlog.remember, one, Outcome.FAILED))
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

    def _work(self, one: Candidate) -> None:
        begun = self.clock()
        try:
            outcome = self.worker.converge(one.name)
        except DatabaseUnavailable:
            outcome = Outcome.FAILED
        except Exception as error:  # noqa: BLE001 - likewise; it is tried again
            log.fault("converge_fault", error, element=one.name)
            outcome = Outcome.FAILED
        with self._lock:  # both at once: one that is free, and not known to have failed, is tried again at once
            self._backlog.remember(one, outcome)
            self._free(one.name)
        self._wake.set()
        self.watch(one.platform, outcome.name.lower(), self.clock() - begun)
