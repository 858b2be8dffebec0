"""The metrics of each scrape: counts from the database, and the state of this replica."""

import shutil
from collections.abc import Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

from prometheus_client.core import GaugeMetricFamily
from prometheus_client.registry import Collector
from sqlalchemy import make_url
from sqlalchemy.exc import SQLAlchemyError

from sbf_service.bootstrap import SbfService
from sbf_service.certificate_dates import read_certificates
from sbf_service.settings import ServiceSettings
from sbf_service.store.maintenance.metric_counts import InstallationCounts, count_installation
from sbf_service.store.maintenance.retention import find_archive_folder
from virtcloud import __version__
from virtcloud.model.errors import ServiceUnreachable

Sample = tuple[tuple[str, ...], float]


@dataclass(frozen=True, eq=False)
class DatabaseCollector(Collector):
    """Collects the metrics from the database; only ``database_up`` if the database does not answer."""

    service: SbfService

    def collect(self) -> Iterator[GaugeMetricFamily]:
        """Yield the metrics, whose counts are read in one transaction."""
        try:
            with self.service.store.read() as unit:
                counts, offset = count_installation(unit, self.service.reserved), _clock_offset(unit.now)
        except (ServiceUnreachable, SQLAlchemyError):
            yield _database_up(0)
            return
        yield _database_up(1)
        yield _clock_family(offset)
        yield from metric_families(counts)


@dataclass(frozen=True, eq=False)
class ReplicaCollector(Collector):
    """Collects the state of this replica: its reconciler, polls, notices, certificates, disks and version."""

    service: SbfService

    def collect(self) -> Iterator[GaugeMetricFamily]:
        """Yield the metrics. A file or folder that cannot be read has no sample."""
        settings = self.service.settings
        alive = "Whether this replica's reconciler runs and completed a round within 30 seconds."
        yield _gauge("reconciler_alive", alive, (), [((), self.service.scheduler.alive)])
        yield _gauge("build_info", "The version of this replica. The value is 1.", ("version",), [((__version__,), 1)])
        polls = "Long polls and streams of events that wait for a change at this replica."
        yield _gauge("waiting_polls", polls, (), [((), self.service.change_feed.count_waiters())])
        notices = "Whether the notices of other replicas' changes arrive (always 1 on SQLite)."
        yield _gauge("change_notices", notices, (), [((), self.service.change_reader.listens)])
        ends = "Earliest end of the validity of the certificates in the file of the setting, as Unix time in seconds."
        samples = [((setting,), end) for setting, end in _certificate_ends(settings)]
        yield _gauge("certificate_expiry_timestamp_seconds", ends, ("setting",), samples)
        disks = list(_disk_usages(self.service))
        for name, help_, column in (
            ("disk_free_bytes", "Free bytes of the file system of a folder of SBF.", 1),
            ("disk_size_bytes", "Size in bytes of the file system of a folder of SBF.", 0),
        ):
            yield _gauge(name, help_, ("folder",), [((folder,), usage[column]) for folder, usage in disks])


def describe_connection_metrics() -> list[GaugeMetricFamily]:
    """Return the metric families of a replica's connection to the database, for the reference page."""
    return [_database_up(1), _clock_family(0)]


def describe_database_metrics() -> list[GaugeMetricFamily]:
    """Return the metric families of an empty database, for the reference page."""
    return list(metric_families(InstallationCounts({}, {}, {}, {}, 0, {}, 0, None)))


def _clock_family(offset: float) -> GaugeMetricFamily:
    help_ = "Seconds by which the database's clock is ahead of this replica's clock."
    return _gauge("clock_offset_seconds", help_, (), [((), offset)])


def _clock_offset(database_now: datetime) -> float:
    return (database_now - datetime.now(UTC)).total_seconds()


def _database_up(value: int) -> GaugeMetricFamily:
    return _gauge("database_up", "Whether the database answers.", (), [((), value)])


