"""The audit log: who changed what, when and why."""

from http import HTTPStatus
from typing import Annotated

from fastapi import APIRouter, Query
from fastapi.concurrency import run_in_threadpool

from sbf_service.http.caller import Who
from sbf_service.http.poll import Wait, newer
from sbf_service.http.problems import answers
from sbf_service.http.subjects import must_read_audit
from sbf_service.service import Service
from sbf_service.store.audit import CHANGED
from sbf_service.store.audit_log import Filter, entries, newest
from virtcloud.model.audit import AuditEntry
from virtcloud.model.values import ClusterKey, Name

OfElement = Annotated[Name | None, Query(description="Only what was changed on this element.")]
OfCluster = Annotated[ClusterKey | None, Query(description="Only what concerns this cluster, all its attempts.")]
AfterId = Annotated[int | None, Query(ge=0, lt=2**31, description="Only rows past this id; without it the newest.")]
Limit = Annotated[int, Query(ge=1, le=1000, description="How many rows at most.")]


def routes(service: Service) -> APIRouter:
    """Give the routes."""
    router = APIRouter(prefix="/v1/audit", tags=["audit"])

    @router.get(
        "",
        operation_id="get_audit",
        summary="Read the audit log, oldest row first, or wait for newer rows",
        responses=answers(HTTPStatus.UNPROCESSABLE_ENTITY),
    )
    async def get(  # noqa: PLR0913, PLR0917 - FastAPI gives each parameter by its name
        caller: Who,
        element: OfElement = None,
        cluster: OfCluster = None,
        after: AfterId = None,
        limit: Limit = 100,
        wait: Wait = 0,
    ) -> list[AuditEntry]:
        asked = await run_in_threadpool(must_read_audit, service.store, caller, Filter(element, cluster))

        def last() -> int:
            with service.store.read() as unit:
                return newest(unit, asked)

        def show() -> list[AuditEntry]:
            with service.store.read() as unit:
                return entries(unit, asked, after, limit)

        await newer(service.notifier, CHANGED, last, after, wait)
        return await run_in_threadpool(show)

    return router
