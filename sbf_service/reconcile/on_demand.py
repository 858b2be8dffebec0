"""Reads of devices for a caller: differences, ports in use, immediate reconciliation, and the cable check.

These reads and a worker of any replica never use the same device simultaneously (:func:`hold_device`).
"""

import asyncio
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from datetime import datetime
from functools import partial
from typing import TypeVar

from sbf_service.domain.cabling import Neighbour, check_cables
from sbf_service.drivers.contract import ListsCommands, ReadsNeighbours, SwitchDriver, SwitchScope
from sbf_service.log import get_log
from sbf_service.overload import BoundedThreads
from sbf_service.reconcile.device_task import DeviceReading, ReconcilableDriver
from sbf_service.reconcile.scheduler import WorkerScheduler
from sbf_service.reconcile.sessions import PlatformOf
from sbf_service.reconcile.task import SwitchTask
from sbf_service.reconcile.worker import ReconcileOutcome
from sbf_service.store.audit_log import find_last_change, find_newest_id
from sbf_service.store.elements import make_element_view
from sbf_service.store.revisions import require_element
from sbf_service.store.unit_of_work import Store, read_topology
from virtcloud.model.changes import ElementDifference, ElementReconciliation
from virtcloud.model.edge import DEVICE_KINDS
from virtcloud.model.element import ElementKind, Switch
from virtcloud.model.errors import Conflict, Refused, VirtcloudError
from virtcloud.model.port_use import PortState, PortUse, PortView, describe_effect
from virtcloud.model.site import SiteCables
from virtcloud.model.topology import Site, Topology
from virtcloud.model.values import Name, PortName

log = get_log(__name__)

MAX_ROUNDS = 3
"""The highest number of times that ``reconcile`` starts over for a newer revision; workers apply later revisions."""
READ_LIMIT_S = 60.0
"""A device that has not answered within this time is reported as not read. The answers of others do not wait for it."""
T = TypeVar("T")
R = TypeVar("R")


@contextmanager
def hold_device(scheduler: WorkerScheduler, name: Name, kind: str = "") -> Iterator[int]:
    """Exclude the workers of all replicas from a device; yield the fencing token.

    Raise Conflict while a worker is busy with the device. If the context ends in an error, end the device's session.
    """
    worker = scheduler.worker
    with scheduler.exclude_workers(name), worker.hold_lease(name) as fence:
        if fence is None:
            raise Conflict(f"{kind}{name} is being worked on by another replica: ask again")
        try:
            yield fence
        except Exception:
            worker.sessions.end(name)
            raise


@dataclass(frozen=True, slots=True)
class OnDemandReader:
    """Reads and reconciles single devices."""

    store: Store
    scheduler: WorkerScheduler

    def difference(self, name: Name) -> ElementDifference:
        """Read a device and return what would be changed on it; change nothing.

        Raise NotFound, Conflict (an element with an agent, or a busy device), and the errors of the driver.
        """
        self._require_device(name)
        worker = self.scheduler.worker
        with hold_device(self.scheduler, name) as fence:
            task = worker.transactions.read_task(name, fence)
            driver = worker.sessions.driver(task.device, task.backbone)
            reading = task.read(driver)
            reading.check_scope()
            reading.check_not_in_use()
            return make_element_difference(reading, driver, self._read_clock())

    def ports(self, name: Name) -> tuple[PortView, ...]:
        """Read a switch and return its managed ports with their uses; change nothing.

        Raise the same errors as :meth:`difference`.
        """
        self._require_device(name)
        worker = self.scheduler.worker
        with hold_device(self.scheduler, name) as fence:
            task = worker.transactions.read_task(name, fence)
            if not isinstance(task, SwitchTask):
                raise Conflict(f"{name} is not a switch: only ports of switches can be adopted")
            return tuple(read_port_views(worker.sessions.driver(task.device), task.device.ports, task.scope))

    def reconcile(self, name: Name) -> ElementReconciliation:
        """Reconcile a device now; idempotent.

        An error of the device is stored in the element's error report and not raised.

        Raise NotFound, Conflict (an element with an agent, or a busy device).
        """
        self._require_device(name)
        with self.store.read() as unit:
            before = find_newest_id(unit)
        with self.scheduler.exclude_workers(name):
            outcome = ReconcileOutcome.OVERTAKEN
            for _ in range(MAX_ROUNDS):
                if outcome is ReconcileOutcome.OVERTAKEN:
                    outcome = self.scheduler.worker.reconcile(name, save_now=True)
        if outcome is ReconcileOutcome.BUSY:
            raise Conflict(f"{name} is being worked on by another replica: ask again")
        with self.store.read() as unit:
            element, mended = make_element_view(unit, name), find_last_change(unit, name, before)
            return ElementReconciliation(element=element, mended=mended)

    def _read_clock(self) -> datetime:
        with self.store.read() as unit:
            return unit.now

    def _require_device(self, name: Name) -> None:
        with self.store.read() as unit:
            kind = require_element(unit, name).kind
        if ElementKind(kind) not in DEVICE_KINDS:
            raise Conflict(
                f"{kind} {name} is read by its own agent, which looks by itself: SBF reads switches and edges only"
            )


