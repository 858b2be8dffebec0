"""Looking at a device because somebody asks: to say what would be changed, or to put it right now."""

from dataclasses import dataclass

from sbf_service.converge.converger import Converger
from sbf_service.converge.kind import C, D, M, Spoken, W
from sbf_service.converge.task import Task
from sbf_service.converge.worker import Outcome
from sbf_service.drivers.driver import SaysLines
from sbf_service.store.audit_log import last_change, newest
from sbf_service.store.elements import element_view
from sbf_service.store.revisions import element_row
from sbf_service.store.session import Store
from virtcloud.model.device import DEVICES
from virtcloud.model.element import ElementKind
from virtcloud.model.errors import Conflict
from virtcloud.model.preview import ElementDifference, ElementReconciliation
from virtcloud.model.values import Name

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
                outcome = worker.converge(name) if outcome is Outcome.OVERTAKEN else outcome
        _free(name, None if outcome is Outcome.BUSY else 0)
        with self.store.read() as unit:
            return ElementReconciliation(element=element_view(unit, name), mended=last_change(unit, name, before))

    def _read(self, task: Task[W, M, C, D], driver: Spoken[M, C, D]) -> ElementDifference:
        difference = task.kind.difference(task.wanted, driver.read(task.managed))
        task.kind.refuse_outside(task.name, task.managed, difference)
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
