"""Looking at a device because somebody asks: to say what would be changed, or to put it right now."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace

from sbf_service.converge.converger import Converger
from sbf_service.converge.kind import C, D, M, Spoken, W
from sbf_service.converge.task import Task
from sbf_service.converge.worker import Outcome
from sbf_service.drivers.driver import Driver, Managed, SaysLines
from sbf_service.store.audit_log import last_change, newest
from sbf_service.store.elements import element_view
from sbf_service.store.revisions import element_row
from sbf_service.store.session import Store
from virtcloud.model.device import DEVICES
from virtcloud.model.element import ElementKind
from virtcloud.model.errors import Conflict
from virtcloud.model.port_use import PortState, PortUse, PortView, effect_on
from virtcloud.model.preview import ElementDifference, ElementReconciliation
from virtcloud.model.values import Name, PortName

MOST_ROUNDS = 3
"""A change that arrives meanwhile is taken along so often; what comes later is the workers' own."""


@dataclass(frozen=True, slots=True)
class Looking:
    """Reads devices beside the converger, and never while a worker talks to the same one."""

    store: Store
    converger: Converger

    def difference(self, name: Name) -> ElementDifference:
        """Read a device now and say what would be changed on it; changes nothing.

        Raises NotFound, Conflict (no device, or being worked on), and what the driver raises.
        """
        self._require_device(name)
        worker = self.converger.worker
        with self.converger.alone(name), worker.leased(name) as fence:
            task = worker.transactions.read_task(name, _free(name, fence))
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
            task = worker.transactions.read_task(name, _free(name, fence))
            if not isinstance(task.managed, Managed):
                raise Conflict(f"{name} is no switch: only ports of switches are adopted")
            try:
                return tuple(port_views(worker.sessions.driver(task.device), task.device.ports, task.managed))
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
            before = newest(unit)
        with self.converger.alone(name):
            outcome = Outcome.OVERTAKEN
            for _ in range(MOST_ROUNDS):
                outcome = worker.converge(name, save_now=True) if outcome is Outcome.OVERTAKEN else outcome
        _free(name, None if outcome is Outcome.BUSY else 0)
        with self.store.read() as unit:
            return ElementReconciliation(element=element_view(unit, name), mended=last_change(unit, name, before))

    def _read(self, task: Task[W, M, C, D], driver: Spoken[M, C, D]) -> ElementDifference:
        carried = task.read(driver)
        difference = task.kind.difference(task.wanted, carried)
        task.kind.refuse_outside(task.name, task.managed, difference)
        task.kind.refuse_in_use(task.name, task.managed, carried, difference)
        with self.store.read() as unit:
            now = unit.now
        lines = driver.lines(difference) if isinstance(driver, SaysLines) else ()
        made = ElementDifference(element=task.name, kind=task.kind.element, site=task.site, read_at=now, lines=lines)
        return made.model_copy(update={task.kind.element.value: difference})

    def _require_device(self, name: Name) -> None:
        with self.store.read() as unit:
            kind = element_row(unit, name).kind
        if ElementKind(kind) not in DEVICES:
            raise Conflict(
                f"{kind} {name} is read by its own agent, which looks by itself: SBF reads switches and edges only"
            )


def _free(name: Name, fence: int | None) -> int:
    if fence is None:
        raise Conflict(f"{name} is being worked on by another replica: ask again")
    return fence


def port_views(driver: Driver, ports: Iterable[PortName], managed: Managed) -> Iterator[PortView]:
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
        state = _state(port, managed, in_use=port in carried.in_use)
        effect = (
            effect_on(use, access=port in asked.access) if state not in (PortState.TAKEN, PortState.LEAVING) else ""
        )
        before = managed.returned.get(port) or managed.adopted.get(port)
        yield PortView(port=port, state=state, use=use, before=before, effect=effect)


def _state(port: PortName, managed: Managed, *, in_use: bool) -> PortState:
    if port in managed.returned:
        return PortState.LEAVING
    if port in managed.taken:
        return PortState.TAKEN
    if port in managed.adopted:
        return PortState.ADOPTED
    return PortState.IN_USE if in_use else PortState.UNUSED
