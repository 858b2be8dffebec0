"""Converging one device once: lease, read, difference, change, read back, confirm (DESIGN.md §3).

No database transaction is open while the device is talked to. What will be changed is in the audit log before the
device hears of it, so that a crash in between leaves no change without its row.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from enum import Enum, auto

from sbf_service.converge.kind import C, D, M, Spoken, W
from sbf_service.converge.sessions import Sessions
from sbf_service.converge.task import Task, read_task
from sbf_service.log import get_log
from sbf_service.settings import Timing
from sbf_service.store.audit import record
from sbf_service.store.elements import confirm, set_back, set_trouble
from sbf_service.store.leases import give_up_lease, holds_lease, keep_lease, take_lease
from sbf_service.store.revisions import element_row, grow
from sbf_service.store.session import Store, Unit
from virtcloud.model.errors import DatabaseUnavailable, ElementError, Unreachable, Unsafe
from virtcloud.model.values import Name

log = get_log(__name__)


class Outcome(Enum):
    """What came of one try."""

    CONFIRMED = auto()
    OVERTAKEN = auto()
    FAILED = auto()
    BUSY = auto()


class LeaseLostError(Exception):
    """Another worker took the element: this one stops and writes nothing."""


@dataclass(frozen=True)
class Worker:
    """Converges elements under the name ``holder``; may be used by many threads, for one element each."""

    store: Store
    sessions: Sessions
    timing: Timing
    holder: str

    def converge(self, name: Name) -> Outcome:
        """Try once. Never raises for what a device does; a database that is away raises DatabaseUnavailable."""
        with self.leased(name) as fence:
            if fence is None:
                return Outcome.BUSY
            try:
                return self._with_lease(name, fence)
            except LeaseLostError:
                self.sessions.drop(name)
                return Outcome.BUSY

    @contextmanager
    def leased(self, name: Name) -> Iterator[int | None]:
        """Hold an element; gives the fencing number, or nothing while another replica holds it."""
        with self.store.touch(who=self.holder) as unit:
            fence = take_lease(unit, name, self.holder, self.timing.lease)
        try:
            yield fence
        finally:
            if fence is not None:
                self.sessions.rest(name)
                with self.store.touch(who=self.holder) as unit:
                    give_up_lease(unit, name, fence)

    def _with_lease(self, name: Name, fence: int) -> Outcome:
        try:
            task = read_task(self.store, name, fence)
            return self._converge(task, self.sessions.driver(task.device, task.backbone))
        except ElementError as error:
            self._fail(name, fence, str(error), reachable=not isinstance(error, Unreachable))
        except (LeaseLostError, DatabaseUnavailable):
            raise
        except Exception as error:  # noqa: BLE001 - a fault of a driver must not end the service, nor pass unseen
            log.fault("converge_fault", error, element=name)
            self._fail(name, fence, f"fault in the service: {type(error).__name__}: {error}", reachable=True)
        return Outcome.FAILED

    def _converge(self, task: Task[W, M, C, D], driver: Spoken[M, C, D]) -> Outcome:
        kind = task.kind
        carried = driver.read(task.managed)
        difference = kind.difference(task.wanted, carried)
        if difference:
            kind.refuse_outside(task.name, task.managed, difference)
            drifted = kind.has_drifted(task.kept, carried, task.confirmed < task.revision)
            if not self._announce(task, difference, drifted=drifted):
                return Outcome.OVERTAKEN
            driver.apply(difference)
            carried = driver.read(task.managed)
            kind.refuse_leftover(task.name, task.wanted, carried)
        return self._confirm(task, carried, changed=bool(difference))

    def _announce(self, task: Task[W, M, C, D], difference: D, *, drifted: bool) -> bool:
        """Write what will be changed, and hold the element long enough; false when it may not be changed any more."""
        what = f"{task.kind.element}_change"
        why = f"found changed since revision {task.confirmed}" if drifted else _why(task, difference)
        with self.store.change(who=self.holder) as unit:
            self._require_lease(unit, task.name, task.fence)
            try:
                managed = task.kind.managed(unit, task.device, task.site, task.wanted)
                task.kind.refuse_outside(task.name, managed, difference)
            except Unsafe:
                return False
            if drifted:
                set_back(unit, task.name, why, self.timing.drain)
            record(unit, what, why=why, element=task.name, difference=difference)
        log.info(what, element=task.name, revision=task.revision, difference=difference)
        return True

    def _confirm(self, task: Task[W, M, C, D], carried: C, *, changed: bool) -> Outcome:
        """Confirm what was read back. A worker that is late, and changed something all the same, has it read again."""
        with self.store.change(who=self.holder) as unit:
            mine = keep_lease(unit, task.name, task.fence, self.timing.lease)
            if mine:
                confirm(unit, task.name, task.revision, self.timing.drain, carried)
            elif changed:
                grow(unit, [task.name])
            overtaken = element_row(unit, task.name).wanted_revision > task.revision
        if not mine:
            raise LeaseLostError(task.name)
        return Outcome.OVERTAKEN if overtaken else Outcome.CONFIRMED

    def _fail(self, name: Name, fence: int, message: str, *, reachable: bool) -> None:
        self.sessions.drop(name)
        with self.store.change(who=self.holder) as unit:
            event = f"{element_row(unit, name).kind}_trouble"
            mine = holds_lease(unit, name, fence)
            news = mine and set_trouble(unit, name, message, self.timing.drain, reachable=reachable)
            if not mine:
                grow(unit, [name])
        if news:
            log.warning(event, element=name, trouble=message)

    def _require_lease(self, unit: Unit, name: Name, fence: int) -> None:
        if not keep_lease(unit, name, fence, self.timing.lease):
            raise LeaseLostError(name)


def _why(task: Task[W, M, C, D], difference: D) -> str:
    """Name the clusters for which a device is changed."""
    users = sorted({task.users.get(vlan, f"VLAN {vlan} of nobody") for vlan in difference.numbers})
    return f"revision {task.revision} for {', '.join(users) or 'nobody'}"
