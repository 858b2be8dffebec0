"""Converging one device once: lease, read, difference, change, read back, save, read again, confirm (DESIGN.md §3).

No database transaction is open while the device is talked to. What will be changed is in the audit log, and its save
recorded as pending, before the device receives it: a crash in between leaves no change without its row, and no running
configuration that stays unsaved.

A save is between two readings that show what is wanted: a device that restarted before it is found out by the second
one, and a restart after it brings back what was saved.
"""

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, replace
from enum import Enum, auto
from functools import partial

from sbf_service.domain.error_report import ErrorReport, ReconcileStoppedError, make_error_report
from sbf_service.log import get_log
from sbf_service.reconcile.sessions import DeviceSessions
from sbf_service.reconcile.task import C, D, M, ReconcilableDriver, ReconcileTask, W
from sbf_service.reconcile.transactions import LeaseLostError, WorkerTransactions
from sbf_service.store.observed_state import list_observed_items
from virtcloud.model.errors import DatabaseUnavailable, ElementError, Refused, printable
from virtcloud.model.values import Name

log = get_log(__name__)


class ReconcileOutcome(Enum):
    """What came of one try."""

    CONFIRMED = auto()
    OVERTAKEN = auto()
    FAILED = auto()
    BUSY = auto()


HoldLease = Callable[[Name, Callable[[], int | None]], AbstractContextManager[int | None]]
"""Takes an element's lease and renews it while the context lasts: :meth:`.heartbeats.Heartbeats.hold`."""


@contextmanager
def hold_without_renewal(_name: Name, take: Callable[[], int | None]) -> Iterator[int | None]:
    """Take a lease, and do not renew it."""
    yield take()


