"""The audit log: who changed what, when and why."""

from http import HTTPStatus
from typing import Annotated

from fastapi import APIRouter, Query
from fastapi.concurrency import run_in_threadpool

from sbf_service.bootstrap import SbfService
from sbf_service.http.auth.authorization import CurrentCaller, authorize_audit
from sbf_service.http.conditional import Wait, wait_until_newer
from sbf_service.http.problems import problem_responses
from sbf_service.store.audit_log import AuditFilter, find_newest_id, read_entries
from sbf_service.store.unit_of_work import AUDIT_TOPIC
from virtcloud.model.changes import AuditEntry
from virtcloud.model.values import ClusterKey, Name

OfElement = Annotated[Name | None, Query(description="Only what was changed on this element.")]
OfCluster = Annotated[ClusterKey | None, Query(description="Only what concerns this cluster, all its attempts.")]
AfterId = Annotated[int | None, Query(ge=0, lt=2**31, description="Only rows past this id; without it the newest.")]
Limit = Annotated[int, Query(ge=1, le=1000, description="How many rows at most.")]


def routes(service: SbfService) -> APIRouter:
    """Give the routes."""
    router = APIRouter(prefix="/v1/audit", tags=["audit"])

    @router.get(
        "",
        operation_id="get_audit",
        summary="Read the audit log, oldest row first, or wait for newer rows",
        responses=problem_responses(HTTPStatus.UNPROCESSABLE_ENTITY),
    )
    async def get(  # noqa: PLR0913, PLR0917 - FastAPI gives each parameter by its name
        caller: CurrentCaller,
        element: OfElement = None,
        cluster: OfCluster = None,
        after: AfterId = None,
        limit: Limit = 100,
        wait: Wait = 0,
    ) -> list[AuditEntry]:
        asked = await run_in_threadpool(authorize_audit, service.store, caller, AuditFilter(element, cluster))

        def last() -> int:
            with service.store.read() as unit:
                return find_newest_id(unit, asked)

        def show() -> list[AuditEntry]:
            with service.store.read() as unit:
                return read_entries(unit, asked, after, limit)

        await wait_until_newer(service.change_feed, AUDIT_TOPIC, last, after, wait)
        return await run_in_threadpool(show)

    return router
