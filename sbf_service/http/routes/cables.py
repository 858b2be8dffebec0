"""A site's cables, by what its switches hear of their neighbours."""

from http import HTTPStatus

from fastapi import APIRouter
from fastapi.concurrency import run_in_threadpool

from sbf_service.bootstrap import SbfService
from sbf_service.domain.rights import Action
from sbf_service.http.auth.authorization import CurrentCaller, site_subject
from sbf_service.http.problems import problem_responses
from sbf_service.reconcile.on_demand import CableChecker
from virtcloud.model.site import SiteCables
from virtcloud.model.values import Name


def routes(service: SbfService) -> APIRouter:
    """Give the routes."""
    router = APIRouter(prefix="/v1/sites", tags=["sites"])
    verifying = CableChecker(service.store, service.converger, service.platforms.of_switch, service.device_threads)

    @router.post(
        "/{name}/verify",
        operation_id="verify_site",
        summary="Read the neighbours of a site's switches and compare its cables with the topology; changes nothing",
        responses=problem_responses(
            HTTPStatus.NOT_FOUND, HTTPStatus.UNPROCESSABLE_ENTITY, HTTPStatus.SERVICE_UNAVAILABLE
        ),
    )
    async def verify(name: Name, caller: CurrentCaller) -> SiteCables:
        caller.must(Action.VERIFY_SITE, site_subject(name))
        caller.may_read_devices_now()
        plan = await run_in_threadpool(verifying.plan, name)
        return plan.compare(*await verifying.ask(plan))

    return router
