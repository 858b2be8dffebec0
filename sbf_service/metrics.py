"""The metrics of this process for Prometheus. The route ``/metrics`` adds counts from the database."""

from collections.abc import Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass
from functools import partial

from prometheus_client import CollectorRegistry, Counter, Histogram, ProcessCollector

RECONCILE_BUCKETS = (0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 120)
TRANSACTION_BUCKETS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30)
REQUEST_BUCKETS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 10)


@dataclass(frozen=True, slots=True)
class ServiceMetrics:
    """The counters and histograms of one process. Thread-safe."""

    registry: CollectorRegistry
    reconciliations: Counter
    reconciliation_seconds: Histogram
    request_seconds: Histogram
    denials: Counter
    outside_connections: Counter
    outside_bytes: Counter
    traffic_bytes: Counter
    traffic_frames: Counter
    transaction_seconds: Histogram

    def record_reconciliation(self, platform: str, outcome: str, seconds: float) -> None:
        """Record the outcome and duration of one attempt to reconcile a switch or a provider edge."""
        self.reconciliations.labels(platform, outcome).inc()
        self.reconciliation_seconds.labels(platform).observe(seconds)

    def record_request(self, method: str, route: str, status: int, seconds: float) -> None:
        """Record the duration of one request. ``route`` is a template such as ``/v1/clusters/{key}``."""
        self.request_seconds.labels(method, route, str(status)).observe(seconds)

    def record_outside_use(self, gateway: str, destination: str, increases: Mapping[str, int]) -> None:
        """Add a gateway's report to the counters of a destination.

        ``increases`` has the increase of each counter by name.
        """
        self.outside_connections.labels(gateway, destination).inc(increases["connections"])
        for direction in ("sent", "received"):
            self.outside_bytes.labels(gateway, destination, direction).inc(increases[f"{direction}_bytes"])

    def record_traffic(self, site: str, increases: Mapping[str, int]) -> None:
        """Add an agent's report to the traffic counters of a site.

        ``increases`` has the increase of each counter by name.
        """
        for direction in ("received", "sent"):
            self.traffic_bytes.labels(site, direction).inc(increases[f"{direction}_bytes"])
            self.traffic_frames.labels(site, direction).inc(increases[f"{direction}_frames"])

    def time_transaction(self, kind: str) -> AbstractContextManager[object]:
        """Record the duration of the context as a transaction; ``kind`` is ``read`` or ``write``."""
        return self.transaction_seconds.labels(kind).time()

    def record_denial(self, problem: str) -> None:
        """Count a denied call.

        ``problem`` is the short name of the problem document in the answer, such as ``forbidden``.
        """
        self.denials.labels(problem).inc()


def make_metrics() -> ServiceMetrics:
    """Create metrics with a separate registry, so that one process can run several services."""
    registry = CollectorRegistry()
    ProcessCollector(registry=registry)
    counter, histogram = partial(Counter, registry=registry), partial(Histogram, registry=registry)
    return ServiceMetrics(
        registry,
        reconciliations=counter(
            "virtcloud_converges", "Attempts to reconcile a switch or a provider edge.", ("platform", "outcome")
        ),
        reconciliation_seconds=histogram(
            "virtcloud_converge_seconds",
            "Duration of an attempt to reconcile a switch or a provider edge, in seconds.",
            ("platform",),
            buckets=RECONCILE_BUCKETS,
        ),
        request_seconds=histogram(
            "virtcloud_request_seconds",
            "Duration of calls of the HTTP API, in seconds. Long polls and polls answered from memory are not counted.",
            ("method", "route", "status"),
            buckets=REQUEST_BUCKETS,
        ),
        denials=counter("virtcloud_denied", "Denied calls, by the problem document of the answer.", ("problem",)),
        outside_connections=counter(
            "virtcloud_outside_connections",
            "Connections of guests to destinations outside, as gateways reported them.",
            ("gateway", "destination"),
        ),
        outside_bytes=counter(
            "virtcloud_outside_bytes",
            "Bytes of guests to (sent) and from (received) destinations outside, as gateways reported them.",
            ("gateway", "destination", "direction"),
        ),
        traffic_bytes=counter(
            "virtcloud_traffic_bytes",
            "Bytes in the VLANs of clusters at the uplinks of a site's hosts and gateways, as agents reported them.",
            ("site", "direction"),
        ),
        traffic_frames=counter(
            "virtcloud_traffic_frames",
            "Frames in the VLANs of clusters at the uplinks of a site's hosts and gateways, as agents reported them.",
            ("site", "direction"),
        ),
        transaction_seconds=histogram(
            "virtcloud_transaction_seconds",
            "Duration of database transactions in seconds, including the wait for locks.",
            ("kind",),
            buckets=TRANSACTION_BUCKETS,
        ),
    )
