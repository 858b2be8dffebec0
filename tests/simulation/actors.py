from collections.abc import Callable
from dataclasses import dataclass, field
from math import inf

from sbf_service.drivers.contract import DeviceLogin, EdgeCapabilities, EdgePlatform, SwitchCapabilities, SwitchPlatform
from sbf_service.reconcile.deadlines import DeadlineSweep
from sbf_service.reconcile.scheduler import WorkerScheduler
from sbf_service.reconcile.sessions import DeviceSessions, Platforms
from sbf_service.reconcile.worker import Worker
from sbf_service.settings import ServiceSettings
from simulation.devices import D, Edge, EdgeSession, Host, Switch, SwitchSession
from simulation.store import STARTED
from simulation.transactions import Database, Devices, MemoryCandidates, MemoryDeadlines, MemoryTransactions
from virtcloud.model.transport import TransportKind
from virtcloud.model.values import Name
from virtcloud.model.wanted import HostWanted

SETTINGS = ServiceSettings()


@dataclass
class Replica:
    """One replica of the service. After a kill, a new scheduler starts, which knows only the database."""

    holder: str
    database: Database
    devices: Devices
    jitter: Callable[[], float]
    scheduler: WorkerScheduler = field(init=False)

    def __post_init__(self) -> None:
        self.start()

    def start(self) -> None:
        """Create a scheduler, and release the replica's leases as ``WorkerScheduler.start`` does. Start no thread."""
        transactions = MemoryTransactions(self.database, self.devices, self.holder)
        worker = Worker(transactions, DeviceSessions(SETTINGS, Platforms(self._of_switch, self._of_edge)))
        # The simulated sweeps are rare. Therefore a gap between two sweeps never counts as a suspension (`inf`).
        sweep = DeadlineSweep(MemoryDeadlines(self.database), SETTINGS.timing, self.clock, inf)
        self.scheduler = WorkerScheduler(
            MemoryCandidates(self.database),
            worker,
            sweep,
            SETTINGS,
            clock=self.clock,
            jitter=self.jitter,
            spawn=self._spawn,
        )
        self.scheduler.statuses.release_leases(self.holder)

    def clock(self) -> float:
        return (self.database.store.now - STARTED).total_seconds()

    def _spawn(self, work: Callable[[], None], name: str) -> None:
        element = Name(name.removeprefix("converge-"))
        if self.database.stage.acting is None:
            work()
        else:
            self.database.stage.enter(work, self.holder, element)

    def _of_switch(self, _described: object) -> SwitchPlatform:
        return SwitchPlatform(
            SwitchCapabilities(), lambda login: SwitchSession(self._device(Switch, login), self.holder)
        )

    def _of_edge(self, _described: object) -> EdgePlatform:
        facts = EdgeCapabilities(kinds=frozenset(TransportKind))
        return EdgePlatform(facts, lambda login, _: EdgeSession(self._device(Edge, login), self.holder))

    def _device(self, kind: type[D], login: DeviceLogin) -> D:
        device = self.devices[login.device.name]
        assert isinstance(device, kind)
        return device


@dataclass(frozen=True)
class Agent:
    """An agent: it sends a heartbeat, fetches and applies the wanted state, and confirms the revision.

    After a restart of its host, the agent resets the host's confirmed revision before it fetches the wanted state.
    """

    database: Database
    host: Host

    def run(self) -> None:
        store, name = self.database.store, self.host.name
        self.stop("heartbeat")
        store.record_heartbeat(name)
        if self.host.doubtful:
            store.reset_confirmation(name)
            self.host.doubtful = False
            self.stop("fetch")
        revision, _, wanted = store.read_wanted(name)
        assert isinstance(wanted, HostWanted)
        self.stop("apply")
        self.host.apply(wanted)
        self.stop("confirm")
        if not self.host.doubtful:
            store.confirm(name, revision)

    def stop(self, at: str) -> None:
        self.database.stage.gate(f"the agent of {self.host.name}: {at}")
