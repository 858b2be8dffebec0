"""Dry runs of a new pool or topology: SBF reads the affected devices, and does not change them.

The result contains the differences that workers would apply. For affected devices of the present topology whose
description does not change, SBF records the VLAN IDs *in other use*. SBF then does not allocate these VLAN IDs when the
administrator sets the pool.
"""

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, closing, contextmanager
from dataclasses import dataclass
from datetime import datetime
from threading import Timer

from sbf_service.device_credentials import make_login
from sbf_service.domain.dry_run import ComparedDevice, find_other_use
from sbf_service.drivers.contract import SwitchScope
from sbf_service.overload import BoundedThreads
from sbf_service.reconcile.device_task import DeviceReading, ReconcilableDriver, ReconcileTask
from sbf_service.reconcile.on_demand import READ_LIMIT_S, hold_device, make_element_difference, read_all
from sbf_service.reconcile.scheduler import WorkerScheduler
from sbf_service.reconcile.task import TASKS, make_task
from sbf_service.store.elements.revisions import require_element
from sbf_service.store.store import Store
from sbf_service.store.topology.current_topology import read_topology
from sbf_service.store.topology.topology import read_path_changes
from sbf_service.store.unit_of_work import Unit
from sbf_service.store.vlans.vlan_ownership import record_foreign_vlans
from virtcloud.model.changes import ChangeDryRun, ElementDifference, OtherUse, PathChange
from virtcloud.model.element import kind_of
from virtcloud.model.errors import NotFound
from virtcloud.model.topology import Topology
from virtcloud.model.values import Name


@dataclass(frozen=True, slots=True)
class _DeviceAnswer:
    difference: ElementDifference
    other_use: tuple[OtherUse, ...]


@dataclass(frozen=True, slots=True)
class DryRunPlan:
    """The tasks that workers would have for the affected devices after a change.

    The plan was made at ``at``. ``known`` contains the devices whose description does not change, ``paths`` the changed
    paths of live clusters.
    """

    tasks: tuple[ReconcileTask, ...]
    known: frozenset[Name]
    paths: tuple[PathChange, ...]
    at: datetime


@dataclass(frozen=True, slots=True)
class SettingDryRun:
    """Reads the devices that a change affects."""

    store: Store
    scheduler: WorkerScheduler
    threads: BoundedThreads
    limit_s: float = READ_LIMIT_S

    def plan(self, change: Callable[[Unit], None]) -> DryRunPlan:
        """Find the devices that ``change`` affects, in a transaction that is rolled back, and return their tasks.

        Raise the errors of ``change``.
        """
        with self.store.dry_run() as unit:
            former = _find_topology(unit)
            before = {} if former is None else former.elements
            change(unit)
            tasks = tuple(make_task(unit, name, 0) for name in _find_changed_devices(unit))
            known = frozenset(task.name for task in tasks if before.get(task.name) == task.device)
            paths = () if former is None else read_path_changes(unit, former)
            return DryRunPlan(tasks, known, paths, unit.now)

    async def preview(self, plan: DryRunPlan) -> ChangeDryRun:
        """Read the devices of a plan in parallel, and return the differences.

        Raise ServiceBusy if no thread is free.
        """

        def read(task: ReconcileTask) -> _DeviceAnswer:
            return self._read(task, plan)

        results = await read_all(self.threads, plan.tasks, read, lambda task: str(task.name), self.limit_s)
        answers = [answer for _, answer in results if isinstance(answer, _DeviceAnswer)]
        return ChangeDryRun(
            elements=tuple(answer.difference for answer in answers),
            other_use=tuple(use for answer in answers for use in answer.other_use),
            unread={task.name: reason for task, reason in results if isinstance(reason, str)},
            paths=plan.paths,
        )

    def _read(self, task: ReconcileTask, plan: DryRunPlan) -> _DeviceAnswer:
        if task.name not in plan.known:
            with self._exclude_workers(task.name), self._open_separate_session(task) as driver:
                return _compare_device(task.read(driver), driver, plan.at)
        with hold_device(self.scheduler, task.name):
            driver = self.scheduler.worker.sessions.driver(task.device, task.backbone)
            reading = task.read(driver)
            answer = _compare_device(reading, driver, plan.at)
            with self.store.change() as unit:
                row = require_element(unit, task.name)
                record_foreign_vlans(unit, row, task.scope.vlans, reading.observed.foreign)
            return answer

    def _exclude_workers(self, name: Name) -> AbstractContextManager[object]:
        """Exclude all replicas' workers from a device within the context.

        A device that SBF does not reconcile yet has no lease. For such a device, exclude only this replica's workers.
        """
        is_new = bool(self.scheduler.statuses.find_removed([name]))
        return self.scheduler.exclude_workers(name) if is_new else hold_device(self.scheduler, name)

    @contextmanager
    def _open_separate_session(self, task: ReconcileTask) -> Iterator[ReconcilableDriver]:
        """Yield a driver for a device that is new or has a new description. End the driver's session afterwards.

        The end of a lease does not end this session. A timer ends the session after ``conversation_timeout``. Without
        the timer, a device that sends single bytes could exclude the workers forever.
        """
        sessions = self.scheduler.worker.sessions
        login, limit_s = make_login(task.device, sessions.settings), sessions.settings.timing.conversation_timeout
        driver = sessions.platforms.driver(login, task.backbone)
        timer = Timer(limit_s, login.cancel_scope.cancel, (f"the conversation was ended after {limit_s:g} s",))
        timer.daemon = True
        with closing(driver):
            timer.start()
            try:
                yield driver
            finally:
                timer.cancel()


def _compare_device(reading: DeviceReading, driver: ReconcilableDriver, now: datetime) -> _DeviceAnswer:
    """Return the difference of a device, and its VLANs and ports in other use.

    Raise Unsafe if the difference changes a VLAN in other use or anything outside the scope.
    """
    task = reading.task
    reading.check_scope()
    reading.check_ownership()
    adopted = task.scope.adopted if isinstance(task.scope, SwitchScope) else ()
    compared = ComparedDevice(task.name, task.site, reading.observed, reading.difference, reading.owned, adopted)
    return _DeviceAnswer(make_element_difference(reading, driver, now), find_other_use(compared))


def _find_topology(unit: Unit) -> Topology | None:
    try:
        return read_topology(unit)
    except NotFound:
        return None


def _find_changed_devices(unit: Unit) -> list[Name]:
    changed = {topic.removeprefix("element:") for topic in unit.changed if topic.startswith("element:")}
    topology = _find_topology(unit)
    elements = {} if topology is None else topology.elements
    return sorted(name for name, element in elements.items() if name in changed and kind_of(element) in TASKS)
