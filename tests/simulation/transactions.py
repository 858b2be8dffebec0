"""The database transactions of SBF's reconciliation, on a store in memory.

A simulated replica or agent pauses before each transaction, until the schedule (`simulation.schedule`) resumes it. If
the database is unreachable, a transaction changes nothing. If answers are lost, a transaction is committed, but the
caller receives no result.
"""

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from functools import partial
from typing import TypeVar

from sbf_service.domain.due_elements import DeviceStatus, DueDevices
from sbf_service.domain.error_report import ErrorReport
from sbf_service.domain.wanted import find_edge_peers, find_edge_transports
from sbf_service.drivers.contract import Backbone, EdgeScope, SwitchScope
from sbf_service.reconcile.device_task import DeviceReading, ReconcileTask
from sbf_service.reconcile.task import TASKS
from sbf_service.reconcile.transactions import LeaseLostError
from sbf_service.store.elements.observed_state import list_observed_items
from simulation.devices import Device as SimulatedDevice
from simulation.stage import Stage
from simulation.store import MemoryStore
from virtcloud.model.element import Device, Element
from virtcloud.model.element import Edge as EdgeElement
from virtcloud.model.errors import DatabaseUnavailable, Unsafe
from virtcloud.model.values import Name
from virtcloud.model.wanted import HostWanted

T = TypeVar("T")
UNREACHABLE, ANSWERS_ARE_LOST = "is unreachable", "loses its answers"
Devices = Mapping[Name, SimulatedDevice]


@dataclass
class Database:
    """The connection of all replicas and agents to the store. ``fault`` is a fault of this connection, or None."""

    store: MemoryStore
    stage: Stage
    fault: str | None = None

    def do(self, what: str, work: Callable[[], T]) -> T:
        """Pause until the schedule resumes the calling replica or agent, then run one transaction.

        Raise DatabaseUnavailable if the database is unreachable or the answer is lost.
        """
        self.stage.gate(what)
        if self.fault == UNREACHABLE:
            raise DatabaseUnavailable(f"{what}: the database does not answer")
        result = work()
        if self.fault == ANSWERS_ARE_LOST:
            raise DatabaseUnavailable(f"{what}: the connection ended")
        return result


