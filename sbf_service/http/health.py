"""Whether the service lives, and whether it can do its work."""

from collections.abc import Iterator
from http import HTTPStatus

from fastapi import APIRouter
from fastapi.responses import Response
from sqlalchemy.exc import SQLAlchemyError

from sbf_service.http.problems import answers, problem
from sbf_service.service import Service
from sbf_service.store.readiness import is_migrated
from virtcloud.model.document import Document
from virtcloud.model.errors import ServiceUnreachable


class Health(Document):
    """All is well."""

    status: str = "ok"


def routes(service: Service) -> APIRouter:
    """Give the routes."""
    router = APIRouter(tags=["service"])

    @router.get("/healthz", operation_id="get_health", summary="Say that the process lives; asks nobody")
    async def live() -> Health:
        return Health()

    @router.get(
        "/readyz",
        operation_id="get_readiness",
        summary="Say whether the database answers and is of this version, and the workers work",
        response_model=Health,
        responses=answers(HTTPStatus.SERVICE_UNAVAILABLE),
    )
    def ready() -> Health | Response:
        lacking = list(_lacking(service))
        return problem(HTTPStatus.SERVICE_UNAVAILABLE, "not-ready", "; ".join(lacking)) if lacking else Health()

    return router


def _lacking(service: Service) -> Iterator[str]:
    try:
        with service.store.read() as unit:
            if not is_migrated(unit):
                yield "the database does not have the tables of this version: restart sbf, it brings them"
    except (ServiceUnreachable, SQLAlchemyError):
        yield "the database does not answer: see the service's log"
    if not service.converger.alive:
        yield "the workers do not work: they are started with the service, and look around each second; see its log"
