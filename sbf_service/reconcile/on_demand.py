"""Readings and reconciliations of devices for HTTP requests, and the cable check.

During a request, no worker of any replica uses the device (:func:`hold_device`).
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
from sbf_service.store.elements.elements import make_element_view, make_last_view
from sbf_service.store.elements.revisions import require_element
from sbf_service.store.maintenance.audit_log import find_last_change, find_newest_id
from sbf_service.store.store import Store
from sbf_service.store.topology.current_topology import read_topology
from virtcloud.model.changes import ElementDifference, ElementReconciliation
from virtcloud.model.edge import DEVICE_KINDS
from virtcloud.model.element import ElementKind, Switch
from virtcloud.model.errors import Conflict, Refused, VirtcloudError
from virtcloud.model.port_use import PortState, PortUse, PortView, describe_effect
from virtcloud.model.site import SiteCables
from virtcloud.model.topology import Topology
from virtcloud.model.topology_document import Site
from virtcloud.model.values import Name, PortName

log = get_log(__name__)

MAX_ROUNDS = 3
"""The maximum number of reconciliations by one call of :meth:`OnDemandReader.reconcile`.

Each change of the wanted revision meanwhile causes another round. After the last round, a worker continues.
"""
READ_LIMIT_S = 60.0
T = TypeVar("T")
R = TypeVar("R")


@contextmanager
def hold_device(scheduler: WorkerScheduler, name: Name, kind: str = "") -> Iterator[int]:
    """Exclude the workers of all replicas from a device during the context.

    Yield the fencing token of the device's lease. Raise Conflict, with ``kind`` (such as ``"switch "``) in its message,
    if a worker is busy with the device. An error in the context ends the device's session.
    """
    worker = scheduler.worker
    with scheduler.exclude_workers(name), worker.hold_lease(name) as fence:
        if fence is None:
            raise _make_busy_error(f"{kind}{name}")
        try:
            yield fence
        except Exception:
            worker.sessions.end(name)
            raise


def _make_busy_error(device: str) -> Conflict:
    return Conflict(f"{device} is being reconciled by another replica: repeat the request")


@dataclass(frozen=True, slots=True)
class OnDemandReader:
    """Reads and reconciles single devices."""

    store: Store
    scheduler: WorkerScheduler

    def difference(self, name: Name) -> ElementDifference:
        """Read a device, and return the changes that a worker would apply. Change nothing.

        Raise NotFound for an unknown element. Raise Conflict for an element with an agent, or if a worker is busy with
        the device. Raise Unsafe for a change that SBF must not apply, and the driver's errors.
        """
        self._require_device(name)
        worker = self.scheduler.worker
        with hold_device(self.scheduler, name) as fence:
            task = worker.transactions.read_task(name, fence)
            driver = worker.sessions.driver(task.device, task.backbone)
            reading = task.read(driver)
            reading.check_allowed()
            return make_element_difference(reading, driver, self._read_clock())

    def ports(self, name: Name) -> tuple[PortView, ...]:
        """Read a switch and return its managed ports with their uses. Change nothing.

        Raise Conflict for a provider edge, and NotFound, Conflict and the driver's errors as :meth:`difference` does.
        """
        self._require_device(name)
        worker = self.scheduler.worker
        with hold_device(self.scheduler, name) as fence:
            task = worker.transactions.read_task(name, fence)
            if not isinstance(task, SwitchTask):
                raise Conflict(f"{name} is not a switch: only ports of switches can be adopted")
            return tuple(read_port_views(worker.sessions.driver(task.device), task.device.ports, task.scope))

    def reconcile(self, name: Name) -> ElementReconciliation:
        """Reconcile a device now. Idempotent.

        Raise NotFound for an unknown element. Raise Conflict for an element with an agent, or if a worker is busy with
        the device. The returned element contains the error report of a failure on the device.
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
            raise _make_busy_error(name)
        with self.store.read() as unit:
            # After its last port is restored, a removed switch is no longer a known element.
            make_view = make_last_view if outcome is ReconcileOutcome.CONFIRMED else make_element_view
            element, mended = make_view(unit, name), find_last_change(unit, name, before)
            return ElementReconciliation(element=element, mended=mended)

    def _read_clock(self) -> datetime:
        with self.store.read() as unit:
            return unit.now

    def _require_device(self, name: Name) -> None:
        with self.store.read() as unit:
            kind = require_element(unit, name).kind
        if ElementKind(kind) not in DEVICE_KINDS:
            raise Conflict(
                f"{kind} {name}: expected a switch or an edge, because SBF reads only switches and edges; this {kind} "
                "is reconciled by its agent"
            )


def make_element_difference(reading: DeviceReading, driver: ReconcilableDriver, now: datetime) -> ElementDifference:
    """Return the changes that a worker would apply, with the commands if the driver can list them."""
    task = reading.task
    lines = driver.list_commands(reading.difference) if isinstance(driver, ListsCommands) else ()
    document = ElementDifference(element=task.name, kind=task.kind, site=task.site, read_at=now, lines=lines)
    return document.model_copy(update={task.kind.value: reading.difference})


