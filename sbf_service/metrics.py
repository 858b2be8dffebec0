"""The metrics that this process counts, for Prometheus. The metrics route adds counts from the database."""

from dataclasses import dataclass

from prometheus_client import CollectorRegistry, Counter, Histogram, ProcessCollector

RECONCILE_BUCKETS = (0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 120)
REQUEST_BUCKETS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 10)


@dataclass(frozen=True, slots=True)
class ServiceMetrics:
    """Counters and histograms of one process; thread-safe."""

    registry: CollectorRegistry
    reconciliations: Counter
    reconciliation_seconds: Histogram
    request_seconds: Histogram
    denials: Counter

    def record_reconciliation(self, platform: str, outcome: str, seconds: float) -> None:
        """Count one attempt to reconcile a switch or a provider edge."""
        self.reconciliations.labels(platform, outcome).inc()
        self.reconciliation_seconds.labels(platform).observe(seconds)

    def record_request(self, method: str, route: str, status: int, seconds: float) -> None:
        """Record the duration of one request; ``route`` is a template such as ``/v1/clusters/{key}``."""
        self.request_seconds.labels(method, route, str(status)).observe(seconds)

    def record_denial(self, problem: str) -> None:
        """Count a denied call; ``problem`` is the slug of its answer."""
        self.denials.labels(problem).inc()


def make_metrics() -> ServiceMetrics:
    """Create metrics with a registry of their own, so that one process may contain several services."""
    registry = CollectorRegistry()
    ProcessCollector(registry=registry)
    return ServiceMetrics(
        registry,
        Counter(
            "virtcloud_converges",
            "Tries to converge a switch or a provider edge.",
            ("platform", "outcome"),
            registry=registry,
        ),
        Histogram(
            "virtcloud_converge_seconds",
            "How long a try to converge a switch or a provider edge took.",
            ("platform",),
            buckets=RECONCILE_BUCKETS,
            registry=registry,
        ),
        Histogram(
            "virtcloud_request_seconds",
            "How long calls of the HTTP API took, long polls left out.",
            ("method", "route", "status"),
            buckets=REQUEST_BUCKETS,
            registry=registry,
        ),
        Counter(
            "virtcloud_denied",
            "Calls that were denied, by the problem of their answer.",
            ("problem",),
            registry=registry,
        ),
    )
