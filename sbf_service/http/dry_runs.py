"""Dry runs of settings: what a new pool or topology would change on switches and edges, from reading them now."""

from functools import partial
from http import HTTPStatus

from fastapi import APIRouter
from fastapi.concurrency import run_in_threadpool

from sbf_service.access.rights import Action
from sbf_service.converge.rehearsal import Rehearsal
from sbf_service.http.caller import Who
from sbf_service.http.devices import check_devices
from sbf_service.http.problems import answers
from sbf_service.http.subjects import of_site
from sbf_service.service import Service
from sbf_service.store.pools import put_pool
from sbf_service.store.topology import put_topology
from virtcloud.model.preview import ChangePreview
from virtcloud.model.topology import Topology
from virtcloud.model.values import Name
from virtcloud.model.views import Pool

REFUSED = (HTTPStatus.CONFLICT, HTTPStatus.UNPROCESSABLE_ENTITY, HTTPStatus.SERVICE_UNAVAILABLE)


def routes(service: Service) -> APIRouter:
    """Return the routes."""
    router = APIRouter(prefix="/v1")
    rehearsal = Rehearsal(service.store, service.converger, service.device_threads)

    @router.post(
        "/sites/{name}/pool/dry-run",
        operation_id="preview_pool",
        tags=["sites"],
        summary="Read a site's switches and edges and show what a new pool would change; changes nothing",
        responses=answers(HTTPStatus.NOT_FOUND, *REFUSED),
    )
    async def preview_pool(name: Name, pool: Pool, caller: Who) -> ChangePreview:
        caller.must(Action.SET_POOL, of_site(name))
        caller.may_read_devices_now()
        change = partial(put_pool, name=name, pool=pool, reserved=service.reserved)
        return await rehearsal.preview(await run_in_threadpool(rehearsal.plan, change))

    @router.post(
        "/topology/dry-run",
        operation_id="preview_topology",
        tags=["topology"],
        summary="Read the switches and edges that a new topology concerns and show what it would change",
        responses=answers(*REFUSED),
    )
    async def preview_topology(topology: Topology, caller: Who) -> ChangePreview:
        caller.must(Action.SET_TOPOLOGY)
        caller.may_read_devices_now()
        await run_in_threadpool(check_devices, topology, service.platforms, service.settings.credentials)
        change = partial(put_topology, topology=topology)
        return await rehearsal.preview(await run_in_threadpool(rehearsal.plan, change))

    return router