def _certificate_ends(settings: ServiceSettings) -> Iterator[tuple[str, float]]:
    for setting, _, certificates in read_certificates(settings):
        yield setting, min(certificate.not_valid_after_utc.timestamp() for certificate in certificates)


def _disk_usages(service: SbfService) -> Iterator[tuple[str, tuple[int, int]]]:
    for name, folder in _list_folders(service).items():
        with suppress(OSError):
            usage = shutil.disk_usage(next(path for path in (folder, *folder.parents) if path.exists()))
            yield name, (usage.total, usage.free)


def _list_folders(service: SbfService) -> dict[str, Path]:
    settings = service.settings
    folders = {
        "images": service.image_folder.path,
        "archive": find_archive_folder(settings.retention, settings.database),
    }
    address = make_url(settings.database)
    is_file = address.get_backend_name() == "sqlite" and address.database not in {None, "", ":memory:"}
    return folders | ({"database": Path(str(address.database)).parent} if is_file else {})


def metric_families(counts: InstallationCounts) -> Iterator[GaugeMetricFamily]:
    """Yield one metric family for each kind of count. Pure."""
    states = [((str(state),), count) for state, count in counts.clusters.items()]
    yield _gauge("clusters", "Clusters by state.", ("state",), states)
    yield from _pool_families(counts)
    yield from _element_families(counts)
    failing = "Domain names of destinations that the gateway cannot resolve, or whose addresses are not permitted."
    names = [((gateway,), count) for gateway, count in counts.failing_names.items()]
    yield _gauge("outside_names_failing", failing, ("gateway",), names)
    oldest = (
        "Age in seconds of the oldest cluster change that an element has not confirmed; 0 if there is no such change."
    )
    yield _gauge("oldest_unconfirmed_change_seconds", oldest, (), [((), counts.oldest_change_s)])
    degraded = "Time in seconds for which the longest-degraded cluster has been degraded; 0 if no cluster is degraded."
    yield _gauge("oldest_degraded_cluster_seconds", degraded, (), [((), counts.oldest_degraded_s)])
    backup = "Time of the last `sbf backup`, as Unix time in seconds; 0 before the first backup."
    taken_at = counts.last_backup.timestamp() if counts.last_backup else 0
    yield _gauge("last_backup_timestamp_seconds", backup, (), [((), taken_at)])


def _pool_families(counts: InstallationCounts) -> Iterator[GaugeMetricFamily]:
    for name, help_ in (
        ("claimed", "VLAN IDs claimed by clusters."),
        ("quarantined", "VLAN IDs in quarantine."),
        ("free", "VLAN IDs that can be allocated to a new cluster."),
    ):
        rows = [((site,), getattr(pool, name)) for site, pool in counts.pools.items()]
        yield _gauge(f"vlans_{name}", help_, ("site",), rows)
        rows = [((transport,), getattr(pool, name)) for transport, pool in counts.services.items()]
        yield _gauge(f"services_{name}", help_.replace("VLAN IDs", "Service IDs"), ("transport",), rows)


def _element_families(counts: InstallationCounts) -> Iterator[GaugeMetricFamily]:
    for name, attribute, help_ in (
        ("elements", "total", "Number of elements."),
        ("elements_behind", "unconfirmed", "Elements that have not confirmed their wanted revision."),
        (
            "elements_unreachable",
            "unreachable",
            "Devices that do not answer, and hosts and gateways with a stale agent.",
        ),
        ("elements_troubled", "troubled", "Elements with an error report."),
        (
            "elements_unsaved",
            "unsaved",
            "Switches and edges with a pending save: SBF has not verified that the last changes were saved.",
        ),
    ):
        samples = [(labels, getattr(count, attribute)) for labels, count in counts.elements.items()]
        yield _gauge(name, help_, ("site", "kind"), samples)


def _gauge(name: str, help_: str, labels: tuple[str, ...], samples: Iterable[Sample]) -> GaugeMetricFamily:
    family = GaugeMetricFamily(f"virtcloud_{name}", help_, labels=labels)
    for values, sample in samples:
        family.add_metric(values, sample)
    return family
