"""Elements: what would be changed on them now, and reading a device because somebody asks."""

from functools import partial
from http import HTTPStatus
from typing import Annotated

from fastapi import APIRouter, Query
from fastapi.concurrency import run_in_threadpool

from sbf_service.bootstrap import SbfService
from sbf_service.domain.rights import Action
from sbf_service.http.auth.authorization import CurrentCaller, authorize_element
from sbf_service.http.problems import problem_responses
from sbf_service.reconcile.on_demand import OnDemandReader
from sbf_service.store.cluster_dry_run import compute_element_difference
from virtcloud.model.changes import ElementDifference, ElementReconciliation
from virtcloud.model.values import Name

ReadNow = Annotated[bool, Query(description="Read the device now, instead of taking what it was last seen to carry.")]
NOT_READ = (
    HTTPStatus.NOT_FOUND,
    HTTPStatus.CONFLICT,
    HTTPStatus.UNPROCESSABLE_ENTITY,
    HTTPStatus.SERVICE_UNAVAILABLE,
)
FROM_DEVICE = (HTTPStatus.BAD_GATEWAY, HTTPStatus.GATEWAY_TIMEOUT)


def routes(service: SbfService) -> APIRouter:
    """Give the routes."""
    router = APIRouter(prefix="/v1/elements", tags=["elements"])
    looking = OnDemandReader(service.store, service.converger)

    @router.get(
        "/{name}/difference",
        operation_id="get_difference",
        summary="Say what would be changed on an element now; changes nothing",
        responses=problem_responses(*NOT_READ, *FROM_DEVICE),
    )
    async def get(name: Name, caller: CurrentCaller, read: ReadNow = False) -> ElementDifference:
        await run_in_threadpool(authorize_element, service.store, caller, Action.COMPARE_ELEMENT, name)
        if not read:
            return await run_in_threadpool(known, name)
        caller.may_read_devices_now()
        return await service.device_threads.run(partial(looking.difference, name))

    def known(name: Name) -> ElementDifference:
        with service.store.read() as unit:
            return compute_element_difference(unit, name)

    @router.post("/{name}/check", include_in_schema=False)  # its name in version 0.1, for clients of that version
    @router.post(
        "/{name}/reconcile",
        operation_id="reconcile_element",
        summary="Read a switch or provider edge now, and change what differs from its wanted state",
        responses=problem_responses(*NOT_READ),
    )
    async def reconcile(name: Name, caller: CurrentCaller) -> ElementReconciliation:
        await run_in_threadpool(authorize_element, service.store, caller, Action.RECONCILE_ELEMENT, name)
        caller.may_read_devices_now()
        return await service.device_threads.run(partial(looking.reconcile, name))

    return router
