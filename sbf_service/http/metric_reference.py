"""The list of all metrics, for the reference page, derived from the code that creates the metrics."""

from collections.abc import Iterable, Iterator
from typing import NamedTuple

from prometheus_client.core import GaugeMetricFamily

from sbf_service.bootstrap import build_service
from sbf_service.http.metric_families import ReplicaCollector, describe_connection_metrics, describe_database_metrics
from sbf_service.metrics import make_metrics
from sbf_service.settings import ServiceSettings

FOREIGN_METRICS = {
    "up": "Prometheus: whether the last scrape of a target succeeded.",
    "node_timex_offset_seconds": "node_exporter: difference between the kernel's clock and its reference.",
    "node_timex_sync_status": "node_exporter: whether the kernel's clock is synchronized.",
    "node_filesystem_avail_bytes": "node_exporter: free bytes of a file system.",
    "node_filesystem_size_bytes": "node_exporter: size of a file system in bytes.",
    "node_systemd_unit_state": "node_exporter with `--collector.systemd`: whether a unit is in a state.",
}
"""The metrics that the rules and dashboards use and that other programs export."""


class MetricDescription(NamedTuple):
    """One row of the reference page. A counter's name ends with ``_total``."""

    name: str
    kind: str
    labels: tuple[str, ...]
    source: str
    meaning: str


def list_metrics() -> list[MetricDescription]:
    """Return the descriptions of all metrics, sorted by name.

    The metrics ``process_…``, which the Prometheus library adds, are omitted.
    """
    return sorted([*_list_process_metrics(), *_list_scraped_metrics()])


def _list_process_metrics() -> Iterator[MetricDescription]:
    metrics = make_metrics()
    for metric in (*metrics.counters.values(), *metrics.histograms.values()):
        (family,) = metric.describe()
        name = f"{family.name}_total" if family.type == "counter" else family.name
        yield MetricDescription(name, family.type, metric._labelnames, "replica", family.documentation)  # noqa: SLF001 - the library has no public name for the labels


def _list_scraped_metrics() -> Iterator[MetricDescription]:
    sources: dict[str, Iterable[GaugeMetricFamily]] = {
        "database": describe_database_metrics(),
        "replica": [*ReplicaCollector(build_service(ServiceSettings())).collect(), *describe_connection_metrics()],
    }
    for source, families in sources.items():
        for family in families:
            labels = tuple(family._labelnames)  # noqa: SLF001 - see above
            yield MetricDescription(family.name, family.type, labels, source, family.documentation)
