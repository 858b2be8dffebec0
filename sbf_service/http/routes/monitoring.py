"""Monitoring: liveness, readiness, and metrics for Prometheus.

Liveness and readiness need no token. All callers together cause at most one probe of the database in ``PROBE_TTL_S``
seconds.
"""

import asyncio
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from http import HTTPStatus

from fastapi import APIRouter, Request
from fastapi.concurrency import run_in_threadpool
from fastapi.responses import Response
from prometheus_client import CONTENT_TYPE_LATEST, CollectorRegistry, generate_latest
from sqlalchemy.exc import SQLAlchemyError

from sbf_service.bootstrap import SbfService
from sbf_service.http.auth.authorization import CurrentService
from sbf_service.http.metric_families import DatabaseCollector, ReplicaCollector
from sbf_service.http.operations import Operation
from sbf_service.http.problems import NOT_READY, problem_response, problem_responses
from sbf_service.store.connections.database import probe_write
from sbf_service.store.maintenance.database_migration import is_migrated
from virtcloud.model.document import Document
from virtcloud.model.errors import ServiceUnreachable

PROBE_TTL_S = 2.0
PROBE_TIMEOUT_S = 5.0
DATABASE_TIMEOUT = (
    f"the database has not answered for {PROBE_TIMEOUT_S:g} s: check whether it can be reached, and see SBF's log"
)
DATABASE_VERSION = "the database does not have the tables of this version: restart SBF, which migrates the database"
DATABASE_UNREADABLE = "the database does not answer: see SBF's log"
DATABASE_READ_ONLY = (
    "the database cannot be written: see SBF's log, and check whether the database's disk is full, and whether its "
    "server is a standby"
)
NO_RECONCILER = "no reconciler thread is alive: restart SBF, and see SBF's log"

health_router = APIRouter(tags=["service"], route_class=Operation)
metrics_router = APIRouter(tags=["service"], route_class=Operation)


class Health(Document):
    """The answer of a service that is alive (``/healthz``) or ready (``/readyz``)."""

    status: str = "ok"
    """Always `ok`."""


@dataclass
class ReadinessProbe:
    """Caches the faults that ``probe`` finds in the database, for ``PROBE_TTL_S`` seconds."""

    probe: Callable[[], Sequence[str]]
    clock: Callable[[], float] = time.monotonic
    _start: float = 0
    _task: "asyncio.Task[Sequence[str]] | None" = field(default=None)

    async def find_faults(self) -> Sequence[str]:
        """Return the faults of the database, after at most ``PROBE_TIMEOUT_S`` seconds."""
        task = self._task
        if task is None or (task.done() and self.clock() - self._start >= PROBE_TTL_S):
            self._start = self.clock()
            task = self._task = asyncio.create_task(run_in_threadpool(self.probe))
        done, _ = await asyncio.wait({task}, timeout=PROBE_TIMEOUT_S)
        return task.result() if done else [DATABASE_TIMEOUT]


@health_router.get("/healthz")
async def get_health() -> Health:
    """Confirm that the process is alive. Check nothing else."""
    return Health()


@health_router.get("/readyz", response_model=Health, responses=problem_responses(503))
async def get_readiness(request: Request, service: CurrentService) -> Health | Response:
    """Check that the database is readable and writable, with this SBF version's tables, and that reconcilers run."""
    readiness: ReadinessProbe = request.app.state.readiness
    # Check the database first: without it, the reconcilers complete no round, but do not need the restart that
    # NO_RECONCILER demands.
    faults = await readiness.find_faults() or ([] if service.scheduler.alive else [NO_RECONCILER])
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
    for collector in (service.metrics.registry, ReplicaCollector(service), DatabaseCollector(service)):
        scrape.register(collector)
    return Response(generate_latest(scrape), media_type=CONTENT_TYPE_LATEST)
