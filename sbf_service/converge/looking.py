"""Looking at a switch because somebody asks: to say what would be changed, or to put it right now."""

from dataclasses import dataclass

from sbf_service.converge.converger import Converger
from sbf_service.converge.task import Task, read_task
from sbf_service.converge.verdict import refuse_outside
from sbf_service.converge.worker import Outcome
from sbf_service.drivers.driver import Driver, SaysLines
from sbf_service.store.audit_log import last_change, newest
from sbf_service.store.elements import element_view
from sbf_service.store.revisions import element_row
from virtcloud.model.errors import Conflict
from virtcloud.model.preview import ElementCheck, ElementDifference
from virtcloud.model.topology import ElementKind
from virtcloud.model.values import Name
from virtcloud.model.wanted import switch_difference

MOST_ROUNDS = 3
"""A change that arrives meanwhile is taken along so often; what comes later is the workers' own."""


@dataclass(frozen=True, slots=True)
class Looking:
    """Reads switches beside the converger, and never while a worker talks to the same one."""

    converger: Converger

    def difference(self, name: Name) -> ElementDifference:
        """Read a switch now and say what would be changed on it; changes nothing.

        Raises NotFound, Conflict (no switch, or being worked on), and what the driver raises.
        """
        self._require_switch(name)
        worker = self.converger.worker
        with self.converger.alone(name), worker.leased(name) as fence:
            task = read_task(worker.store, name, _free(name, fence))
            try:
                return self._read(task, worker.sessions.driver(task.switch))
            except Exception:
                worker.sessions.drop(name)
                raise

    def check(self, name: Name) -> ElementCheck:
        """Read a switch now and mend what differs; may be repeated. What went wrong is the element's trouble.

        Raises NotFound, Conflict (no switch, or being worked on).
        """
        self._require_switch(name)
        worker = self.converger.worker
        with worker.store.read() as unit:
            before = newest(unit)
        with self.converger.alone(name):
            outcome = Outcome.OVERTAKEN
            for _ in range(MOST_ROUNDS):
                outcome = worker.converge(name) if outcome is Outcome.OVERTAKEN else outcome
        _free(name, None if outcome is Outcome.BUSY else 0)
        with worker.store.read() as unit:
            return ElementCheck(element=element_view(unit, name), mended=last_change(unit, name, before))

    def _read(self, task: Task, driver: Driver) -> ElementDifference:
        difference = switch_difference(task.wanted, driver.read(task.managed))
        refuse_outside(task.switch.name, task.managed, difference)
        with self.converger.store.read() as unit:
            now = unit.now
        return ElementDifference(
            element=task.switch.name,
            kind=ElementKind.SWITCH,
            site=task.site,
            read_at=now,
            switch=difference,
            lines=driver.lines(difference) if isinstance(driver, SaysLines) else (),
        )

    def _require_switch(self, name: Name) -> None:
        with self.converger.store.read() as unit:
            kind = element_row(unit, name).kind
        if kind != ElementKind.SWITCH:
            raise Conflict(f"{kind} {name} is read by its own agent, which looks by itself: SBF reads switches only")


def _free(name: Name, fence: int | None) -> int:
    if fence is None:
        raise Conflict(f"switch {name} is being worked on by another replica: ask again")
    return fence
