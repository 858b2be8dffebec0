"""Looking at a device because somebody asks: to say what would be changed, or to put it right now.

Reading the neighbours of a site's switches, all at once, because somebody asks whether the cables are right.

Reading devices for a caller: one that cannot be read is reported with the reason, and hides no other answer.
"""

import asyncio
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from datetime import datetime
from functools import partial
from typing import TypeVar

from sbf_service.domain.cabling import Neighbour, check_cables
from sbf_service.drivers.contract import ListsCommands, ReadsNeighbours, SwitchDriver, SwitchScope
from sbf_service.log import get_log
from sbf_service.overload import BoundedThreads
from sbf_service.reconcile.scheduler import WorkerScheduler
from sbf_service.reconcile.sessions import PlatformOf
from sbf_service.reconcile.task import C, D, M, ReconcilableDriver, ReconcileTask, W
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

MAX_ROUNDS = 3
"""A change that arrives meanwhile is taken along so often; what comes later is the workers' own."""


@dataclass(frozen=True, slots=True)
class OnDemandReader:
    """Reads devices beside the converger, and never while a worker talks to the same one."""

    store: Store
    converger: WorkerScheduler

    def difference(self, name: Name) -> ElementDifference:
        """Read a device now and say what would be changed on it; changes nothing.

        Raises NotFound, Conflict (no device, or being worked on), and what the driver raises.
        """
        self._require_device(name)
        worker = self.converger.worker
        with self.converger.alone(name), worker.leased(name) as fence:
            task = worker.transactions.read_task(name, _require_lease(name, fence))
            try:
                return self._read(task, worker.sessions.driver(task.device, task.backbone))
            except Exception:
                worker.sessions.drop(name)
                raise

    def ports(self, name: Name) -> tuple[PortView, ...]:
        """Read a switch now and return its managed ports with their uses; changes nothing. Raise as difference()."""
        self._require_device(name)
        worker = self.converger.worker
        with self.converger.alone(name), worker.leased(name) as fence:
            task = worker.transactions.read_task(name, _require_lease(name, fence))
            if not isinstance(task.managed, SwitchScope):
                raise Conflict(f"{name} is no switch: only ports of switches are adopted")
            try:
                return tuple(read_port_views(worker.sessions.driver(task.device), task.device.ports, task.managed))
            except Exception:
                worker.sessions.drop(name)
                raise

    def reconcile(self, name: Name) -> ElementReconciliation:
        """Reconcile a device now; idempotent. An error of the device becomes the element's trouble.

        Raises NotFound, Conflict (no device, or being worked on).
        """
        self._require_device(name)
        worker = self.converger.worker
        with self.store.read() as unit:
            before = find_newest_id(unit)
        with self.converger.alone(name):
            outcome = ReconcileOutcome.OVERTAKEN
            for _ in range(MAX_ROUNDS):
                outcome = worker.converge(name, save_now=True) if outcome is ReconcileOutcome.OVERTAKEN else outcome
        _require_lease(name, None if outcome is ReconcileOutcome.BUSY else 0)
        with self.store.read() as unit:
            return ElementReconciliation(
                element=make_element_view(unit, name), mended=find_last_change(unit, name, before)
            )

    def _read(self, task: ReconcileTask[W, M, C, D], driver: ReconcilableDriver[M, C, D]) -> ElementDifference:
        carried = task.read(driver)
        difference = task.kind.difference(task.wanted, carried)
        task.kind.refuse_outside(task.name, task.managed, difference)
        task.kind.refuse_in_use(task.name, task.managed, carried, difference)
        with self.store.read() as unit:
            now = unit.now
        lines = driver.list_commands(difference) if isinstance(driver, ListsCommands) else ()
        made = ElementDifference(element=task.name, kind=task.kind.element, site=task.site, read_at=now, lines=lines)
        return made.model_copy(update={task.kind.element.value: difference})

    def _require_device(self, name: Name) -> None:
        with self.store.read() as unit:
            kind = require_element(unit, name).kind
        if ElementKind(kind) not in DEVICE_KINDS:
            raise Conflict(
                f"{kind} {name} is read by its own agent, which looks by itself: SBF reads switches and edges only"
            )


def _require_lease(name: Name, fence: int | None) -> int:
    if fence is None:
        raise Conflict(f"{name} is being worked on by another replica: ask again")
    return fence