def read_port_views(driver: SwitchDriver, ports: Iterable[PortName], scope: SwitchScope) -> Iterator[PortView]:
    """Yield the current use of each port in ``ports``.

    In the driver's scope, SBF has configured no port, so that the driver reports the use of each port.
    """
    all_ports = tuple(ports)
    unconfigured = replace(
        scope,
        ports=all_ports,
        access=tuple(port for port in scope.access if port in all_ports),
        taken=frozenset(),
        adopted=dict.fromkeys(all_ports, PortUse()),
        returned={},
    )
    observed = driver.read(unconfigured)
    for port, use in observed.untaken.items():
        state = _find_port_state(port, scope, in_use=port in observed.in_use)
        is_configured = state in {PortState.TAKEN, PortState.LEAVING}
        effect = "" if is_configured else describe_effect(use, access=port in unconfigured.access)
        before = scope.returned.get(port) or scope.adopted.get(port)
        yield PortView(port=port, state=state, use=use, before=before, effect=effect)


def _find_port_state(port: PortName, scope: SwitchScope, *, in_use: bool) -> PortState:
    if port in scope.returned:
        return PortState.LEAVING
    if port in scope.taken:
        return PortState.TAKEN
    if port in scope.adopted:
        return PortState.ADOPTED
    return PortState.IN_USE if in_use else PortState.UNUSED


async def read_all(
    threads: BoundedThreads, devices: Sequence[T], read: Callable[[T], R], name_of: Callable[[T], str], limit_s: float
) -> list[tuple[T, R | str]]:
    """Read devices in parallel, each in a thread, and return each device with its result.

    After an error or ``limit_s`` seconds, the result is the reason as text. ``name_of`` returns a device's name for
    this text. Raise ServiceBusy if no thread is free at the call.
    """
    if devices:
        threads.require_free()
    reads = (read_or_explain(threads, partial(read, device), name_of(device), limit_s) for device in devices)
    return list(zip(devices, await asyncio.gather(*reads), strict=True))


async def read_or_explain(threads: BoundedThreads, read: Callable[[], T], device: str, limit_s: float) -> T | str:
    """Run ``read`` in a thread of ``threads``, and return its result.

    Return the reason as text if ``device`` was not read within ``limit_s`` seconds, including the wait for a thread.
    """
    try:
        return await asyncio.wait_for(threads.run(read, max_wait_s=limit_s), limit_s)
    except TimeoutError:
        return f"{device} has not answered for {limit_s:g} s"
    except VirtcloudError as error:
        return str(error)
    except Exception as error:  # noqa: BLE001 - an error of one driver must not hide the answers of other devices
        log.fault("reading_fault", error, device=device)
        return f"{device}: fault in the service: {type(error).__name__}; the service's log has the details"


NeighboursBySwitch = Mapping[Name, tuple[Neighbour, ...]]
UnreadDevices = Mapping[Name, str]


@dataclass(frozen=True, slots=True)
class CableCheckPlan:
    """The input of a cable check: a site, the topology, and the time ``at`` at which the topology was read.

    ``platform_of`` returns the platform of a switch.
    """

    topology: Topology
    site: Site
    at: datetime
    platform_of: PlatformOf

    def compare(self, neighbours: NeighboursBySwitch, unread: UnreadDevices) -> SiteCables:
        """Compare the site's cables in the topology with the neighbours that the switches reported.

        ``unread`` contains, for each switch that is not in ``neighbours``, the reason why SBF did not read the switch.
        """
        cables = check_cables(self.topology, self.site, neighbours, self._canonical_port)
        return SiteCables(site=self.site.name, at=self.at, cables=cables, unread=dict(unread))

    def _canonical_port(self, element: Name, port: str) -> str:
        device = self.topology.element(element)
        return self.platform_of(device).port(port) if isinstance(device, Switch) else port.strip()


@dataclass(frozen=True, slots=True)
class CableChecker:
    """Compares a site's cables in the topology with the LLDP neighbours of its switches.

    ``limit_s`` is the time limit for reading one switch, in seconds.
    """

    store: Store
    scheduler: WorkerScheduler
    platform_of: PlatformOf
    threads: BoundedThreads
    limit_s: float = READ_LIMIT_S

    def plan(self, name: Name) -> CableCheckPlan:
        """Return the input of a cable check of site ``name``. Raise NotFound for an unknown site."""
        with self.store.read() as unit:
            topology = read_topology(unit)
            return CableCheckPlan(topology, topology.site(name), unit.now, self.platform_of)

    async def read_neighbours(self, plan: CableCheckPlan) -> tuple[NeighboursBySwitch, UnreadDevices]:
        """Read the neighbours of all switches of the site, in parallel.

        Return two dicts by switch: the neighbours, and the reasons of failed readings. Raise ServiceBusy if no thread
        is free at the call.
        """
        self.threads.require_free()
        answers = await read_all(
            self.threads,
            plan.site.switches,
            self._read_switch_neighbours,
            lambda switch: f"switch {switch.name}",
            self.limit_s,
        )
        neighbours = {switch.name: answer for switch, answer in answers if not isinstance(answer, str)}
        return neighbours, {switch.name: reason for switch, reason in answers if isinstance(reason, str)}

    def _read_switch_neighbours(self, switch: Switch) -> tuple[Neighbour, ...]:
        with hold_device(self.scheduler, switch.name, "switch "):
            driver = self.scheduler.worker.sessions.driver(switch)
            if not isinstance(driver, ReadsNeighbours):
                raise Refused(f"switch {switch.name}: SBF cannot read the neighbours of platform {switch.platform}")
            return driver.read_neighbours(tuple(member for port in switch.ports for member in switch.members(port)))
