"""The store as a worker uses it: what is read and written about one device, one transaction for each method.

The worker knows :class:`Transactions` only, so that it runs in the fault schedules of the tests as it does here.
"""

from dataclasses import dataclass
from typing import Any, Protocol

from sbf_service.converge.kind import C, D, M, W
from sbf_service.converge.task import Task, read_task
from sbf_service.converge.trouble import Trouble, blocked_words, shared_words
from sbf_service.log import get_log
from sbf_service.settings import Timing
from sbf_service.store.audit import record
from sbf_service.store.created_vlans import record_created, replace_created
from sbf_service.store.elements import Concern, confirm, set_back, set_trouble
from sbf_service.store.foreign_vlans import record_foreign
from sbf_service.store.leases import give_up_lease, holds_lease, keep_lease, take_lease
from sbf_service.store.pools import clusters_about
from sbf_service.store.refusals import fail_refused
from sbf_service.store.revisions import element_row, grow
from sbf_service.store.saves import expect_save, record_failed_save, record_saved
from sbf_service.store.session import Store, Unit
from sbf_service.store.tables import ElementRow
from virtcloud.model.errors import Unsafe
from virtcloud.model.values import Name

log = get_log(__name__)


class LeaseLostError(Exception):
    """Another worker took the element: this one stops and writes nothing."""


class Transactions(Protocol):
    """What a worker reads and writes. Every method may raise DatabaseUnavailable, and has then changed nothing."""

    @property
    def holder(self) -> str:
        """The name under which leases are held."""

    def take_lease(self, name: Name) -> int | None:
        """Take an element's lease. Return the fencing token, or None while another holder has it."""

    def give_up_lease(self, name: Name, fence: int) -> None:
        """End a lease; no effect when a newer one was taken."""

    def read_task(self, name: Name, fence: int) -> Task[Any, Any, Any, Any]:
        """Read what a device must carry, from one snapshot. Raise NotFound."""

    def announce(self, task: Task[W, M, C, D], difference: D, why: str, *, drifted: bool) -> bool:
        """Record a change, and that it is to be saved, before the device receives it; extend the lease.

        Return False when the difference is no longer within what may be touched: nothing is recorded then. A drifted
        device's confirmed revision is reset, also when there is nothing to change: a port was shut down. Raise
        LeaseLostError.
        """

    def confirm(self, task: Task[W, M, C, D], carried: C, *, changed: bool) -> bool:
        """Record that a device carries what the task wants, and has saved it. Return whether more is wanted by now.

        Raise LeaseLostError; a device that was ``changed`` without its lease is then read again by the next worker.
        """

    def fail(self, name: Name, fence: int, trouble: Trouble) -> None:
        """Record an element's trouble; without its lease, have the element read again by the next worker instead."""


@dataclass(frozen=True, slots=True)
class StoreTransactions:
    """The transactions on the database, under the name ``holder``."""

    store: Store
    timing: Timing
    holder: str

    def take_lease(self, name: Name) -> int | None:
        """Take an element's lease. Return the fencing token, or None while another holder has it."""
        with self.store.touch(who=self.holder) as unit:
            return take_lease(unit, name, self.holder, self.timing.lease)

    def keep_lease(self, name: Name, fence: int) -> bool:
        """Renew a lease. Return false when a newer one was taken."""
        with self.store.touch(who=self.holder) as unit:
            return keep_lease(unit, name, fence, self.timing.lease)

    def give_up_lease(self, name: Name, fence: int) -> None:
        """End a lease; no effect when a newer one was taken."""
        with self.store.touch(who=self.holder) as unit:
            give_up_lease(unit, name, fence)

    def read_task(self, name: Name, fence: int) -> Task[Any, Any, Any, Any]:
        """Read what a device must carry, from one snapshot. Raise NotFound."""
        return read_task(self.store, name, fence)

    def announce(self, task: Task[W, M, C, D], difference: D, why: str, *, drifted: bool) -> bool:
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
                set_back(unit, task.name, why, self.timing.drain)
            if difference:
                expect_save(unit, task.name)
                record_created(unit, task.name, difference.made)
                record(unit, task.change, why=why, element=task.name, difference=difference)
        return True

    def confirm(self, task: Task[W, M, C, D], carried: C, *, changed: bool) -> bool:
        """Record a confirmation. Return whether more is wanted by now. Raise LeaseLostError after the commit."""
        with self.store.change(who=self.holder) as unit:
            mine = keep_lease(unit, task.name, task.fence, self.timing.lease)
            if mine:
                self._record_confirmation(unit, task, carried)
            elif changed:
                grow(unit, [task.name])
            overtaken = element_row(unit, task.name).wanted_revision > task.revision
            if mine:
                task.kind.settled(unit, task.name, task.managed, carried)
        if not mine:
            raise LeaseLostError(task.name)
        return overtaken

    def fail(self, name: Name, fence: int, trouble: Trouble) -> None:
        """Record an element's trouble, and log it when it is new."""
        with self.store.change(who=self.holder) as unit:
            row = element_row(unit, name)
            mine = holds_lease(unit, name, fence)
            news = mine and self._trouble(unit, row, trouble)
            if not mine:
                grow(unit, [name])
            event = f"{row.kind}_trouble"
        if news:
            log.warning(event, element=name, trouble=trouble.message)

    def _record_confirmation(self, unit: Unit, task: Task[W, M, C, D], carried: C) -> None:
        """Confirm what a device carries. Clusters in VLANs in other use are left out; those being set up fail."""
        replace_created(unit, task.name, task.kind.owned(task.managed, task.wanted, carried))
        record_foreign(unit, element_row(unit, task.name), task.managed.vlans, carried.foreign)
        blocked = blocked_words(task.kind.blocked(task.wanted, carried), carried.foreign)
        about = shared_words(task.wanted.vlans, carried.foreign) | blocked
        without = clusters_about(unit, task.site, blocked)
        concern = Concern("; ".join(about.values()), clusters_about(unit, task.site, about), frozenset(without))
        confirm(unit, task.name, task.revision, self.timing.drain, carried, concern if about else None)
        if without:
            fail_refused(unit, task.name, without, self.timing.drain)

    def _trouble(self, unit: Unit, row: ElementRow, trouble: Trouble) -> bool:
        if trouble.saved is not None:
            record_saved(unit, row, trouble.saved)
        if trouble.unsaved:
            record_failed_save(unit, row.name)
        clusters = clusters_about(unit, row.site, trouble.about)
        return set_trouble(
            unit, row.name, trouble.message, self.timing.drain, reachable=trouble.reachable, clusters=clusters
        )

    def _require_lease(self, unit: Unit, name: Name, fence: int) -> None:
        if not keep_lease(unit, name, fence, self.timing.lease):
            raise LeaseLostError(name)
