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
from sbf_service.converge.task import Task
from sbf_service.converge.transactions import LeaseLostError, Transactions
from sbf_service.log import get_log
from virtcloud.model.errors import DatabaseUnavailable, ElementError, Unreachable, printable
from virtcloud.model.values import Name

log = get_log(__name__)


class Outcome(Enum):
    """What came of one try."""

    CONFIRMED = auto()
    OVERTAKEN = auto()
    FAILED = auto()
    BUSY = auto()


@dataclass(frozen=True)
class Worker:
    """Converges elements under its transactions' holder; may be used by many threads, for one element each."""

    transactions: Transactions
    sessions: Sessions

    @property
    def holder(self) -> str:
        """The name under which it holds leases."""
        return self.transactions.holder

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
        """Hold an element's lease; yield the fencing token, or None while another replica holds it."""
        fence = self.transactions.take_lease(name)
        try:
            yield fence
        finally:
            if fence is not None:
                self.sessions.rest(name)
                self.transactions.give_up_lease(name, fence)

    def _with_lease(self, name: Name, fence: int) -> Outcome:
        try:
            task = self.transactions.read_task(name, fence)
            return self._converge(task, self.sessions.driver(task.device, task.backbone))
        except ElementError as error:
            self._fail(name, fence, str(error), reachable=not isinstance(error, Unreachable))
        except (LeaseLostError, DatabaseUnavailable):
            raise
        except Exception as error:  # noqa: BLE001 - a fault of a driver must not end the service, nor pass unseen
            log.fault("converge_fault", error, element=name)
            message = printable(f"fault in the service: {type(error).__name__}: {error}")
            self._fail(name, fence, message, reachable=True)
        return Outcome.FAILED

    def _converge(self, task: Task[W, M, C, D], driver: Spoken[M, C, D]) -> Outcome:
        kind = task.kind
        carried = driver.read(task.managed)
        difference = kind.difference(task.wanted, carried)
        if difference:
            kind.refuse_outside(task.name, task.managed, difference)
            if not self._announce(task, difference, carried):
                return Outcome.OVERTAKEN
            driver.apply(difference)
            carried = driver.read(task.managed)
            kind.refuse_leftover(task.name, task.wanted, carried)
        overtaken = self.transactions.confirm(task, carried, changed=bool(difference))
        return Outcome.OVERTAKEN if overtaken else Outcome.CONFIRMED

    def _announce(self, task: Task[W, M, C, D], difference: D, carried: C) -> bool:
        """Record what will be changed; return False when it may not be changed any more."""
        drifted = task.kind.has_drifted(task.kept, carried, task.confirmed < task.revision)
        why = f"found changed since revision {task.confirmed}" if drifted else _why(task, difference)
        announced = self.transactions.announce(task, difference, why, drifted=drifted)
        if announced:
            log.info(task.change, element=task.name, revision=task.revision, difference=difference)
        return announced

    def _fail(self, name: Name, fence: int, message: str, *, reachable: bool) -> None:
        self.sessions.drop(name)
        self.transactions.fail(name, fence, message, reachable=reachable)


def _why(task: Task[W, M, C, D], difference: D) -> str:
    """Name the clusters for which a device is changed."""
    users = sorted({task.users.get(vlan, f"VLAN {vlan} of nobody") for vlan in difference.numbers})
    return f"revision {task.revision} for {', '.join(users) or 'nobody'}"
