"""Switches and edges as the converger looks at them.

The store as a worker uses it: what is read and written about one device, one transaction for each method.

The worker knows :class:`Transactions` only, so that it runs in the fault schedules of the tests as it does here.
"""

from dataclasses import dataclass
from datetime import datetime
from typing import Any, Protocol

from sqlalchemy import select

from sbf_service.domain.due_elements import DeviceStatus
from sbf_service.domain.error_report import ErrorReport, describe_blocked_vlans, describe_shared_vlans
from sbf_service.log import get_log
from sbf_service.reconcile.task import C, D, M, ReconcileTask, W, read_task
from sbf_service.settings import ServiceTiming
from sbf_service.store.elements import ElementClusterErrors, confirm_revision, record_error, reset_confirmation
from sbf_service.store.leases import acquire_lease, holds_lease, release_lease, release_leases_of, renew_lease
from sbf_service.store.observed_state import record_failed_save, record_pending_save, record_saved
from sbf_service.store.pools import find_clusters_of_vlans
from sbf_service.store.revisions import increment_revisions, require_element
from sbf_service.store.tables import IS_RECONCILED, ElementRow
from sbf_service.store.transitions import fail_refused_clusters
from sbf_service.store.unit_of_work import Store, Unit, read_topology, record_audit
from sbf_service.store.vlan_ownership import record_created_vlans, record_foreign_vlans, replace_created_vlans
from virtcloud.model.edge import DEVICE_KINDS
from virtcloud.model.element import Device, Element
from virtcloud.model.errors import Unsafe
from virtcloud.model.values import Name

_DEVICES = (
    select(
        ElementRow.name,
        ElementRow.wanted_revision,
        ElementRow.confirmed_revision,
        ElementRow.checked_at,
        ElementRow.reachable,
        ElementRow.lease_until,
        ElementRow.lease_holder,
    )
    .where(IS_RECONCILED, ElementRow.kind.in_(sorted(DEVICE_KINDS)))
    .order_by(ElementRow.name)
)
"""Not what they carry: that is long, and this is read at every change."""


class DeviceStatuses(Protocol):
    """What the converger reads and writes; each method is one transaction."""

    def find(self, holder: str) -> tuple[datetime, list[DeviceStatus]]:
        """Return the database's time, and every switch and edge as ``holder`` may take it."""

    def give_up_leases(self, holder: str) -> None:
        """End all leases of a replica that starts anew; what its last life still does is then ignored."""


@dataclass(frozen=True, slots=True)
class StoreDeviceStatuses:
    """The converger's transactions on the database."""

    store: Store

    def find(self, holder: str) -> tuple[datetime, list[DeviceStatus]]:
        """Return the database's time, and every switch and edge as ``holder`` may take it."""
        with self.store.read() as unit:
            return unit.now, read_device_statuses(unit, holder)

    def give_up_leases(self, holder: str) -> None:
        """End all leases of a replica that starts anew; what its last life still does is then ignored."""
        with self.store.change() as unit:
            release_leases_of(unit, holder)


def read_device_statuses(unit: Unit, holder: str) -> list[DeviceStatus]:
    """Give every switch and edge of the topology, in name order."""
    rows = unit.connection.execute(_DEVICES).all()
    known = read_topology(unit).elements if rows else {}
    return [
        DeviceStatus(
            name=Name(row.name),
            wanted=row.wanted_revision,
            confirmed=row.confirmed_revision,
            checked_at=row.checked_at,
            leased=row.lease_until is not None and row.lease_until >= unit.now and row.lease_holder != holder,
            platform=_platform_of(known.get(Name(row.name))),
            reachable=row.reachable,
        )
        for row in rows
    ]


def _platform_of(element: Element | None) -> str:
    return element.platform if isinstance(element, Device) else ""


log = get_log(__name__)


class LeaseLostError(Exception):
    """Another worker took the element: this one stops and writes nothing."""


class WorkerTransactions(Protocol):
    """What a worker reads and writes. Every method may raise DatabaseUnavailable, and has then changed nothing."""

    @property
    def holder(self) -> str:
        """The name under which leases are held."""

    def take_lease(self, name: Name) -> int | None:
        """Take an element's lease. Return the fencing token, or None while another holder has it."""

    def give_up_lease(self, name: Name, fence: int) -> None:
        """End a lease; no effect when a newer one was taken."""

    def read_task(self, name: Name, fence: int) -> ReconcileTask[Any, Any, Any, Any]:
        """Read what a device must carry, from one snapshot. Raise NotFound."""

    def announce(self, task: ReconcileTask[W, M, C, D], difference: D, why: str, *, drifted: bool) -> bool:
        """Record a change, and that it is to be saved, before the device receives it; extend the lease.

        Return False when the difference is no longer within what may be touched: nothing is recorded then. A drifted
        device's confirmed revision is reset, also when there is nothing to change: a port was shut down. Raise
        LeaseLostError.
        """

    def confirm(self, task: ReconcileTask[W, M, C, D], carried: C, *, changed: bool) -> bool:
        """Record that a device carries what the task wants, and has saved it. Return whether more is wanted by now.

        Raise LeaseLostError; a device that was ``changed`` without its lease is then read again by the next worker.
        """

    def fail(self, name: Name, fence: int, trouble: ErrorReport) -> None:
        """Record an element's trouble; without its lease, have the element read again by the next worker instead."""