@dataclass(frozen=True)
class MemoryTransactions:
    """``StoreWorkerTransactions`` on the store in memory.

    ``devices`` record each replica's fencing token. By these tokens, the simulation detects changes by late workers.
    """

    database: Database
    devices: Devices
    holder: str

    @property
    def store(self) -> MemoryStore:
        return self.database.store

    def acquire_lease(self, name: Name) -> int | None:
        def work() -> int | None:
            fence = self.store.acquire_lease(name, self.holder)
            if fence is not None:
                self.devices[name].fences[self.holder] = fence
            return fence

        return self.database.do(f"acquire the lease of {name}", work)

    def release_lease(self, name: Name, fence: int) -> None:
        self.database.do(f"release the lease of {name}", lambda: self.store.release_lease(name, fence))

    def read_task(self, name: Name, fence: int) -> ReconcileTask:
        return self.database.do(f"read the task of {name}", lambda: self._task(name, fence))

    def announce(self, reading: DeviceReading, why: str, *, drifted: bool) -> bool:
        return self.database.do(
            f"announce a change of {reading.task.name}", lambda: self._announce(reading, drifted=drifted)
        )

    def confirm(self, reading: DeviceReading, *, changed: bool) -> bool:
        return self.database.do(f"confirm {reading.task.name}", lambda: self._confirm(reading, changed=changed))

    def fail(self, name: Name, fence: int, report: ErrorReport, task: ReconcileTask | None) -> None:
        if report.message.startswith("fault in the service"):
            self.database.stage.broken.append(report.message)
        self.database.do(f"record the error report of {name}", lambda: self._fail(name, fence, report))

    def _task(self, name: Name, fence: int) -> ReconcileTask:
        revision, confirmed, wanted = self.store.read_wanted(name)
        device, row, kept = (
            self.store.topology.element(name),
            self.store.elements[name],
            self.store.read_confirmed(name),
        )
        assert isinstance(device, Device)
        assert not isinstance(wanted, HostWanted)
        assert not isinstance(kept, HostWanted)
        return TASKS[row.kind](
            device=device,
            site=row.site,
            fence=fence,
            revision=revision,
            confirmed=confirmed,
            wanted=wanted,
            kept=kept,
            scope=self._scope(device),
            backbone=self._backbone(device),
            users={},
            saved=row.saved,
            unsaved=row.unsaved_since is not None,
            may_save=row.save_after is None or self.store.now >= row.save_after,
            reachable=row.reachable,
        )

    def _announce(self, reading: DeviceReading, *, drifted: bool) -> bool:
        task, difference = reading.task, reading.difference
        if not self.store.renew_lease(task.name, task.fence):
            raise LeaseLostError(task.name)
        try:
            reading.check_scope(self._scope(task.device))
        except Unsafe:
            return False
        if drifted:
            self.store.reset_confirmation(task.name)
        device = self.devices[task.name]
        if difference:
            self.store.record_pending_save(task.name)
            self.store.elements[task.name].created |= difference.added_vlan_ids
            device.announced[self.holder] = task.fence
        device.unread = device.unread and not device.is_known(self.holder)
        return True

    def _confirm(self, reading: DeviceReading, *, changed: bool) -> bool:
        task = reading.task
        is_held = self.store.renew_lease(task.name, task.fence)
        if is_held:
            device = self.devices[task.name]
            if device.is_known(self.holder):
                device.doubtful = device.unread = False
            self.store.elements[task.name].created = reading.owned
            self.store.confirm(task.name, task.revision, list_observed_items(reading.observed))
        elif changed:
            self.store.increment_revisions([task.name])
        if not is_held:
            raise LeaseLostError(task.name)
        return self.store.elements[task.name].wanted > task.revision

    def _fail(self, name: Name, fence: int, report: ErrorReport) -> None:
        if self.store.elements[name].fence != fence:
            self.store.increment_revisions([name])
            return
        if report.saved is not None:
            self.store.record_saved(name, list_observed_items(report.saved))
        if report.unsaved:
            self.store.record_failed_save(name)
        self.store.record_error(name, reachable=report.reachable)

    def _scope(self, device: Element) -> SwitchScope | EdgeScope:
        created = self.store.elements[device.name].created
        if isinstance(device, EdgeElement):
            transports = find_edge_transports(self.store.topology, device.name)
            return EdgeScope(device.ports, self.store.pool, transports, created)
        return SwitchScope(device.ports, self.store.pool, created=created)

    def _backbone(self, device: Element) -> Backbone | None:
        if not isinstance(device, EdgeElement):
            return None
        transports = find_edge_transports(self.store.topology, device.name)
        return Backbone(transports, find_edge_peers(self.store.topology, device.name, transports))


@dataclass(frozen=True)
class MemoryCandidates:
    """``StoreDeviceStatuses`` on the store in memory."""

    database: Database

    def read(self, holder: str, due: DueDevices) -> tuple[datetime, list[DeviceStatus]]:
        now, statuses = self.database.do("read the device statuses", partial(self._read, holder))
        return now, [status for status in statuses if not due.only_names or status.name in due.names]

    def _read(self, holder: str) -> tuple[datetime, list[DeviceStatus]]:
        return self.database.store.now, self.database.store.read_device_statuses(holder)

    def find_removed(self, names: Collection[Name]) -> set[Name]:
        return set(names) - self.database.store.topology.elements.keys()

    def release_leases(self, holder: str) -> None:
        self.database.store.release_leases(holder)


@dataclass(frozen=True)
class MemoryDeadlines:
    """``StoreDeadlineTransactions`` on the store in memory."""

    database: Database

    def record_sweep(self, longest_gap_s: float) -> None:
        """Do nothing: the simulated sweeps are rare, so a gap between two sweeps is no outage."""

    def find_overdue(self, silence: timedelta) -> tuple[bool, list[Name]]:
        store = self.database.store
        return self.database.do("find overdue clusters", lambda: (store.is_overdue(), store.find_stale_agents(silence)))

    def apply_transitions(self) -> None:
        self.database.do("apply the due transitions", self.database.store.apply_transitions)

    def record_stale_agent(self, name: Name, silence: timedelta) -> None:
        self.database.do(f"record the stale agent of {name}", lambda: self._record_stale(name, silence))

    def _record_stale(self, name: Name, silence: timedelta) -> None:
        if name in self.database.store.find_stale_agents(silence):
            self.database.store.record_error(name, reachable=False)