def make_element_difference(reading: DeviceReading, driver: ReconcilableDriver, now: datetime) -> ElementDifference:
    """Return what would be changed on a device, with the command lines where the driver can list them."""
    task = reading.task
    lines = driver.list_commands(reading.difference) if isinstance(driver, ListsCommands) else ()
    made = ElementDifference(element=task.name, kind=task.kind, site=task.site, read_at=now, lines=lines)
    return made.model_copy(update={task.kind.value: reading.difference})


def read_port_views(driver: SwitchDriver, ports: Iterable[PortName], scope: SwitchScope) -> Iterator[PortView]:
    """Yield all ports with their uses, read as if SBF had taken over none of them."""
    every = tuple(ports)
    asked = replace(
        scope,
        ports=every,
        access=tuple(port for port in scope.access if port in every),
        taken=frozenset(),
        adopted=dict.fromkeys(every, PortUse()),
        returned={},
    )
    observed = driver.read(asked)
    for port, use in observed.untaken.items():
        state = _port_state(port, scope, in_use=port in observed.in_use)
        is_ours = state in {PortState.TAKEN, PortState.LEAVING}
        effect = "" if is_ours else describe_effect(use, access=port in asked.access)
        before = scope.returned.get(port) or scope.adopted.get(port)
        yield PortView(port=port, state=state, use=use, before=before, effect=effect)


def _port_state(port: PortName, scope: SwitchScope, *, in_use: bool) -> PortState:
    if port in scope.returned:
        return PortState.LEAVING
    if port in scope.taken:
        return PortState.TAKEN
    if port in scope.adopted:
        return PortState.ADOPTED
    return PortState.IN_USE if in_use else PortState.UNUSED


async def read_all(
    threads: BoundedThreads, devices: Sequence[T], read: Callable[[T], R], named: Callable[[T], str], limit_s: float
) -> list[tuple[T, R | str]]:
    """Read devices in parallel, as many as there are threads. Return for each its answer, or why it was not read.

    Raise ServiceBusy when no thread is free now.
    """
    if devices:
        threads.require_free()
    reads = (read_or_explain(threads, partial(read, one), named(one), limit_s) for one in devices)
    return list(zip(devices, await asyncio.gather(*reads), strict=True))


async def read_or_explain(threads: BoundedThreads, read: Callable[[], T], named: str, limit_s: float) -> T | str:
    """Run ``read`` in a thread of ``threads``. Return its answer, or the reason why the device was not read.

    ``named`` is the device's name in that reason. ``limit_s`` limits the total time of waiting for a thread and
    reading.
    """
    try:
        return await asyncio.wait_for(threads.run(read, max_wait_s=limit_s), limit_s)
    except TimeoutError:
        return f"{named} has not answered for {limit_s:g} s"
    except VirtcloudError as error:
        return str(error)
    except Exception as error:  # noqa: BLE001 - an error of one driver must not hide the answers of other devices
        log.fault("reading_fault", error, device=named)
        return f"{named}: a fault in the service, which is in its log: {type(error).__name__}"


NeighboursBySwitch = Mapping[Name, tuple[Neighbour, ...]]
UnreadDevices = Mapping[Name, str]


@dataclass(frozen=True, slots=True)
class CableCheckPlan:
    """The site whose cables are checked, from the topology that was current at ``at``."""

    topology: Topology
    site: Site
    at: datetime
    platform_of: PlatformOf

    def compare(self, neighbours: NeighboursBySwitch, unread: UnreadDevices) -> SiteCables:
        """Return the site's cables, compared with the neighbours that its switches reported."""
        cables = check_cables(self.topology, self.site, neighbours, self._canonical_port)
        return SiteCables(site=self.site.name, at=self.at, cables=cables, unread=dict(unread))

    def _canonical_port(self, element: Name, port: str) -> str:
        found = self.topology.element(element)
        return self.platform_of(found).port(port) if isinstance(found, Switch) else port.strip()


@dataclass(frozen=True, slots=True)
class CableChecker:
    """Compares the cables of a site in the topology with the neighbours that its switches report (LLDP)."""

    store: Store
    scheduler: WorkerScheduler
    platform_of: PlatformOf
    threads: BoundedThreads
    limit_s: float = READ_LIMIT_S

    def plan(self, name: Name) -> CableCheckPlan:
        """Return the plan for a site. Raise NotFound."""
        with self.store.read() as unit:
            topology = read_topology(unit)
            return CableCheckPlan(topology, topology.site(name), unit.now, self.platform_of)

    async def ask(self, plan: CableCheckPlan) -> tuple[NeighboursBySwitch, UnreadDevices]:
        """Read the neighbours of all switches of the site, in parallel.

        Return the neighbours of each switch, and the reasons why other switches were not read. Raise ServiceBusy when
        no thread is free now.
        """
        self.threads.require_free()
        switches = plan.site.switches
        found = await read_all(self.threads, switches, self._neighbours, lambda one: f"switch {one.name}", self.limit_s)
        read = {one.name: answer for one, answer in found if not isinstance(answer, str)}
        return read, {one.name: answer for one, answer in found if isinstance(answer, str)}

    def _neighbours(self, switch: Switch) -> tuple[Neighbour, ...]:
        with hold_device(self.scheduler, switch.name, "switch "):
            driver = self.scheduler.worker.sessions.driver(switch)
            if not isinstance(driver, ReadsNeighbours):
                raise Refused(f"switch {switch.name}: SBF cannot read the neighbours of platform {switch.platform}")
            return driver.read_neighbours(tuple(member for port in switch.ports for member in switch.members(port)))
