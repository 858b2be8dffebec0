"""The worker, which reconciles one device (docs/explanation/wanted-and-confirmed.md).

The steps are: acquire the lease, read, compare, apply, read back, save, read, confirm. No database transaction is open
during the conversation with the device. The worker commits the audit row and the pending save before the device
receives a change, so that a later worker saves the configuration after a crash.

If the device restarts between the read-back and the save, the save stores a configuration without the change. The
reading after the save detects this.
"""

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, replace
from enum import Enum, auto
from functools import partial

from sbf_service.domain.error_report import ErrorReport, ReconcileStoppedError, make_error_report
from sbf_service.log import get_log
from sbf_service.reconcile.device_task import DeviceReading, ReconcilableDriver, ReconcileTask, TracedDriver
from sbf_service.reconcile.sessions import DeviceSessions
from sbf_service.reconcile.transactions import LeaseLostError, WorkerTransactions
from sbf_service.store.elements.observed_state import list_observed_items
from virtcloud.current_call import continue_for, current_call, work_for
from virtcloud.model.errors import DatabaseUnavailable, ElementError, NotFound, Refused
from virtcloud.model.message_text import printable
from virtcloud.model.values import Name
from virtcloud.tracing import span_of_calls

log = get_log(__name__)


class ReconcileOutcome(Enum):
    """The outcome of one reconciliation of a device.

    ``CONFIRMED``: the device has the wanted state. ``OVERTAKEN``: during the reconciliation, the wanted state or the
    managed scope changed, or the device was removed from the topology. ``FAILED``: an error occurred, or the save was
    postponed. ``BUSY``: another worker holds the lease.
    """

    CONFIRMED = auto()
    OVERTAKEN = auto()
    FAILED = auto()
    BUSY = auto()


HoldLease = Callable[[Name, Callable[[], int | None]], AbstractContextManager[int | None]]


@contextmanager
def hold_without_renewal(_name: Name, acquire: Callable[[], int | None]) -> Iterator[int | None]:
    """Acquire a lease without renewing it. Yield the fencing token, or None while another holder has the lease."""
    yield acquire()


