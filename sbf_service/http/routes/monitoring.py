"""Monitoring: liveness, readiness, and metrics for Prometheus.

Liveness and readiness need no token. All callers together cause at most one probe of the database in ``PROBE_TTL_S``
seconds, so that frequent calls do not load the database.
"""

import asyncio
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from http import HTTPStatus

from fastapi import APIRouter, Request
from fastapi.concurrency import run_in_threadpool
from fastapi.responses import Response
from prometheus_client import CONTENT_TYPE_LATEST, CollectorRegistry, generate_latest
from prometheus_client.core import GaugeMetricFamily, Metric
from prometheus_client.registry import Collector
from sqlalchemy.exc import SQLAlchemyError

from sbf_service.bootstrap import SbfService
from sbf_service.http.auth.authorization import CurrentService
from sbf_service.http.operations import Operation
from sbf_service.http.problems import NOT_READY, problem_response, problem_responses
from sbf_service.store.database import is_migrated, probe_write
from sbf_service.store.metric_counts import InstallationCounts, count_installation
from virtcloud.model.document import Document
from virtcloud.model.errors import ServiceUnreachable

PROBE_TTL_S = 2.0
PROBE_TIMEOUT_S = 5.0
DATABASE_TIMEOUT = (
    f"the database has not answered for {PROBE_TIMEOUT_S:g} s: check whether it can be reached, and see SBF's log"
)
DATABASE_VERSION = "the database does not have the tables of this version: restart SBF, which migrates the database"
DATABASE_UNREADABLE = "the database does not answer: see SBF's log"
DATABASE_READ_ONLY = "the database cannot be written: see SBF's log, and check whether the database's disk is full"
NO_RECONCILER = "no reconciler thread is alive: restart SBF, and see SBF's log"

Sample = tuple[tuple[str, ...], float]

health_router = APIRouter(tags=["service"], route_class=Operation)
metrics_router = APIRouter(tags=["service"], route_class=Operation)


class Health(Document):
    """The answer that the service is alive, or ready."""

    status: str = "ok"
    """Always `ok`."""


@dataclass
class ReadinessProbe:
    """A cache of the faults that ``probe`` finds in the database. The faults are cached for ``PROBE_TTL_S`` seconds."""

    probe: Callable[[], Sequence[str]]
    clock: Callable[[], float] = time.monotonic
    _start: float = 0
    _task: "asyncio.Task[Sequence[str]] | None" = field(default=None)

    async def find_faults(self) -> Sequence[str]:
        """Return the faults of the database. Wait at most ``PROBE_TIMEOUT_S`` seconds."""
        task = self._task
        if task is None or (task.done() and self.clock() - self._start >= PROBE_TTL_S):
            self._start = self.clock()
            task = self._task = asyncio.create_task(run_in_threadpool(self.probe))
        done, _ = await asyncio.wait({task}, timeout=PROBE_TIMEOUT_S)
        return task.result() if done else [DATABASE_TIMEOUT]


@health_router.get("/healthz")
async def get_health() -> Health:
    """Confirm that the process is alive. Checks nothing else."""
    return Health()


@health_router.get("/readyz", response_model=Health, responses=problem_responses(503))
async def get_readiness(request: Request, service: CurrentService) -> Health | Response:
    """Check that the database is readable, writable and of this version, and that reconcilers run."""
    readiness: ReadinessProbe = request.app.state.readiness
    faults = [*await readiness.find_faults(), *([] if service.scheduler.alive else [NO_RECONCILER])]
    return problem_response(HTTPStatus.SERVICE_UNAVAILABLE, NOT_READY, "; ".join(faults)) if faults else Health()


def probe_database(service: SbfService) -> Sequence[str]:
    """Return the faults that a test read and a test write find in the database."""
    try:
        with service.store.read() as unit:
            if not is_migrated(unit):
                return [DATABASE_VERSION]
    except (ServiceUnreachable, SQLAlchemyError):
        return [DATABASE_UNREADABLE]
    try:
        probe_write(service.store, service.scheduler.worker.holder)
    except (ServiceUnreachable, SQLAlchemyError):
        return [DATABASE_READ_ONLY]
    return []


@metrics_router.get("/metrics", response_class=Response)
def get_metrics(service: CurrentService) -> Response:
    """Return metrics for Prometheus."""
    scrape = CollectorRegistry()
    scrape.register(service.metrics.registry)
    scrape.register(DatabaseCollector(service))
    return Response(generate_latest(scrape), media_type=CONTENT_TYPE_LATEST)


@dataclass(frozen=True, eq=False)
class DatabaseCollector(Collector):
    """Collects the metrics that are counted in the database.

    If the database does not answer, ``database_up`` is the only metric.
    """

    service: SbfService

    def collect(self) -> Iterator[Metric]:
        """Yield the metrics. All counts are read in one transaction."""
        try:
            with self.service.store.read() as unit:
                counts = count_installation(unit, self.service.reserved)
        except (ServiceUnreachable, SQLAlchemyError):
            yield _gauge("database_up", "Whether the database answers.", (), [((), 0)])
            return
        yield _gauge("database_up", "Whether the database answers.", (), [((), 1)])
        yield from metric_families(counts)


def metric_families(counts: InstallationCounts) -> Iterator[Metric]:
    """Yield one metric family for each kind of count. Pure."""
    states = [((str(state),), count) for state, count in counts.clusters.items()]
    yield _gauge("clusters", "Clusters by state.", ("state",), states)
    for name, help_ in (
        ("claimed", "VLAN IDs claimed by clusters."),
        ("quarantined", "VLAN IDs in quarantine."),
        ("free", "VLAN IDs that can be allocated to a new cluster."),
    ):
        rows = [((site,), getattr(pool, name)) for site, pool in counts.pools.items()]
        yield _gauge(f"vlans_{name}", help_, ("site",), rows)
        rows = [((transport,), getattr(pool, name)) for transport, pool in counts.services.items()]
        yield _gauge(f"services_{name}", help_.replace("VLAN IDs", "Service IDs"), ("transport",), rows)
    for name, attribute, help_ in (
        ("elements", "total", "Elements."),
        ("elements_behind", "unconfirmed", "Elements that have not confirmed their wanted revision."),
        (
            "elements_unreachable",
            "unreachable",
            "Devices that do not answer, and hosts and gateways with a stale agent.",
        ),
        ("elements_troubled", "troubled", "Elements with an error report."),
        ("elements_unsaved", "unsaved", "Switches and edges whose running configuration may not be saved."),
    ):
        samples = [(labels, getattr(count, attribute)) for labels, count in counts.elements.items()]
        yield _gauge(name, help_, ("site", "kind"), samples)
    failing = "FQDNs of destinations outside that the gateway cannot resolve, or whose addresses it does not admit."
    names = [((gateway,), count) for gateway, count in counts.failing_names.items()]
    yield _gauge("outside_names_failing", failing, ("gateway",), names)
    oldest = "Age in seconds of the oldest change that an element has not confirmed for a cluster; 0 without one."
    yield _gauge("oldest_unconfirmed_change_seconds", oldest, (), [((), counts.oldest_change_s)])


def _gauge(name: str, help_: str, labels: tuple[str, ...], samples: Iterable[Sample]) -> GaugeMetricFamily:
    family = GaugeMetricFamily(f"virtcloud_{name}", help_, labels=labels)
    for values, sample in samples:
        family.add_metric(values, sample)
    return family
