"""The metrics of this process for Prometheus. The route ``/metrics`` adds counts from the database."""

from collections.abc import Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import NamedTuple

from prometheus_client import CollectorRegistry, Counter, Histogram, ProcessCollector


class _Counted(NamedTuple):
    meaning: str
    labels: tuple[str, ...]


class _Measured(NamedTuple):
    meaning: str
    labels: tuple[str, ...]
    buckets: tuple[float, ...]


_COUNTERS = {
    "converges": _Counted("Attempts to reconcile a switch or a provider edge.", ("platform", "outcome")),
    "denied": _Counted("Denied calls, by the problem document of the answer.", ("problem",)),
    "outside_connections": _Counted(
        "Connections of guests to destinations outside, as gateways reported them.", ("gateway", "destination")
    ),
    "outside_bytes": _Counted(
        "Bytes that guests sent to and received from destinations outside, as gateways reported them.",
        ("gateway", "destination", "direction"),
    ),
    "traffic_bytes": _Counted(
        "Bytes in the VLANs of clusters at the uplinks of a site's hosts and gateways, as agents reported them.",
        ("site", "direction"),
    ),
    "traffic_frames": _Counted(
        "Frames in the VLANs of clusters at the uplinks of a site's hosts and gateways, as agents reported them.",
        ("site", "direction"),
    ),
}
_HISTOGRAMS = {
    "converge_seconds": _Measured(
        "Duration of an attempt to reconcile a switch or a provider edge, in seconds.",
        ("platform",),
        (0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 120),
    ),
    "request_seconds": _Measured(
        "Duration of calls of the HTTP API, in seconds. Long polls and polls answered from memory are not counted.",
        ("method", "route", "status"),
        (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 10),
    ),
    "transaction_seconds": _Measured(
        "Duration of database transactions in seconds, including the wait for locks.",
        ("kind",),
        (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30),
    ),
}


@dataclass(frozen=True, slots=True)
class ServiceMetrics:
    """The counters and histograms of one service, by name without the prefix ``virtcloud_``. Thread-safe."""

    registry: CollectorRegistry
    counters: Mapping[str, Counter]
    histograms: Mapping[str, Histogram]

    def record_reconciliation(self, platform: str, outcome: str, seconds: float) -> None:
        """Record the outcome and duration of one reconciliation of a device."""
        self.counters["converges"].labels(platform, outcome).inc()
        self.histograms["converge_seconds"].labels(platform).observe(seconds)

    def record_request(self, method: str, route: str, status: int, seconds: float) -> None:
        """Record the duration of one request. ``route`` is a template such as ``/v1/clusters/{key}``."""
        self.histograms["request_seconds"].labels(method, route, str(status)).observe(seconds)

    def record_outside_use(self, gateway: str, destination: str, increases: Mapping[str, int]) -> None:
        """Add the ``increases`` in a gateway's report to the counters of a destination."""
        self.counters["outside_connections"].labels(gateway, destination).inc(increases["connections"])
        for direction in ("sent", "received"):
            self.counters["outside_bytes"].labels(gateway, destination, direction).inc(increases[f"{direction}_bytes"])

    def record_traffic(self, site: str, increases: Mapping[str, int]) -> None:
        """Add the ``increases`` in an agent's report to the traffic counters of a site."""
        for direction in ("received", "sent"):
            self.counters["traffic_bytes"].labels(site, direction).inc(increases[f"{direction}_bytes"])
            self.counters["traffic_frames"].labels(site, direction).inc(increases[f"{direction}_frames"])

    def time_transaction(self, kind: str) -> AbstractContextManager[object]:
        """Record the duration of the context as a transaction; ``kind`` is ``read`` or ``write``."""
        return self.histograms["transaction_seconds"].labels(kind).time()

    def record_denial(self, problem: str) -> None:
        """Count a denied call. ``problem`` is the slug of the answer, such as ``forbidden``."""
        self.counters["denied"].labels(problem).inc()


def make_metrics() -> ServiceMetrics:
    """Create metrics with a separate registry, so that one process can run several services."""
    registry = CollectorRegistry()
    ProcessCollector(registry=registry)
    return ServiceMetrics(
        registry,
        {
            name: Counter(f"virtcloud_{name}", row.meaning, row.labels, registry=registry)
            for name, row in _COUNTERS.items()
        },
        {
            name: Histogram(f"virtcloud_{name}", row.meaning, row.labels, buckets=row.buckets, registry=registry)
            for name, row in _HISTOGRAMS.items()
        },
    )
