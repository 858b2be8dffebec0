"""Whether the service lives, and whether it can do its work.

Both are open to everybody. Whether the database can be read and written is asked every few seconds at most, by one call
for all that wait for the answer, so that asking often costs SBF nothing.
"""

import asyncio
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from http import HTTPStatus

from fastapi import APIRouter
from fastapi.concurrency import run_in_threadpool
from fastapi.responses import Response
from sqlalchemy.exc import SQLAlchemyError

from sbf_service.bootstrap import SbfService
from sbf_service.http.problems import NOT_READY, problem_response, problem_responses
from sbf_service.store.database import is_migrated, probe_write
from virtcloud.model.document import Document
from virtcloud.model.errors import ServiceUnreachable

PROBE_TTL_S = 2.0
"""An answer about the database is used for so long."""
PROBE_TIMEOUT_S = 5.0
DATABASE_TIMEOUT = (
    f"the database has not answered for {PROBE_TIMEOUT_S:g} s: see whether it is reachable, and the service's log"
)
DATABASE_VERSION = "the database does not have the tables of this version: restart sbf, it brings them"
DATABASE_UNREADABLE = "the database does not answer: see the service's log"
DATABASE_READ_ONLY = "the database cannot be written: see the service's log, and whether its disk is full"
NO_RECONCILER = "the workers do not work: they are started with the service, and look around each second; see its log"


class Health(Document):
    """All is well."""

    status: str = "ok"
    """Always `ok`."""


@dataclass
class ReadinessProbe:
    """What the database lacks, as ``look`` says; asked again when the last answer is older than ``FRESH_S``."""

    look: Callable[[], Sequence[str]]
    clock: Callable[[], float] = time.monotonic
    _began: float = 0
    _looking: "asyncio.Task[Sequence[str]] | None" = field(default=None)

    async def lacking(self) -> Sequence[str]:
        """Return what the database lacks; waits ``PATIENCE_S`` seconds at most."""
        looking = self._looking
        if looking is None or (looking.done() and self.clock() - self._began >= PROBE_TTL_S):
            self._began = self.clock()
            looking = self._looking = asyncio.create_task(run_in_threadpool(self.look))
        done, _ = await asyncio.wait({looking}, timeout=PROBE_TIMEOUT_S)
        return looking.result() if done else [DATABASE_TIMEOUT]


def routes(service: SbfService) -> APIRouter:
    """Give the routes."""
    router = APIRouter(tags=["service"])
    readiness = ReadinessProbe(lambda: probe_database(service))

    @router.get("/healthz", operation_id="get_health", summary="Say that the process lives; asks nobody")
    async def live() -> Health:
        return Health()

    @router.get(
        "/readyz",
        operation_id="get_readiness",
        summary="Return whether the database can be read and written and is of this version, and the workers work",
        response_model=Health,
        responses=problem_responses(HTTPStatus.SERVICE_UNAVAILABLE),
    )
    async def ready() -> Health | Response:
        lacking = [*await readiness.lacking(), *([] if service.converger.alive else [NO_RECONCILER])]
        return problem_response(HTTPStatus.SERVICE_UNAVAILABLE, NOT_READY, "; ".join(lacking)) if lacking else Health()

    return router


def probe_database(service: SbfService) -> Sequence[str]:
    """Return what is wrong with the database; nothing when it can be read and written."""
    try:
        with service.store.read() as unit:
            if not is_migrated(unit):
                return [DATABASE_VERSION]
    except (ServiceUnreachable, SQLAlchemyError):
        return [DATABASE_UNREADABLE]
    try:
        probe_write(service.store, service.converger.worker.holder)
    except (ServiceUnreachable, SQLAlchemyError):
        return [DATABASE_READ_ONLY]
    return []
