"""Dry runs of a new pool or topology: the change is made and rolled back, and the devices it concerns are read.

Nothing is changed, neither on a device nor in what is set. The differences are those that workers would apply. Only
what was read is recorded: VLAN IDs in other use, so that no cluster gets them in the moment when a pool is set.
"""

import asyncio
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from datetime import datetime
from functools import partial
from typing import Any

from sbf_service.device_credentials import make_login
from sbf_service.domain.dry_run import ComparedDevice, find_other_use
from sbf_service.drivers.contract import ListsCommands, SwitchScope
from sbf_service.overload import BoundedThreads
from sbf_service.reconcile.on_demand import READ_LIMIT_S, read_or_explain
from sbf_service.reconcile.scheduler import WorkerScheduler
from sbf_service.reconcile.task import RECONCILED_KINDS, C, D, M, ReconcilableDriver, ReconcileTask, W, make_task
from sbf_service.store.revisions import require_element
from sbf_service.store.unit_of_work import Store, Unit, read_topology
from sbf_service.store.vlan_ownership import record_foreign_vlans
from virtcloud.model.changes import ChangeDryRun, ElementDifference, OtherUse
from virtcloud.model.element import Element, kind_of
from virtcloud.model.errors import Conflict, NotFound
from virtcloud.model.values import Name
from virtcloud.model.wanted import ForeignVlan

AnyTask = ReconcileTask[Any, Any, Any, Any]


@dataclass(frozen=True, slots=True)
class _DeviceReading:
    """What one device showed."""

    difference: ElementDifference
    other_use: tuple[OtherUse, ...]
    foreign: tuple[ForeignVlan, ...]


@dataclass(frozen=True, slots=True)
class DryRunPlan:
    """The devices that a change concerns, as it would leave them at ``at``. ``known`` are those described as before."""

    tasks: tuple[AnyTask, ...]
    known: frozenset[Name]
    at: datetime


@dataclass(frozen=True, slots=True)
class SettingDryRun:
    """Reads devices beside the converger, and never while a worker talks to the same one."""

    store: Store
    converger: WorkerScheduler
    threads: BoundedThreads
    limit_s: float = READ_LIMIT_S

    def plan(self, change: Callable[[Unit], None]) -> DryRunPlan:
        """Return what ``change`` concerns; nothing of it stays. Raise what ``change`` raises."""
        with self.store.rehearse() as unit:
            before = _read_elements(unit)
            change(unit)
            tasks = tuple(make_task(unit, name, 0) for name in _find_changed_devices(unit))
            known = frozenset(task.name for task in tasks if before.get(task.name) == task.device)
            return DryRunPlan(tasks, known, unit.now)

    async def preview(self, plan: DryRunPlan) -> ChangeDryRun:
        """Read every device of a plan: as many at once as there are threads; no thread waits for them.

        Raise ServiceBusy when no thread is free now.
        """
        if plan.tasks:
            self.threads.require_one()
        answers = await asyncio.gather(
            *(
                read_or_explain(self.threads, partial(self._read, task, plan), task.name, self.limit_s)
                for task in plan.tasks
            )
        )
        named = [(task.name, answer) for task, answer in zip(plan.tasks, answers, strict=True)]
        read = [answer for _, answer in named if isinstance(answer, _DeviceReading)]
        return ChangeDryRun(
            elements=tuple(one.difference for one in read),
            other_use=tuple(use for one in read for use in one.other_use),
            unread={name: answer for name, answer in named if isinstance(answer, str)},
        )

    def _read(self, task: AnyTask, plan: DryRunPlan) -> _DeviceReading:
        is_known = task.name in plan.known
        with self._driver(task, is_known) as driver:
            reading = _compare_device(task, driver, plan.at)
            if is_known:
                self._record(task, reading)
            return reading

    def _record(self, task: AnyTask, reading: _DeviceReading) -> None:
        """Record VLAN IDs in other use, so that no cluster gets them once the change is made."""
        with self.store.change() as unit:
            record_foreign_vlans(unit, require_element(unit, task.name), task.managed.vlans, reading.foreign)

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
                driver = sessions.platforms.driver(make_login(task.device, sessions.settings), task.backbone)
                stack.callback(driver.close)
            yield driver


def _compare_device(
    task: ReconcileTask[W, M, C, D], driver: ReconcilableDriver[M, C, D], now: datetime
) -> _DeviceReading:
    """Read a device and return its difference, and what is in other use there."""
    carried = task.read(driver)
    difference = task.kind.difference(task.wanted, carried)
    task.kind.refuse_outside(task.name, task.managed, difference)
    task.kind.refuse_foreign(task.name, task.managed, carried, difference)
    lines = driver.list_commands(difference) if isinstance(driver, ListsCommands) else ()
    made = ElementDifference(element=task.name, kind=task.kind.element, site=task.site, read_at=now, lines=lines)
    adopted = task.managed.adopted if isinstance(task.managed, SwitchScope) else ()
    owned = task.kind.owned(task.managed, task.wanted, carried)
    return _DeviceReading(
        made.model_copy(update={task.kind.element.value: difference}),
        find_other_use(ComparedDevice(task.name, task.site, carried, difference, owned, adopted)),
        carried.foreign,
    )


def _read_elements(unit: Unit) -> dict[Name, Element]:
    try:
        return dict(read_topology(unit).elements)
    except NotFound:
        return {}


def _find_changed_devices(unit: Unit) -> list[Name]:
    """Return the switches and edges whose wanted state or description the unit changed, in name order."""
    changed = {one.removeprefix("element:") for one in unit.changed if one.startswith("element:")}
    elements = _read_elements(unit)
    return sorted(name for name, one in elements.items() if name in changed and kind_of(one) in RECONCILED_KINDS)