def read_port_views(driver: SwitchDriver, ports: Iterable[PortName], managed: SwitchScope) -> Iterator[PortView]:
    """Read all ports as if SBF had taken none, so that the use of each is seen."""
    everything = tuple(ports)
    asked = replace(
        managed,
        ports=everything,
        access=tuple(port for port in managed.access if port in everything),
        taken=frozenset(),
        adopted=dict.fromkeys(everything, PortUse()),
        returned={},
    )
    carried = driver.read(asked)
    for port, use in carried.untaken.items():
        state = _port_state(port, managed, in_use=port in carried.in_use)
        effect = (
            describe_effect(use, access=port in asked.access)
            if state not in (PortState.TAKEN, PortState.LEAVING)
            else ""
        )
        before = managed.returned.get(port) or managed.adopted.get(port)
        yield PortView(port=port, state=state, use=use, before=before, effect=effect)


def _port_state(port: PortName, managed: SwitchScope, *, in_use: bool) -> PortState:
    if port in managed.returned:
        return PortState.LEAVING
    if port in managed.taken:
        return PortState.TAKEN
    if port in managed.adopted:
        return PortState.ADOPTED
    return PortState.IN_USE if in_use else PortState.UNUSED


log = get_log(__name__)

READ_LIMIT_S = 60.0
"""A device that has not answered by then is reported as not read; the others' answers do not wait for it."""
T = TypeVar("T")


async def read_or_explain(threads: BoundedThreads, read: Callable[[], T], named: str, limit_s: float) -> T | str:
    """Return what ``read`` returns, run in a thread of ``threads``, or the reason why the device was not read.

    ``named`` is the device in that reason; ``limit_s`` are the seconds for a free thread and the answer together.
    """
    try:
        return await asyncio.wait_for(threads.run(read, patience=limit_s), limit_s)
    except TimeoutError:
        return f"{named} has not answered for {limit_s:g} s"
    except VirtcloudError as error:
        return str(error)
    except Exception as error:  # noqa: BLE001 - a fault of one driver must not hide the others' answers
        log.fault("reading_fault", error, device=named)
        return f"{named}: a fault in the service, which is in its log: {type(error).__name__}"


NeighboursBySwitch = Mapping[Name, tuple[Neighbour, ...]]
UnreadDevices = Mapping[Name, str]


@dataclass(frozen=True, slots=True)
class CableCheckPlan:
    """The site whose cables are to be verified, as the topology has it at ``at``."""

    topology: Topology
    site: Site
    at: datetime
    platform_of: PlatformOf

    def compare(self, heard: NeighboursBySwitch, unread: UnreadDevices) -> SiteCables:
        """Return the site's cables, compared with what its switches hear."""
        cables = check_cables(self.topology, self.site, heard, self._form)
        return SiteCables(site=self.site.name, at=self.at, cables=cables, unread=dict(unread))

    def _form(self, element: Name, port: str) -> str:
        found = self.topology.element(element)
        return self.platform_of(found).port(port) if isinstance(found, Switch) else port.strip()


@dataclass(frozen=True, slots=True)
class CableChecker:
    """Compares a site's cables with its topology; reads switches beside the converger, never at the same time."""

    store: Store
    converger: WorkerScheduler
    platform_of: PlatformOf
    threads: BoundedThreads
    limit_s: float = READ_LIMIT_S

    def plan(self, name: Name) -> CableCheckPlan:
        """Read a site. Raise NotFound."""
        with self.store.read() as unit:
            topology = read_topology(unit)
            return CableCheckPlan(topology, topology.site(name), unit.now, self.platform_of)

    async def ask(self, plan: CableCheckPlan) -> tuple[NeighboursBySwitch, UnreadDevices]:
        """Ask every switch of the site whom it hears: as many at once as there are threads; no thread waits for them.

        Return what each heard, and why the others could not be read. Raise ServiceBusy when no thread is free now.
        """
        self.threads.require_one()
        switches = plan.site.switches
        found = await asyncio.gather(
            *(
                read_or_explain(self.threads, partial(self._neighbours, one), f"switch {one.name}", self.limit_s)
                for one in switches
            )
        )
        answers = {one.name: answer for one, answer in zip(switches, found, strict=True)}
        heard = {name: answer for name, answer in answers.items() if not isinstance(answer, str)}
        return heard, {name: answer for name, answer in answers.items() if isinstance(answer, str)}

    def _neighbours(self, switch: Switch) -> tuple[Neighbour, ...]:
        worker = self.converger.worker
        with self.converger.alone(switch.name), worker.leased(switch.name) as fence:
            if fence is None:
                raise Conflict(f"switch {switch.name} is being worked on by another replica: ask again")
            driver = worker.sessions.driver(switch)
            if not isinstance(driver, ReadsNeighbours):
                raise Refused(f"switch {switch.name}: SBF cannot read the neighbours of platform {switch.platform}")
            try:
                return driver.read_neighbours(tuple(member for port in switch.ports for member in switch.members(port)))
            except Exception:
                worker.sessions.drop(switch.name)
                raise
