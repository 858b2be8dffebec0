"""Dry runs of settings: what a new pool or topology would change on switches and edges, from reading them now."""

from functools import partial
from http import HTTPStatus

from fastapi import APIRouter
from fastapi.concurrency import run_in_threadpool

from sbf_service.bootstrap import SbfService
from sbf_service.domain.rights import Action
from sbf_service.http.auth.authorization import CurrentCaller, site_subject
from sbf_service.http.problems import problem_responses
from sbf_service.http.routes.devices import check_device_support
from sbf_service.reconcile.setting_dry_run import SettingDryRun
from sbf_service.store.pools import put_pool
from sbf_service.store.topology import put_topology
from virtcloud.model.changes import ChangeDryRun
from virtcloud.model.topology import Topology
from virtcloud.model.values import Name
from virtcloud.model.views import Pool

REFUSED = (HTTPStatus.CONFLICT, HTTPStatus.UNPROCESSABLE_ENTITY, HTTPStatus.SERVICE_UNAVAILABLE)


def routes(service: SbfService) -> APIRouter:
    """Return the routes."""
    router = APIRouter(prefix="/v1")
    rehearsal = SettingDryRun(service.store, service.converger, service.device_threads)

    @router.post(
        "/sites/{name}/pool/dry-run",
        operation_id="preview_pool",
        tags=["sites"],
        summary="Read a site's switches and edges and show what a new pool would change; changes nothing",
        responses=problem_responses(HTTPStatus.NOT_FOUND, *REFUSED),
    )
    async def preview_pool(name: Name, pool: Pool, caller: CurrentCaller) -> ChangeDryRun:
        caller.must(Action.SET_POOL, site_subject(name))
        caller.may_read_devices_now()
        change = partial(put_pool, name=name, pool=pool, reserved=service.reserved)
        return await rehearsal.preview(await run_in_threadpool(rehearsal.plan, change))

    @router.post(
        "/topology/dry-run",
        operation_id="preview_topology",
        tags=["topology"],
        summary="Read the switches and edges that a new topology concerns and show what it would change",
        responses=problem_responses(*REFUSED),
    )
    async def preview_topology(topology: Topology, caller: CurrentCaller) -> ChangeDryRun:
        caller.must(Action.SET_TOPOLOGY)
        caller.may_read_devices_now()
        await run_in_threadpool(check_device_support, topology, service.platforms, service.settings.credentials)
        change = partial(put_topology, topology=topology)
        return await rehearsal.preview(await run_in_threadpool(rehearsal.plan, change))

    return router
