"""The database transactions of the workers. Each method runs one transaction.

Tests can replace the database by another :class:`WorkerTransactions`.
"""

from dataclasses import dataclass
from functools import partial
from typing import Protocol

from sbf_service.domain.error_report import ErrorReport, describe_blocked_vlans, describe_shared_vlans
from sbf_service.domain.wanted import describe_held_vlans
from sbf_service.log import get_log
from sbf_service.reconcile.device_task import DeviceReading, ReconcileTask
from sbf_service.reconcile.task import read_task
from sbf_service.settings import ServiceTiming
from sbf_service.store.clusters.transitions import fail_refused_clusters
from sbf_service.store.elements.confirmations import ElementClusterErrors, confirm_revision, reset_confirmation
from sbf_service.store.elements.elements import read_wanted_revision
from sbf_service.store.elements.error_reports import record_error
from sbf_service.store.elements.leases import acquire_lease, holds_lease, release_lease, renew_lease
from sbf_service.store.elements.observed_state import record_failed_save, record_pending_save, record_saved
from sbf_service.store.elements.revisions import increment_revisions, require_element
from sbf_service.store.store import Store
from sbf_service.store.tables.tables import ElementRow
from sbf_service.store.topology.current_topology import read_topology, read_topology_version
from sbf_service.store.topology.topology_elements import is_other_device
from sbf_service.store.transactions.network_scopes import find_confirmation_scope, find_element_scope
from sbf_service.store.unit_of_work import Unit, record_audit
from sbf_service.store.vlans.pools import convert_vlans_to_clusters
from sbf_service.store.vlans.ports import parse_removed_switch
from sbf_service.store.vlans.vlan_ownership import (
    record_created_vlans,
    record_foreign_vlans,
    record_known_vlans,
    replace_created_vlans,
)
from virtcloud.model.errors import Unsafe
from virtcloud.model.values import Name

log = get_log(__name__)


class LeaseLostError(Exception):
    """Another worker has acquired the element's lease. This worker must stop and must not write its result."""


class WorkerTransactions(Protocol):
    """The workers' queries and changes.

    Every method can raise DatabaseUnavailable, even if the commit succeeded and only the database's answer was lost.
    """

    @property
    def holder(self) -> str:
        """The name of this replica, which holds the leases."""

    def acquire_lease(self, name: Name) -> int | None:
        """Acquire an element's lease. Return the fencing token, or None while another holder has the lease."""

    def release_lease(self, name: Name, fence: int) -> None:
        """Release the lease with fencing token ``fence``. Do nothing if another holder has acquired the lease."""

    def read_task(self, name: Name, fence: int) -> ReconcileTask:
        """Return a device's task from one snapshot. Raise NotFound for an unknown device."""

    def announce(self, reading: DeviceReading, why: str, *, drifted: bool) -> bool:
        """Record ``reading.difference`` and a pending save, before the device is changed. Renew the lease.

        ``why`` is the reason of the changes, for the audit log. Return False and record nothing in three cases:

        - The difference changes anything outside the device's current scope (`SwitchScope` or `EdgeScope`).
        - The topology has changed, and the difference adds something that is no longer wanted.
        - The topology now describes another device with this name.

        If the device has ``drifted``, reset its confirmed revision, even if the difference is empty: SBF does not
        repair all drift, such as a port that somebody shut down.

        Raise LeaseLostError if another worker has acquired the lease. Raise NotFound if the device was removed from the
        topology.
        """

    def confirm(self, reading: DeviceReading, *, changed: bool) -> bool:
        """Record that a device has the wanted state and has saved it. Return whether a newer revision is wanted.

        If the topology now describes another device with this name, record nothing and return True. Raise
        LeaseLostError if another worker has acquired the lease. If this worker has ``changed`` the device, record
        before this error that the next worker must read the device again.
        """

    def fail(self, name: Name, fence: int, report: ErrorReport, task: ReconcileTask | None) -> None:
        """Record an element's error report. ``task`` is None if the task could not be read.

        Record only that the next worker must read the element if another worker has acquired the lease, or the topology
        now describes another device. Raise NotFound if the topology lacks the element.
        """


