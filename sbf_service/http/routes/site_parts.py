"""One site's part of the topology, which its administrators may change without the operators of the whole."""

import hashlib
from http import HTTPStatus

from fastapi import APIRouter, Response
from fastapi.concurrency import run_in_threadpool
from pydantic import ValidationError

from sbf_service.bootstrap import SbfService
from sbf_service.domain.rights import Action, ProtectedResource, is_allowed
from sbf_service.http.auth.authorization import Caller, CurrentCaller
from sbf_service.http.conditional import IfMatch, check_if_match, etag
from sbf_service.http.problems import problem_responses
from sbf_service.http.routes.devices import check_device_support
from sbf_service.reconcile.setting_dry_run import SettingDryRun
from sbf_service.store.topology import put_topology
from sbf_service.store.unit_of_work import Unit, read_topology
from virtcloud.model.changes import ChangeDryRun
from virtcloud.model.document import explain_validation_error, list_validation_errors
from virtcloud.model.errors import BadInput, Forbidden
from virtcloud.model.site import SitePart, find_foreign_credentials, replace_site_part, site_part_of
from virtcloud.model.topology import Topology
from virtcloud.model.values import Name


def routes(service: SbfService) -> APIRouter:
    """Return the routes."""
    router = APIRouter(prefix="/v1/sites/{name}/topology", tags=["sites"])
    rehearsal = SettingDryRun(service.store, service.converger, service.device_threads)

    def changed(unit: Unit, caller: Caller, part: SitePart) -> Topology:
        topology = _with_part(read_topology(unit), part, caller)
        check_device_support(topology, service.platforms, service.settings.credentials)
        return topology

    @router.get(
        "",
        operation_id="get_site_topology",
        summary="Read a site's part of the topology; `ETag` is its version",
        responses=problem_responses(HTTPStatus.NOT_FOUND, HTTPStatus.UNPROCESSABLE_ENTITY),
    )
    def get(name: Name, caller: CurrentCaller, response: Response) -> SitePart:
        caller.must(Action.READ_TOPOLOGY)
        with service.store.read() as unit:
            part = site_part_of(read_topology(unit), name)
        response.headers["etag"] = etag(version_of(part))
        return part

    @router.put(
        "",
        operation_id="put_site_topology",
        summary="Replace a site's part of the topology; other sites stay as they are",
        responses=problem_responses(
            HTTPStatus.NOT_FOUND,
            HTTPStatus.CONFLICT,
            HTTPStatus.PRECONDITION_FAILED,
            HTTPStatus.UNPROCESSABLE_ENTITY,
            HTTPStatus.PRECONDITION_REQUIRED,
        ),
    )
    def put(
        name: Name, part: SitePart, caller: CurrentCaller, response: Response, if_match: IfMatch = None
    ) -> SitePart:
        _check_may(caller, name, part)
        with service.store.change(who=caller.who) as unit:
            former = site_part_of(read_topology(unit), name)
            if former != part:
                check_if_match(if_match, version_of(former), f"the topology of site {name}")
                put_topology(unit, changed(unit, caller, part))
        response.headers["etag"] = etag(version_of(part))
        return part

    @router.post(
        "/dry-run",
        operation_id="preview_site_topology",
        summary="Read the switches and edges that a site's new part concerns and show what it would change",
        responses=problem_responses(
            HTTPStatus.NOT_FOUND, HTTPStatus.CONFLICT, HTTPStatus.UNPROCESSABLE_ENTITY, HTTPStatus.SERVICE_UNAVAILABLE
        ),
    )
    async def preview(name: Name, part: SitePart, caller: CurrentCaller) -> ChangeDryRun:
        _check_may(caller, name, part)
        caller.may_read_devices_now()

        def change(unit: Unit) -> None:
            put_topology(unit, changed(unit, caller, part))

        return await rehearsal.preview(await run_in_threadpool(rehearsal.plan, change))

    return router


def version_of(part: SitePart) -> str:
    """Return the version of a site's part: the same for the same content."""
    return hashlib.sha256(part.model_dump_json().encode()).hexdigest()[:16]


def _check_may(caller: Caller, name: Name, part: SitePart) -> None:
    caller.must(Action.SET_SITE, ProtectedResource(f"site {name}", sites=frozenset({name})))
    if part.site.name != name:
        raise BadInput(f"site.name: expected {name}, the site of this address, got {part.site.name}")


def _with_part(topology: Topology, part: SitePart, caller: Caller) -> Topology:
    """Return the whole as it would be; raises BadInput, Forbidden."""
    foreign = find_foreign_credentials(topology, part)
    if foreign and not is_allowed(caller.principal, Action.SET_TOPOLOGY):
        listed = ", ".join(f"{credential} for {device}" for device, credential in foreign.items())
        raise Forbidden(
            f"{caller.principal} may not name credential {listed}: a device that is new, or has another address or "
            f"platform, may have a credential that only devices of site {part.site.name} have; an operator sets "
            "others"
        )
    try:
        return replace_site_part(topology, part)
    except ValidationError as error:
        raise BadInput("\n".join(explain_validation_error(one) for one in list_validation_errors(error))) from error
