"""``/metrics`` for Prometheus: what this process counted, and what the database knows."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from fastapi import APIRouter, Response
from prometheus_client import CONTENT_TYPE_LATEST, CollectorRegistry, generate_latest
from prometheus_client.core import GaugeMetricFamily, Metric
from prometheus_client.registry import Collector
from sqlalchemy.exc import SQLAlchemyError

from sbf_service.bootstrap import SbfService
from sbf_service.store.metric_counts import InstallationCounts, count_installation
from virtcloud.model.errors import ServiceUnreachable

Sample = tuple[tuple[str, ...], float]


@dataclass(frozen=True, eq=False)
class DatabaseCollector(Collector):
    """What the database knows; when it is away, only that."""

    service: SbfService

    def collect(self) -> Iterator[Metric]:
        """Count now."""
        try:
            with self.service.store.read() as unit:
                found = count_installation(unit, self.service.reserved)
        except (ServiceUnreachable, SQLAlchemyError):
            yield _gauge("database_up", "Whether the database answers.", (), [((), 0)])
            return
        yield _gauge("database_up", "Whether the database answers.", (), [((), 1)])
        yield from metric_families(found)


def metric_families(found: InstallationCounts) -> Iterator[Metric]:
    """Name the counts. Pure."""
    states = [((str(state),), count) for state, count in found.clusters.items()]
    yield _gauge("clusters", "Clusters by state.", ("state",), states)
    for name, help_ in (
        ("claimed", "Numbers that clusters have."),
        ("quarantined", "Numbers that are kept back."),
        ("free", "Numbers that a new cluster may have."),
    ):
        rows = [((site,), getattr(pool, name)) for site, pool in found.pools.items()]
        yield _gauge(f"vlans_{name}", help_, ("site",), rows)
        rows = [((transport,), getattr(pool, name)) for transport, pool in found.services.items()]
        yield _gauge(f"services_{name}", help_.replace("Numbers", "Service numbers"), ("transport",), rows)
    for name, attribute, help_ in (
        ("elements", "every", "Elements."),
        ("elements_behind", "behind", "Elements that have not confirmed what is wanted of them."),
        ("elements_unreachable", "unreachable", "Elements that do not answer, or whose agents are silent."),
        ("elements_troubled", "troubled", "Elements that say what is wrong."),
        ("elements_unsaved", "unsaved", "Switches and edges whose running configuration may not be saved."),
    ):
        counts = [(labels, getattr(one, attribute)) for labels, one in found.elements.items()]
        yield _gauge(name, help_, ("site", "kind"), counts)
    oldest = "Seconds since the oldest change that an element still owes to a cluster was asked for; 0 when none is."
    yield _gauge("oldest_unconfirmed_change_seconds", oldest, (), [((), found.oldest_change_s)])


def routes(service: SbfService) -> APIRouter:
    """Give the routes."""
    router = APIRouter(tags=["service"])

    @router.get("/metrics", operation_id="get_metrics", summary="Give metrics for Prometheus", response_class=Response)
    def get() -> Response:
        scrape = CollectorRegistry()
        scrape.register(service.metrics.registry)
        scrape.register(DatabaseCollector(service))
        return Response(generate_latest(scrape), media_type=CONTENT_TYPE_LATEST)

    return router


def _gauge(name: str, help_: str, labels: tuple[str, ...], samples: Iterable[Sample]) -> GaugeMetricFamily:
    family = GaugeMetricFamily(f"virtcloud_{name}", help_, labels=labels)
    for values, number in samples:
        family.add_metric(values, number)
    return family
