"""Backups and restores of a world's database, and hosts whose segments survive a restore."""

from dataclasses import dataclass, field
from datetime import timedelta
from pathlib import Path

from sbf_service.store.connections.database import make_engine
from sbf_service.store.elements import confirmations, elements, error_reports
from sbf_service.store.maintenance.backup import write_backup
from sbf_service.store.maintenance.backup_format import BackupFile, open_backup
from sbf_service.store.maintenance.restore import restore_backup
from sbf_service.store.maintenance.restored_state import RestoreReport
from sbf_service.store.tables.columns import read_database_clock
from sbf_service.store.unit_of_work import Clock
from support.migrated import create_sqlite
from support.sbf_fakes.world import World
from virtcloud.model.views import Confirmation
from virtcloud.model.wanted import UNCHECKED_NETWORK, HostWanted, WantedDocument

HOUR = timedelta(hours=1)


def back_up(world: World, folder: Path, name: str = "a.backup") -> BackupFile:
    write_backup(world.service.store.engine, folder / name)
    return open_backup(folder / name)


def restore(
    backup: BackupFile,
    database: str,
    *,
    replace: bool = False,
    grace: timedelta = HOUR,
    clock: Clock = read_database_clock,
) -> RestoreReport:
    engine = make_engine(database)
    try:
        return restore_backup(engine, backup, replace=replace, grace=grace, who="root@sbf", clock=clock)
    finally:
        engine.dispose()


def restored_world(world: World, backup: BackupFile, database: str) -> World:
    """Return a world on another machine: a restored database, with the devices and the clock of ``world``.

    ``database`` is the address of an SQLite file that does not exist, or of a PostgreSQL database with all tables.
    """
    create_sqlite(database)
    restore(backup, database, clock=world.clock)
    return World(database, clock=world.clock, switches=world.switches, edges=world.edges)


@dataclass
class CarryingHosts:
    """Hosts that carry segments.

    As agents do, they set up wanted segments, except *held* segments: new segments that require ``UNCHECKED_NETWORK``.
    They remove segments that are not wanted, except the segments of the clusters in ``stuck``.
    """

    carried: dict[str, set[tuple[str, int]]] = field(default_factory=dict)
    stuck: dict[str, set[str]] = field(default_factory=dict)
    """By host: the IDs of the clusters that the host cannot remove."""

    def reconcile(self, world: World, host: str) -> None:
        """Apply a host's wanted document, and confirm it. Report the clusters that were not set up or not removed."""
        document = self.fetch(world, host)
        self.apply(host, document.wanted)
        self.confirm(world, host, document)

    def fetch(self, world: World, host: str) -> WantedDocument:
        with world.store.read() as unit:
            return elements.make_wanted_document(unit, host)

    def apply(self, host: str, wanted: HostWanted) -> None:
        segments = {(segment.id, int(segment.vlan)): segment for segment in wanted.segments}
        before, stuck = self.carried.get(host, set()), self.stuck.get(host, set())
        remaining = {one for one in before - segments.keys() if one[0] in stuck}
        held = {one for one, segment in segments.items() if UNCHECKED_NETWORK in segment.requires} - before
        self.carried[host] = (segments.keys() - held) | remaining

    def confirm(self, world: World, host: str, document: WantedDocument) -> None:
        wanted = {(segment.id, int(segment.vlan)) for segment in document.wanted.segments}
        carried = self.carried.get(host, set())
        incomplete = {cluster: "held" for cluster, _ in wanted - carried}
        remaining = {cluster: "busy" for cluster, _ in carried - wanted}
        confirmation = Confirmation(revision=document.revision, incomplete=incomplete, remaining=remaining)
        with world.store.change(who=host) as unit:
            errors = error_reports.describe_excluded_clusters(unit, host, confirmation)
            drain = world.service.settings.timing.drain
            confirmations.confirm_revision(unit, host, document.revision, drain, errors=errors)

    def settle(self, world: World, *absent: str) -> None:
        """Reconcile all due devices, and all due hosts except ``absent``, in at most four rounds."""
        hosts = [host.name for site in world.topology().sites for host in site.hosts if host.name not in absent]
        for _ in range(4):
            due = [host for host in hosts if self._is_due(world, host)]
            if not world.converge_switches() and not due:
                break
            for host in due:
                self.reconcile(world, host)
            world.sweep()
        world.sweep()

    def _is_due(self, world: World, host: str) -> bool:
        view = world.element(host)
        return view.confirmed_revision < view.wanted_revision or view.trouble is not None or not view.reachable
