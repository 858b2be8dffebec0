"""The composition root, which builds the service from its parts."""

import socket
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from datetime import timedelta
from functools import partial

from limits.strategies import MovingWindowRateLimiter

from sbf_service.call_counts import CallCounts
from sbf_service.change_feed import ChangeFeed
from sbf_service.change_reader import ChangeReader
from sbf_service.drivers.registry import find_edge_platform, find_switch_platform
from sbf_service.image_files import UploadFolder, find_image_folder
from sbf_service.metrics import ServiceMetrics, make_metrics
from sbf_service.overload import BoundedThreads
from sbf_service.reconcile.deadlines import DeadlineSweep, StoreDeadlineTransactions
from sbf_service.reconcile.device_statuses import StoreDeviceStatuses
from sbf_service.reconcile.heartbeats import LeaseHeartbeats
from sbf_service.reconcile.scheduler import WorkerScheduler
from sbf_service.reconcile.sessions import DeviceSessions, EdgePlatformOf, PlatformOf, Platforms
from sbf_service.reconcile.transactions import StoreWorkerTransactions
from sbf_service.reconcile.worker import Worker
from sbf_service.retention_schedule import RetentionSchedule
from sbf_service.settings import ServiceSettings
from sbf_service.store.connections.database import make_engine
from sbf_service.store.elements.agent_heartbeats import AgentHeartbeats
from sbf_service.store.elements.settled_agents import SettledAgents
from sbf_service.store.maintenance.database_migration import migrate
from sbf_service.store.store import Store
from sbf_service.store.tables.columns import read_database_clock
from sbf_service.store.topology.current_topology import read_topology
from sbf_service.store.unit_of_work import Clock
from sbf_service.store.users.token_cache import TokenCache
from sbf_service.store.vlans.transport_vlans import log_collisions
from virtcloud.model.element import Device
from virtcloud.model.errors import VirtcloudError
from virtcloud.model.vlans import VlanSet
from virtcloud.tracing import child_span

MAX_REPLICA_NAME = 59
"""The maximum length of a replica's default name, in characters.

The database column of lease holders must also store the prefix ``sbf@``.
"""


@dataclass(frozen=True)
class SbfService:
    """The parts of the service that HTTP routes use, including the reconciler."""

    settings: ServiceSettings
    store: Store
    change_feed: ChangeFeed
    change_reader: ChangeReader
    heartbeats: AgentHeartbeats
    settled_agents: SettledAgents
    scheduler: WorkerScheduler
    platforms: Platforms
    metrics: ServiceMetrics
    token_cache: TokenCache
    call_counts: MovingWindowRateLimiter
    """Counts the calls of each caller in memory, for the rate limits. Thread-safe."""
    device_threads: BoundedThreads
    """Threads for calls that read devices, which can take long and must not occupy the threads of other calls."""
    retention: RetentionSchedule

    @property
    def image_folder(self) -> UploadFolder:
        """The folder of uploaded images."""
        return UploadFolder(find_image_folder(self.settings.images, self.settings.database))

    def reserved(self, device: Device) -> VlanSet:
        """Return the VLAN IDs that a switch or a provider edge reserves for itself."""
        return self.platforms.reserved(device)

    def prepare(self) -> bool:
        """Migrate the database to this version. Return whether the database had no tables of SBF before.

        Raise BadInput if the database cannot be opened or written, or if a newer version migrated the database.
        """
        return migrate(self.store.engine)

    def start(self) -> None:
        """Start the change reader, the reconciler and the retention schedule.

        First cache the topology and tokens, and log each VLAN ID that several networks have on one transport.
        """
        # Parse and cache the topology, so that no user's call waits for the parser. SBF starts with an invalid topology
        # too (ValidationError is a ValueError), because many calls need no topology.
        with suppress(VirtcloudError, ValueError), self.store.read() as unit:
            log_collisions(unit.connection)
            read_topology(unit)
        self.change_reader.poll_once()  # reads the number of revoked tokens, for comparison in later slow polls
        self.token_cache.load()
        self.change_reader.start()
        self.scheduler.start()
        self.retention.start()

    def stop(self) -> None:
        """Wake all waiting calls, stop the scheduler of workers, and close the database.

        Wait at most a second for the scheduler. Workers that reconcile a device continue.
        """
        self.change_feed.close()
        self.change_reader.stop()
        with suppress(VirtcloudError):  # a lost heartbeat does no harm: the agent's next call is a heartbeat too
            self.heartbeats.record()
        self.scheduler.stop()
        self.retention.stop()
        self.store.close()


def build_service(
    settings: ServiceSettings,
    platforms: PlatformOf = find_switch_platform,
    clock: Clock = read_database_clock,
    edge_platforms: EdgePlatformOf = find_edge_platform,
) -> SbfService:
    """Build the service without opening a connection or starting a thread."""
    engine = make_engine(settings.database)
    change_feed, device_platforms = ChangeFeed(), Platforms(platforms, edge_platforms)
    metrics = make_metrics()
    store = Store(engine, publish=change_feed.publish, clock=clock, measure=partial(_measure, metrics))
    transactions = StoreWorkerTransactions(store, settings.timing, f"sbf@{replica_name(settings)}")
    sessions = DeviceSessions(settings, device_platforms)
    lease_heartbeats = LeaseHeartbeats(transactions.renew_lease, sessions, settings.timing)
    worker = Worker(transactions, sessions, lease_heartbeats.hold)
    sweep = DeadlineSweep(StoreDeadlineTransactions(store, settings.timing), settings.timing)
    scheduler = WorkerScheduler(
        StoreDeviceStatuses(store), worker, sweep, settings, record_metrics=metrics.record_reconciliation
    )
    heartbeats = AgentHeartbeats(store, lambda: timedelta(seconds=settings.timing.agent_silence / 2))
    settled_agents = SettledAgents(store, gets_notices=lambda: change_reader.listens)
    token_cache = TokenCache(store, gets_notices=lambda: change_reader.listens)
    change_reader = ChangeReader(
        store, change_feed, lambda: _exchange(heartbeats, settled_agents, token_cache), settled_agents.omit_current
    )
    change_feed.add_listener(scheduler.wake)
    change_feed.add_listener(token_cache.on_change, remote=True)
    change_feed.add_listener(settled_agents.on_change, remote=True)
    threads = BoundedThreads(settings.device_threads, "readings of devices")
    call_counts = MovingWindowRateLimiter(CallCounts())
    return SbfService(
        settings,
        store,
        change_feed,
        change_reader,
        heartbeats,
        settled_agents,
        scheduler,
        device_platforms,
        metrics,
        token_cache,
        call_counts,
        threads,
        RetentionSchedule(store, settings.retention, settings.database),
    )


def _exchange(heartbeats: AgentHeartbeats, settled_agents: SettledAgents, token_cache: TokenCache) -> None:
    heartbeats.record()
    settled_agents.load()
    token_cache.renew()


@contextmanager
def _measure(metrics: ServiceMetrics, kind: str) -> Iterator[None]:
    with metrics.time_transaction(kind), child_span(f"transaction {kind}"):
        yield


def replica_name(settings: ServiceSettings) -> str:
    """Return the setting ``replica``, or else the first :data:`MAX_REPLICA_NAME` characters of the host's name."""
    return settings.replica or socket.gethostname()[:MAX_REPLICA_NAME]