@dataclass(frozen=True, slots=True)
class StoreWorkerTransactions:
    """The workers' transactions on the database. ``holder`` is the name of the replica that acquires leases."""

    store: Store
    timing: ServiceTiming
    holder: str

    def acquire_lease(self, name: Name) -> int | None:
        """Acquire an element's lease."""
        with self.store.change_row(who=self.holder) as unit:
            return acquire_lease(unit, name, self.holder, self.timing.lease)

    def renew_lease(self, name: Name, fence: int) -> bool:
        """Renew the lease with fencing token ``fence``. Return False if another holder has acquired the lease."""
        with self.store.change_row(who=self.holder) as unit:
            return renew_lease(unit, name, fence, self.timing.lease)

    def release_lease(self, name: Name, fence: int) -> None:
        """Release the lease with fencing token ``fence``."""
        with self.store.change_row(who=self.holder) as unit:
            release_lease(unit, name, fence)

    def read_task(self, name: Name, fence: int) -> ReconcileTask:
        """Return a device's task from one snapshot."""
        return read_task(self.store, name, fence)

    def announce(self, reading: DeviceReading, why: str, *, drifted: bool) -> bool:
        """Record a change and its pending save, and renew the lease, in one transaction.

        Return False in the cases of :meth:`WorkerTransactions.announce`. The device's current scope may be smaller than
        the task's scope.
        """
        task, difference = reading.task, reading.difference

        def record(unit: Unit) -> bool:
            if not renew_lease(unit, task.name, task.fence, self.timing.lease):
                raise LeaseLostError(task.name)
            if _is_replaced(unit, task) or _is_outdated(unit, reading):
                return False
            try:
                reading.check_scope(task.read_scope(unit, task.device, task.site, task.wanted))
                task.record_announced(unit, difference)
            except Unsafe:
                return False
            if drifted:
                reset_confirmation(unit, task.name, why, self.timing.drain)
            if difference:
                record_pending_save(unit, task.name)
                record_created_vlans(unit, task.name, difference.added_vlan_ids)
                record_audit(unit, task.change, why=why, element=task.name, difference=difference)
            return True

        return self.store.change_scope(partial(find_element_scope, name=task.name), record, who=self.holder)

    def confirm(self, reading: DeviceReading, *, changed: bool) -> bool:
        """Record that a device has the wanted state and has saved it.

        If this worker has ``changed`` the device, commit an increment of the device's wanted revision before raising
        LeaseLostError, so that the next worker reads the device again.
        """
        task = reading.task

        def record(unit: Unit) -> tuple[bool, bool]:
            still_held = renew_lease(unit, task.name, task.fence, self.timing.lease)
            if still_held and _is_replaced(unit, task):
                return still_held, True
            if still_held:
                self._record_confirmation(unit, reading)
            elif changed:
                increment_revisions(unit, [task.name])
            overtaken = require_element(unit, task.name).wanted_revision > task.revision
            if still_held:
                task.record_confirmed(unit, reading.observed)
            return still_held, overtaken

        has_errors = bool(_describe_errors(reading))
        find_scope = partial(find_confirmation_scope, name=task.name, revision=task.revision, has_errors=has_errors)
        still_held, overtaken = self.store.change_scope(find_scope, record, who=self.holder)
        if not still_held:
            raise LeaseLostError(task.name)
        return overtaken

    def fail(self, name: Name, fence: int, report: ErrorReport, task: ReconcileTask | None) -> None:
        """Record an element's error report. Log the report if it differs from the previous report."""
        with self.store.change(who=self.holder) as unit:
            row = require_element(unit, name)
            if holds_lease(unit, name, fence) and not (task is not None and _is_replaced(unit, task)):
                is_new = self._record_report(unit, row, report)
            else:
                is_new = False
                increment_revisions(unit, [name])
            event = f"{row.kind}_trouble"
        if is_new:
            log.warning(event, element=name, trouble=report.message)

    def _record_confirmation(self, unit: Unit, reading: DeviceReading) -> None:
        """Record the device's confirmation for all clusters that the device carries, with two exceptions.

        - A cluster whose VLAN ID is in other use on the device, so that SBF cannot configure the VLAN ID, does not
          count as set up. The cluster fails if it is in the state ``configuring``.
        - A cluster whose VLAN SBF must not set up yet does not count as set up, but does not fail.
        """
        task, foreign = reading.task, reading.observed.foreign
        replace_created_vlans(unit, task.name, reading.owned)
        row = require_element(unit, task.name)
        record_known_vlans(row, task.scope.vlans, foreign)
        record_foreign_vlans(unit, row, task.scope.vlans, foreign)
        blocked = describe_blocked_vlans(reading.blocked, foreign)
        held = describe_held_vlans(task.postponed)
        about = _describe_errors(reading)
        refused = convert_vlans_to_clusters(unit, task.site, blocked)
        waiting = convert_vlans_to_clusters(unit, task.site, held | blocked)
        errors = ElementClusterErrors(
            "; ".join(about.values()), convert_vlans_to_clusters(unit, task.site, about), frozenset(waiting)
        )
        confirm_revision(unit, task.name, task.revision, self.timing.drain, reading.observed, errors if about else None)
        if refused:
            fail_refused_clusters(unit, task.name, refused, self.timing.drain)

    def _record_report(self, unit: Unit, row: ElementRow, report: ErrorReport) -> bool:
        if report.saved is not None:
            record_saved(unit, row, report.saved)
        if report.unsaved:
            record_failed_save(unit, row.name)
        clusters = convert_vlans_to_clusters(unit, row.site, report.about) if report.about else None
        return record_error(
            unit, row.name, report.message, self.timing.drain, reachable=report.reachable, clusters=clusters
        )


def _describe_errors(reading: DeviceReading) -> dict[int, str]:
    task, foreign = reading.task, reading.observed.foreign
    held, blocked = describe_held_vlans(task.postponed), describe_blocked_vlans(reading.blocked, foreign)
    return describe_shared_vlans(task.wanted.vlans, foreign) | held | blocked


def _is_outdated(unit: Unit, reading: DeviceReading) -> bool:
    """Return whether the topology has changed, and the difference adds something that is no longer wanted.

    A changed topology takes effect at once: a port that carried a cluster can now belong to another transport. A
    difference that adds the VLAN of an ending cluster may still be applied, because the VLAN ID stays claimed until the
    device has confirmed the removal.
    """
    task = reading.task
    is_current = require_element(unit, task.name).wanted_revision == task.revision
    if is_current or not reading.difference.added_vlan_ids or task.topology == read_topology_version(unit):
        return False
    return not reading.adds_only(read_wanted_revision(unit, task.name).wanted)


def _is_replaced(unit: Unit, task: ReconcileTask) -> bool:
    """Return whether the topology has changed since the task was read, and the name may denote another device.

    Raise NotFound for a removed element. A removed switch with ports to restore is still the same device.
    """
    row = require_element(unit, task.name)
    if row.wanted_revision == task.revision:
        return False  # each change of an element's description increments its wanted revision
    return is_other_device(task.device, parse_removed_switch(row) or read_topology(unit).element(task.name))