@dataclass(frozen=True)
class Worker:
    """Reconciles devices. Several threads may use one worker simultaneously, for different devices."""

    transactions: WorkerTransactions
    sessions: DeviceSessions
    holding: HoldLease = hold_without_renewal

    @property
    def holder(self) -> str:
        """The name of this replica, which holds the leases."""
        return self.transactions.holder

    def reconcile(self, name: Name, *, save_now: bool = False) -> ReconcileOutcome:
        """Reconcile a device once. An error of the device is recorded, not raised.

        Raise DatabaseUnavailable if the database does not answer. If ``save_now``, save even during the pause after a
        failed save, whose cause an administrator may have removed.
        """
        with work_for(current_call()), self.hold_lease(name) as fence:
            if fence is None:
                return ReconcileOutcome.BUSY
            try:
                return self._with_lease(name, fence, save_now=save_now)
            except LeaseLostError:
                self.sessions.end(name)
                return ReconcileOutcome.BUSY

    @contextmanager
    def hold_lease(self, name: Name) -> Iterator[int | None]:
        """Hold an element's lease during the context.

        Yield the fencing token, or None while another replica holds the lease.
        """
        with self.holding(name, partial(self.transactions.acquire_lease, name)) as fence:
            try:
                yield fence
            finally:
                if fence is not None:
                    self.sessions.end_unless_kept(name)
                    self.transactions.release_lease(name, fence)

    def _with_lease(self, name: Name, fence: int, *, save_now: bool) -> ReconcileOutcome:
        """Reconcile a device whose lease this worker holds.

        Record a device that cannot be read as unreachable.
        """
        was_read = False
        task: ReconcileTask | None = None
        try:
            task = self.transactions.read_task(name, fence)
            task = replace(task, may_save=task.may_save or save_now)
            continue_for(task.calls)
            traces = [call.traceparent for call in task.calls if call.traceparent is not None]
            with span_of_calls(f"reconcile {task.kind}", traces, element=task.name, revision=task.revision):
                driver = TracedDriver(self.sessions.driver(task.device, task.backbone))
                reading = task.read(driver)
                was_read = True
                return self._reconcile(driver, reading)
        except ElementError as error:
            report = make_error_report(error)
        except ReconcileStoppedError as stopped:
            report = stopped.report
        except (LeaseLostError, DatabaseUnavailable):
            raise
        except NotFound as error:
            log.info("element_removed", element=name, why=error)
            self.sessions.end(name)
            return ReconcileOutcome.OVERTAKEN
        except Exception as error:  # noqa: BLE001 - a programming error in a driver must be reported and must not end the service
            log.fault("reconcile_fault", error, element=name)
            report = ErrorReport(printable(f"fault in the service: {type(error).__name__}: {error}"))
        self.sessions.end(name)
        return self._fail(name, fence, replace(report, reachable=was_read and report.reachable), task)

    def _fail(self, name: Name, fence: int, report: ErrorReport, task: ReconcileTask | None) -> ReconcileOutcome:
        try:
            self.transactions.fail(name, fence, report, task)
        except NotFound as error:
            log.info("element_removed", element=name, why=error)
            return ReconcileOutcome.OVERTAKEN
        return ReconcileOutcome.FAILED

    def _reconcile(self, driver: ReconcilableDriver, reading: DeviceReading) -> ReconcileOutcome:
        difference, drifted = reading.difference, reading.has_drifted
        if difference:
            reading.check_allowed()
        if (difference or drifted) and not self._announce(reading, drifted=drifted):
            return ReconcileOutcome.OVERTAKEN
        if difference:
            reading = self._apply(driver, reading)
        if difference or not reading.is_saved:
            if not reading.task.may_save:
                return _postpone_save(reading.task)
            reading = self._save(driver, reading)
        reading.check_read_back()
        overtaken = self.transactions.confirm(reading, changed=bool(difference))
        return ReconcileOutcome.OVERTAKEN if overtaken else ReconcileOutcome.CONFIRMED

    def _announce(self, reading: DeviceReading, *, drifted: bool) -> bool:
        """Record the difference and a pending save before the device receives the change.

        Record nothing and return False if the difference is no longer allowed or wanted.
        """
        task = reading.task
        why = f"the device changed after revision {task.confirmed}" if drifted else _describe_reason(reading)
        announced = self.transactions.announce(reading, why, drifted=drifted)
        if announced and reading.difference:
            log.info(task.change, element=task.name, revision=task.revision, difference=reading.difference)
        return announced

    def _apply(self, driver: ReconcilableDriver, before: DeviceReading) -> DeviceReading:
        """Apply the difference, and read the device again.

        Raise ReconcileStoppedError if the device refused or does not carry a part of the difference. Save the accepted
        parts before, because other clusters use them.
        """
        task = before.task.with_created(before.difference.added_vlan_ids)
        refusal: Refused | None = None
        try:
            driver.apply(before.difference)
        except Refused as error:
            refusal = error
        after = task.read(driver)
        refusal = refusal or _find_read_back_fault(after)
        if refusal is not None:
            raise ReconcileStoppedError(self._save_accepted_part(driver, before, after, refusal)) from refusal
        return after

    def _save_accepted_part(
        self, driver: ReconcilableDriver, before: DeviceReading, after: DeviceReading, refusal: Refused
    ) -> ErrorReport:
        """Save the accepted part of a refused change, and earlier unsaved changes, and return the report.

        Do not save during the pause after a failed save. Report a failure of the save, too.
        """
        report = make_error_report(refusal)
        if before.observed == after.observed and before.is_saved:
            return replace(report, saved=after.observed)
        if not after.task.may_save:
            return report
        try:
            saved = _save_and_read(driver, after)
        except ElementError as error:
            return replace(make_error_report(error, unsaved=True), message=f"{refusal}; {error}")
        return replace(report, saved=saved.observed)

    def _save(self, driver: ReconcilableDriver, reading: DeviceReading) -> DeviceReading:
        try:
            saved = _save_and_read(driver, reading)
        except ElementError as error:
            raise ReconcileStoppedError(make_error_report(error, unsaved=True)) from error
        if fault := _find_read_back_fault(saved):
            raise ReconcileStoppedError(replace(make_error_report(fault), saved=saved.observed)) from fault
        return saved


def _postpone_save(task: ReconcileTask) -> ReconcileOutcome:
    """Return ``FAILED`` without a save, during the pause after a failed save.

    The error report of the failed save usually remains until the next save. If the report of a failed reading has
    replaced it, raise ReconcileStoppedError with a new report.
    """
    log.info("save_postponed", element=task.name, revision=task.revision)
    if not task.reachable:
        found = "expected a saved configuration, found changes that are not saved, because the last save failed"
        raise ReconcileStoppedError(ErrorReport(f"{task.kind} {task.name}: {found}: SBF saves again after a pause"))
    return ReconcileOutcome.FAILED


def _save_and_read(driver: ReconcilableDriver, reading: DeviceReading) -> DeviceReading:
    """Save, and return a new reading of the device. Return ``reading`` if the device has no separate save step.

    Raise Refused if the device's state differs from the state before the save.
    """
    if not driver.save():
        return reading
    after = reading.task.read(driver)
    if list_observed_items(after.observed) != list_observed_items(reading.observed):
        task = reading.task
        raise Refused(
            f"{task.kind} {task.name}: expected the same configuration after the save, found a difference: the device "
            "may have restarted before the save; SBF reads the device again"
        )
    return after


def _find_read_back_fault(reading: DeviceReading) -> Refused | None:
    try:
        reading.check_read_back()
    except Refused as error:
        return error
    return None


def _describe_reason(reading: DeviceReading) -> str:
    users = reading.task.users
    keys = sorted({users.get(vlan, f"VLAN {vlan} without a cluster") for vlan in reading.difference.vlan_ids})
    return f"revision {reading.task.revision} for {', '.join(keys) or 'no cluster'}"
