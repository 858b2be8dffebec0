"""Dry runs of a new pool or topology: the change is made and rolled back, and the devices it concerns are read.

Nothing is changed, neither on a device nor in what is set. The differences are those that workers would apply. Only
what was read is recorded: VLAN IDs in other use, so that no cluster gets them in the moment when a pool is set.
"""

import time
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from datetime import datetime
from threading import Lock, Thread
from typing import Any

from sbf_service.converge.converger import Converger
from sbf_service.converge.kind import C, D, M, Spoken, W
from sbf_service.converge.task import KINDS, Task, task_in
from sbf_service.device_login import login_for
from sbf_service.drivers.driver import Managed, SaysLines
from sbf_service.log import get_log
from sbf_service.other_use import Compared, other_use
from sbf_service.store.foreign_vlans import record_foreign
from sbf_service.store.reading import read_topology
from sbf_service.store.revisions import element_row
from sbf_service.store.session import Store, Unit
from virtcloud.model.element import Element, kind_of
from virtcloud.model.errors import Conflict, NotFound, VirtcloudError
from virtcloud.model.preview import ChangePreview, ElementDifference, OtherUse
from virtcloud.model.values import Name
from virtcloud.model.wanted import ForeignVlan

log = get_log(__name__)

MOST_THREADS = 32
LIMIT_S = 60.0
"""A device that has not answered by then is reported as not read; the others' answers do not wait for it."""

AnyTask = Task[Any, Any, Any, Any]


@dataclass(frozen=True, slots=True)
class _Reading:
    """What one device showed."""

    difference: ElementDifference
    other_use: tuple[OtherUse, ...]
    foreign: tuple[ForeignVlan, ...]


@dataclass(slots=True)
class _Findings:
    """What the devices answered so far; written by a thread for each of them."""

    read: dict[Name, _Reading] = field(default_factory=dict)
    unread: dict[Name, str] = field(default_factory=dict)
    lock: Lock = field(default_factory=Lock)

    def preview(self, tasks: list[AnyTask], limit_s: float) -> ChangePreview:
        """Return what is known now; what comes later changes nothing of it."""
        with self.lock:
            late = {one.name for one in tasks} - self.read.keys() - self.unread.keys()
            silent = {name: f"{name} has not answered for {limit_s:g} s" for name in late}
            return ChangePreview(
                elements=tuple(self.read[name].difference for name in sorted(self.read)),
                other_use=tuple(use for name in sorted(self.read) for use in self.read[name].other_use),
                unread=dict(sorted((self.unread | silent).items())),
            )


@dataclass(frozen=True, slots=True)
class Rehearsal:
    """Reads devices beside the converger, and never while a worker talks to the same one."""

    store: Store
    converger: Converger
    limit_s: float = LIMIT_S

    def preview(self, change: Callable[[Unit], None]) -> ChangePreview:
        """Return what ``change`` would do to switches and edges. Raises what ``change`` raises."""
        with self.store.rehearse() as unit:
            before = _elements(unit)
            change(unit)
            tasks = [task_in(unit, name, 0) for name in _concerned(unit)]
            now = unit.now
        known = {task.name for task in tasks if before.get(task.name) == task.device}
        return self._read_all(tasks, known, now)

    def _read_all(self, tasks: list[AnyTask], known: set[Name], now: datetime) -> ChangePreview:
        found, until, queue = _Findings(), time.monotonic() + self.limit_s, deque(tasks)

        def work() -> None:
            while time.monotonic() < until and (task := _next(queue)) is not None:
                self._take(task, task.name in known, now, found)

        threads = [
            Thread(target=work, name=f"dry-run-{number}", daemon=True)
            for number in range(min(MOST_THREADS, len(tasks)))
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(max(0, until - time.monotonic()))
        return found.preview(tasks, self.limit_s)

    def _take(self, task: AnyTask, is_known: bool, now: datetime, found: _Findings) -> None:
        try:
            with self._driver(task, is_known) as driver:
                reading = _compared(task, driver, now)
                if is_known:
                    self._record(task, reading)
        except VirtcloudError as error:
            with found.lock:
                found.unread[task.name] = str(error)
        except Exception as error:  # noqa: BLE001 - a fault of one driver must not hide the others' answers
            log.fault("dry_run_fault", error, element=task.name)
            with found.lock:
                found.unread[task.name] = f"{task.name}: a fault in the service, which is in its log: {error!r}"
        else:
            with found.lock:
                found.read[task.name] = reading

    def _record(self, task: AnyTask, reading: _Reading) -> None:
        """Record VLAN IDs in other use, so that no cluster gets them once the change is made."""
        with self.store.change() as unit:
            record_foreign(unit, element_row(unit, task.name), task.managed.vlans, reading.foreign)

    @contextmanager
    def _driver(self, task: AnyTask, is_known: bool) -> Iterator[Any]:
        """Yield a device's driver: of the session that is kept, or of its own where the device is described anew."""
        sessions = self.converger.worker.sessions
        with ExitStack() as stack:
            stack.enter_context(self.converger.alone(task.name))
            if is_known:
                if stack.enter_context(self.converger.worker.leased(task.name)) is None:
                    raise Conflict(f"{task.name} is being worked on by another replica: ask again")
                driver = sessions.driver(task.device, task.backbone)
                stack.push(lambda kind, _error, _at: sessions.drop(task.name) if kind else None)
            else:
                driver = sessions.platforms.driver(login_for(task.device, sessions.settings), task.backbone)
                stack.callback(driver.close)
            yield driver


def _compared(task: Task[W, M, C, D], driver: Spoken[M, C, D], now: datetime) -> _Reading:
    """Read a device and return its difference, and what is in other use there."""
    carried = task.read(driver)
    difference = task.kind.difference(task.wanted, carried)
    task.kind.refuse_outside(task.name, task.managed, difference)
    task.kind.refuse_foreign(task.name, task.managed, carried, difference)
    lines = driver.lines(difference) if isinstance(driver, SaysLines) else ()
    made = ElementDifference(element=task.name, kind=task.kind.element, site=task.site, read_at=now, lines=lines)
    adopted = task.managed.adopted if isinstance(task.managed, Managed) else ()
    owned = task.kind.owned(task.managed, task.wanted, carried)
    return _Reading(
        made.model_copy(update={task.kind.element.value: difference}),
        other_use(Compared(task.name, task.site, carried, difference, owned, adopted)),
        carried.foreign,
    )


def _next(queue: deque[AnyTask]) -> AnyTask | None:
    try:
        return queue.popleft()
    except IndexError:
        return None


def _elements(unit: Unit) -> dict[Name, Element]:
    try:
        return dict(read_topology(unit).elements)
    except NotFound:
        return {}


def _concerned(unit: Unit) -> list[Name]:
    """Return the switches and edges whose wanted state or description the unit changed, in name order."""
    changed = {one.removeprefix("element:") for one in unit.changed if one.startswith("element:")}
    elements = _elements(unit)
    return sorted(name for name, one in elements.items() if name in changed and kind_of(one) in KINDS)
