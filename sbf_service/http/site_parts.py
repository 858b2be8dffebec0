"""One site's part of the topology, which its administrators may change without the operators of the whole."""

import hashlib
from http import HTTPStatus

from fastapi import APIRouter, Response
from fastapi.concurrency import run_in_threadpool
from pydantic import ValidationError

from sbf_service.access.rights import Action, Subject, may
from sbf_service.converge.rehearsal import Rehearsal
from sbf_service.http.caller import Caller, Who
from sbf_service.http.devices import check_devices
from sbf_service.http.preconditions import IfMatch, check_match, etag
from sbf_service.http.problems import answers
from sbf_service.service import Service
from sbf_service.store.reading import read_topology
from sbf_service.store.session import Unit
from sbf_service.store.topology import put_topology
from virtcloud.model.errors import BadInput, Forbidden
from virtcloud.model.faults import explain, faults
from virtcloud.model.preview import ChangePreview
from virtcloud.model.site_part import SitePart, foreign_credentials, part_of, with_part
from virtcloud.model.topology import Topology
from virtcloud.model.values import Name


def routes(service: Service) -> APIRouter:
    """Return the routes."""
    router = APIRouter(prefix="/v1/sites/{name}/topology", tags=["sites"])
    rehearsal = Rehearsal(service.store, service.converger, service.device_threads)

    def changed(unit: Unit, caller: Caller, part: SitePart) -> Topology:
        topology = _with_part(read_topology(unit), part, caller)
        check_devices(topology, service.platforms, service.settings.credentials)
        return topology

    @router.get(
        "",
        operation_id="get_site_topology",
        summary="Read a site's part of the topology; `ETag` is its version",
        responses=answers(HTTPStatus.NOT_FOUND, HTTPStatus.UNPROCESSABLE_ENTITY),
    )
    def get(name: Name, caller: Who, response: Response) -> SitePart:
        caller.must(Action.READ_TOPOLOGY)
        with service.store.read() as unit:
            part = part_of(read_topology(unit), name)
        response.headers["etag"] = etag(version_of(part))
        return part

    @router.put(
        "",
        operation_id="put_site_topology",
        summary="Replace a site's part of the topology; other sites stay as they are",
        responses=answers(
            HTTPStatus.NOT_FOUND,
            HTTPStatus.CONFLICT,
            HTTPStatus.PRECONDITION_FAILED,
            HTTPStatus.UNPROCESSABLE_ENTITY,
            HTTPStatus.PRECONDITION_REQUIRED,
        ),
    )
    def put(name: Name, part: SitePart, caller: Who, response: Response, if_match: IfMatch = None) -> SitePart:
        _check_may(caller, name, part)
        with service.store.change(who=caller.who) as unit:
            former = part_of(read_topology(unit), name)
            if former != part:
                check_match(if_match, version_of(former), f"the topology of site {name}")
                put_topology(unit, changed(unit, caller, part))
        response.headers["etag"] = etag(version_of(part))
        return part

    @router.post(
        "/dry-run",
        operation_id="preview_site_topology",
        summary="Read the switches and edges that a site's new part concerns and show what it would change",
        responses=answers(
            HTTPStatus.NOT_FOUND, HTTPStatus.CONFLICT, HTTPStatus.UNPROCESSABLE_ENTITY, HTTPStatus.SERVICE_UNAVAILABLE
        ),
    )
    async def preview(name: Name, part: SitePart, caller: Who) -> ChangePreview:
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
    caller.must(Action.SET_SITE, Subject(f"site {name}", sites=frozenset({name})))
    if part.site.name != name:
        raise BadInput(f"site.name: expected {name}, the site of this address, got {part.site.name}")


def _with_part(topology: Topology, part: SitePart, caller: Caller) -> Topology:
    """Return the whole as it would be; raises BadInput, Forbidden."""
    foreign = foreign_credentials(topology, part)
    if foreign and not may(caller.principal, Action.SET_TOPOLOGY):
        listed = ", ".join(f"{credential} for {device}" for device, credential in foreign.items())
        raise Forbidden(
            f"{caller.principal} may not name credential {listed}: a device that is new, or has another address or "
            f"platform, may have a credential that only devices of site {part.site.name} have; an operator sets "
            "others"
        )
    try:
        return with_part(topology, part)
    except ValidationError as error:
        raise BadInput("\n".join(explain(one) for one in faults(error))) from error
