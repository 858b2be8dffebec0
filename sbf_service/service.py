"""The composition: the one place where the parts of the service are put together."""

import socket
from dataclasses import dataclass

from sbf_service.converge.candidates import StoreCandidates
from sbf_service.converge.converger import Converger
from sbf_service.converge.heartbeats import Heartbeats
from sbf_service.converge.sessions import EdgePlatformOf, PlatformOf, Platforms, Sessions
from sbf_service.converge.sweep import StoreDeadlines, Sweep
from sbf_service.converge.transactions import StoreTransactions
from sbf_service.converge.worker import Worker
from sbf_service.drivers.edge_registry import edge_platform_of
from sbf_service.drivers.registry import platform_of
from sbf_service.meters import Meters, make_meters
from sbf_service.notify import Notifier
from sbf_service.recognize import Recognizer
from sbf_service.settings import Settings
from sbf_service.store.engine import make_engine
from sbf_service.store.migrate import migrate
from sbf_service.store.session import Clock, Store, database_clock
from sbf_service.threads import BoundedThreads
from sbf_service.throttle import Throttle
from virtcloud.model.element import Device
from virtcloud.model.vlans import VlanSet

LONGEST_NAME = 59
"""With ``sbf@`` before it, it fits into the column of a lease's holder."""


@dataclass(frozen=True)
class Service:
    """Everything that HTTP needs, and what works behind it."""

    settings: Settings
    store: Store
    notifier: Notifier
    converger: Converger
    platforms: Platforms
    meters: Meters
    recognizer: Recognizer
    throttle: Throttle
    device_threads: BoundedThreads
    """For calls that read devices: these can take long, and must take no thread from other calls."""

    def reserved(self, device: Device) -> VlanSet:
        """Say which numbers a switch or a provider edge keeps for itself."""
        return self.platforms.reserved(device)

    def prepare(self) -> None:
        """Bring the database to this version. Raises BadInput when it cannot be opened or written."""
        migrate(self.store.engine)

    def start(self) -> None:
        """Start converging."""
        self.converger.start()

    def stop(self) -> None:
        """Wake everybody who waits, and stop; takes a second at most."""
        self.notifier.close()
        self.converger.stop()
        self.store.close()


def make_service(
    settings: Settings,
    platforms: PlatformOf = platform_of,
    clock: Clock = database_clock,
    edge_platforms: EdgePlatformOf = edge_platform_of,
) -> Service:
    """Put the parts together; nothing is opened and no thread started."""
    engine = make_engine(settings.database)
    notifier, found = Notifier(), Platforms(platforms, edge_platforms)
    store = Store(engine, publish=notifier.publish, clock=clock)
    transactions = StoreTransactions(store, settings.timing, f"sbf@{replica_name(settings)}")
    sessions = Sessions(settings, found)
    heartbeats = Heartbeats(transactions.keep_lease, sessions, settings.timing)
    worker = Worker(transactions, sessions, heartbeats.hold)
    meters = make_meters()
    sweep = Sweep(StoreDeadlines(store, settings.timing), settings.timing)
    converger = Converger(StoreCandidates(store), worker, sweep, settings, watch=meters.converged)
    recognizer = Recognizer(store)
    notifier.listen(converger.wake)
    notifier.listen(recognizer.heard)
    threads = BoundedThreads(settings.device_threads, "readings of devices")
    return Service(settings, store, notifier, converger, found, meters, recognizer, Throttle(settings.rates), threads)


def replica_name(settings: Settings) -> str:
    """Name this replica: as set, or as the machine is called (its first characters, where the name is very long)."""
    return settings.replica or socket.gethostname()[:LONGEST_NAME]