@dataclass(frozen=True, slots=True)
class StoreWorkerTransactions:
    """The transactions on the database, under the name ``holder``."""

    store: Store
    timing: ServiceTiming
    holder: str

    def take_lease(self, name: Name) -> int | None:
        """Take an element's lease. Return the fencing token, or None while another holder has it."""
        with self.store.touch(who=self.holder) as unit:
            return acquire_lease(unit, name, self.holder, self.timing.lease)

    def keep_lease(self, name: Name, fence: int) -> bool:
        """Renew a lease. Return false when a newer one was taken."""
        with self.store.touch(who=self.holder) as unit:
            return renew_lease(unit, name, fence, self.timing.lease)

    def give_up_lease(self, name: Name, fence: int) -> None:
        """End a lease; no effect when a newer one was taken."""
        with self.store.touch(who=self.holder) as unit:
            release_lease(unit, name, fence)

    def read_task(self, name: Name, fence: int) -> ReconcileTask[Any, Any, Any, Any]:
        """Read what a device must carry, from one snapshot. Raise NotFound."""
        return read_task(self.store, name, fence)

    def announce(self, task: ReconcileTask[W, M, C, D], difference: D, why: str, *, drifted: bool) -> bool:
        """Record a change, unless what may be touched shrank since the task was read. Raise LeaseLostError."""
        with self.store.change(who=self.holder) as unit:
            self._require_lease(unit, task.name, task.fence)
            try:
                managed = task.kind.managed(unit, task.device, task.site, task.wanted)
                task.kind.refuse_outside(task.name, managed, difference)
                task.kind.announced(unit, task.name, task.managed, difference)
            except Unsafe:
                return False
            if drifted:
                reset_confirmation(unit, task.name, why, self.timing.drain)
            if difference:
                record_pending_save(unit, task.name)
                record_created_vlans(unit, task.name, difference.added_vlan_ids)
                record_audit(unit, task.change, why=why, element=task.name, difference=difference)
        return True

    def confirm(self, task: ReconcileTask[W, M, C, D], carried: C, *, changed: bool) -> bool:
        """Record a confirmation. Return whether more is wanted by now. Raise LeaseLostError after the commit."""
        with self.store.change(who=self.holder) as unit:
            mine = renew_lease(unit, task.name, task.fence, self.timing.lease)
            if mine:
                self._record_confirmation(unit, task, carried)
            elif changed:
                increment_revisions(unit, [task.name])
            overtaken = require_element(unit, task.name).wanted_revision > task.revision
            if mine:
                task.kind.settled(unit, task.name, task.managed, carried)
        if not mine:
            raise LeaseLostError(task.name)
        return overtaken

    def fail(self, name: Name, fence: int, trouble: ErrorReport) -> None:
        """Record an element's trouble, and log it when it is new."""
        with self.store.change(who=self.holder) as unit:
            row = require_element(unit, name)
            mine = holds_lease(unit, name, fence)
            news = mine and self._trouble(unit, row, trouble)
            if not mine:
                increment_revisions(unit, [name])
            event = f"{row.kind}_trouble"
        if news:
            log.warning(event, element=name, trouble=trouble.message)

    def _record_confirmation(self, unit: Unit, task: ReconcileTask[W, M, C, D], carried: C) -> None:
        """Confirm what a device carries. Clusters in VLANs in other use are left out; those being set up fail."""
        replace_created_vlans(unit, task.name, task.kind.owned(task.managed, task.wanted, carried))
        record_foreign_vlans(unit, require_element(unit, task.name), task.managed.vlans, carried.foreign)
        blocked = describe_blocked_vlans(task.kind.blocked(task.wanted, carried), carried.foreign)
        about = describe_shared_vlans(task.wanted.vlans, carried.foreign) | blocked
        without = find_clusters_of_vlans(unit, task.site, blocked)
        concern = ElementClusterErrors(
            "; ".join(about.values()), find_clusters_of_vlans(unit, task.site, about), frozenset(without)
        )
        confirm_revision(unit, task.name, task.revision, self.timing.drain, carried, concern if about else None)
        if without:
            fail_refused_clusters(unit, task.name, without, self.timing.drain)

    def _trouble(self, unit: Unit, row: ElementRow, trouble: ErrorReport) -> bool:
        if trouble.saved is not None:
            record_saved(unit, row, trouble.saved)
        if trouble.unsaved:
            record_failed_save(unit, row.name)
        clusters = find_clusters_of_vlans(unit, row.site, trouble.about)
        return record_error(
            unit, row.name, trouble.message, self.timing.drain, reachable=trouble.reachable, clusters=clusters
        )

    def _require_lease(self, unit: Unit, name: Name, fence: int) -> None:
        if not renew_lease(unit, name, fence, self.timing.lease):
            raise LeaseLostError(name)
