"""A site's cables, by what its switches hear of their neighbours."""

from http import HTTPStatus

from fastapi import APIRouter
from fastapi.concurrency import run_in_threadpool

from sbf_service.access.rights import Action
from sbf_service.converge.verifying import Verifying
from sbf_service.http.caller import Who
from sbf_service.http.problems import answers
from sbf_service.http.subjects import of_site
from sbf_service.service import Service
from virtcloud.model.cables import SiteCables
from virtcloud.model.values import Name


def routes(service: Service) -> APIRouter:
    """Give the routes."""
    router = APIRouter(prefix="/v1/sites", tags=["sites"])
    verifying = Verifying(service.store, service.converger, service.platforms.of_switch, service.device_threads)

    @router.post(
        "/{name}/verify",
        operation_id="verify_site",
        summary="Read the neighbours of a site's switches and compare its cables with the topology; changes nothing",
        responses=answers(HTTPStatus.NOT_FOUND, HTTPStatus.UNPROCESSABLE_ENTITY, HTTPStatus.SERVICE_UNAVAILABLE),
    )
    async def verify(name: Name, caller: Who) -> SiteCables:
        caller.must(Action.VERIFY_SITE, of_site(name))
        caller.may_read_devices_now()
        plan = await run_in_threadpool(verifying.plan, name)
        return plan.compare(*await verifying.ask(plan))

    return router