@dataclass(frozen=True)
class Worker:
    """Converges elements under its transactions' holder; may be used by many threads, for one element each."""

    transactions: WorkerTransactions
    sessions: DeviceSessions
    holding: HoldLease = hold_without_renewal

    @property
    def holder(self) -> str:
        """The name under which it holds leases."""
        return self.transactions.holder

    def converge(self, name: Name, *, save_now: bool = False) -> ReconcileOutcome:
        """Try once. Never raises for what a device does; a database that is away raises DatabaseUnavailable.

        ``save_now`` ends the pause after failed saves: an administrator asks, who may have mended the cause.
        """
        with self.leased(name) as fence:
            if fence is None:
                return ReconcileOutcome.BUSY
            try:
                return self._with_lease(name, fence, save_now=save_now)
            except LeaseLostError:
                self.sessions.drop(name)
                return ReconcileOutcome.BUSY

    @contextmanager
    def leased(self, name: Name) -> Iterator[int | None]:
        """Hold an element's lease; yield the fencing token, or None while another replica holds it."""
        with self.holding(name, partial(self.transactions.take_lease, name)) as fence:
            try:
                yield fence
            finally:
                if fence is not None:
                    self.sessions.rest(name)
                    self.transactions.give_up_lease(name, fence)

    def _with_lease(self, name: Name, fence: int, *, save_now: bool) -> ReconcileOutcome:
        """Try once. A device that could not be read, whatever it said, is unreachable until it is read again."""
        was_read = False
        try:
            task = self.transactions.read_task(name, fence)
            task = replace(task, may_save=task.may_save or save_now)
            driver = self.sessions.driver(task.device, task.backbone)
            carried = task.read(driver)
            was_read = True
            return self._converge(task, driver, carried)
        except ElementError as error:
            trouble = make_error_report(error)
        except ReconcileStoppedError as stopped:
            trouble = stopped.trouble
        except (LeaseLostError, DatabaseUnavailable):
            raise
        except Exception as error:  # noqa: BLE001 - a fault of a driver must not end the service, nor pass unseen
            log.fault("converge_fault", error, element=name)
            trouble = ErrorReport(printable(f"fault in the service: {type(error).__name__}: {error}"))
        self._fail(name, fence, replace(trouble, reachable=was_read and trouble.reachable))
        return ReconcileOutcome.FAILED

    def _converge(
        self, task: ReconcileTask[W, M, C, D], driver: ReconcilableDriver[M, C, D], carried: C
    ) -> ReconcileOutcome:
        kind = task.kind
        difference = kind.difference(task.wanted, carried)
        drifted = kind.has_drifted(task.kept, carried, task.confirmed < task.revision)
        if difference:
            kind.refuse_outside(task.name, task.managed, difference)
            kind.refuse_in_use(task.name, task.managed, carried, difference)
            kind.refuse_foreign(task.name, task.managed, carried, difference)
        if (difference or drifted) and not self._announce(task, difference, drifted=drifted):
            return ReconcileOutcome.OVERTAKEN
        if difference:
            task = replace(task, managed=kind.owning(task.managed, difference))
            carried = self._change(task, driver, difference, carried)
        if difference or not task.is_saved(carried):
            if not task.may_save:
                log.info("save_postponed", element=task.name, revision=task.revision)
                return ReconcileOutcome.FAILED
            carried = self._save(task, driver, carried)
        kind.refuse_leftover(task.name, task.wanted, carried)
        overtaken = self.transactions.confirm(task, carried, changed=bool(difference))
        return ReconcileOutcome.OVERTAKEN if overtaken else ReconcileOutcome.CONFIRMED

    def _announce(self, task: ReconcileTask[W, M, C, D], difference: D, *, drifted: bool) -> bool:
        """Record what will be changed; return False when it may not be changed any more."""
        why = f"found changed since revision {task.confirmed}" if drifted else _describe_reason(task, difference)
        announced = self.transactions.announce(task, difference, why, drifted=drifted)
        if announced and difference:
            log.info(task.change, element=task.name, revision=task.revision, difference=difference)
        return announced

    def _change(
        self, task: ReconcileTask[W, M, C, D], driver: ReconcilableDriver[M, C, D], difference: D, before: C
    ) -> C:
        """Apply a difference and return what was read back. Raise StoppedError for what was refused or is missing.

        What was obeyed all the same is saved: other clusters use it. A try that changed nothing saves nothing.
        """
        refusal: Refused | None = None
        try:
            driver.apply(difference)
        except Refused as error:
            refusal = error
        after = task.read(driver)
        refusal = refusal or _find_read_back_fault(task, after)
        if refusal is not None:
            raise ReconcileStoppedError(self._partly_saved(task, driver, before, after, refusal)) from refusal
        return after

    def _partly_saved(
        self,
        task: ReconcileTask[W, M, C, D],
        driver: ReconcilableDriver[M, C, D],
        before: C,
        after: C,
        refusal: Refused,
    ) -> ErrorReport:
        """Save what a refused change did all the same, if anything; return the trouble."""
        trouble = make_error_report(refusal)
        if before == after:
            return replace(trouble, saved=after) if task.is_saved(before) else trouble
        if not task.may_save:
            return trouble
        try:
            saved = self._saved(task, driver, after)
        except ElementError as error:
            return replace(make_error_report(error, unsaved=True), message=f"{refusal}; {error}")
        return replace(trouble, saved=saved)

    def _save(self, task: ReconcileTask[W, M, C, D], driver: ReconcilableDriver[M, C, D], carried: C) -> C:
        """Save, and return what the device carries after it. Raise StoppedError unless that is what is wanted."""
        try:
            saved = self._saved(task, driver, carried)
        except ElementError as error:
            raise ReconcileStoppedError(make_error_report(error, unsaved=True)) from error
        if leftover := _find_read_back_fault(task, saved):
            raise ReconcileStoppedError(replace(make_error_report(leftover), saved=saved)) from leftover
        return saved

    def _saved(self, task: ReconcileTask[W, M, C, D], driver: ReconcilableDriver[M, C, D], carried: C) -> C:
        """Save, and return what the device carries after it. Raise Refused when that is not what it carried before."""
        if not driver.save():
            return carried
        after = task.read(driver)
        if list_observed_items(after) != list_observed_items(carried):
            raise Refused(
                f"{task.kind.element} {task.name}: found changed after it saved: it may have restarted before"
            )
        return after

    def _fail(self, name: Name, fence: int, trouble: ErrorReport) -> None:
        self.sessions.drop(name)
        self.transactions.fail(name, fence, trouble)


def _find_read_back_fault(task: ReconcileTask[W, M, C, D], carried: C) -> Refused | None:
    try:
        task.kind.refuse_leftover(task.name, task.wanted, carried)
    except Refused as error:
        return error
    return None


def _describe_reason(task: ReconcileTask[W, M, C, D], difference: D) -> str:
    """Name the clusters for which a device is changed."""
    users = sorted({task.users.get(vlan, f"VLAN {vlan} of nobody") for vlan in difference.vlan_ids})
    return f"revision {task.revision} for {', '.join(users) or 'nobody'}"
