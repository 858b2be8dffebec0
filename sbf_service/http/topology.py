"""The topology: what there is, as administrators describe it."""

from http import HTTPStatus

from fastapi import APIRouter, Response

from sbf_service.access.rights import Action
from sbf_service.http.caller import Who
from sbf_service.http.devices import check_devices
from sbf_service.http.preconditions import IfMatch, check_match, etag
from sbf_service.http.problems import answers
from sbf_service.service import Service
from sbf_service.store.reading import read_topology, topology_version
from sbf_service.store.topology import put_topology
from virtcloud.model.topology import Topology


def routes(service: Service) -> APIRouter:
    """Return the routes."""
    router = APIRouter(prefix="/v1/topology", tags=["topology"])

    @router.put(
        "",
        operation_id="put_topology",
        summary="Replace the topology: sites, elements, links and transports",
        responses=answers(
            HTTPStatus.CONFLICT,
            HTTPStatus.PRECONDITION_FAILED,
            HTTPStatus.UNPROCESSABLE_ENTITY,
            HTTPStatus.PRECONDITION_REQUIRED,
        ),
    )
    def put(topology: Topology, caller: Who, response: Response, if_match: IfMatch = None) -> Topology:
        caller.must(Action.SET_TOPOLOGY)
        check_devices(topology, service.platforms, service.settings.credentials)
        with service.store.change(who=caller.who) as unit:
            version = topology_version(unit)
            if version is not None and read_topology(unit) != topology:
                check_match(if_match, version, "the topology")
            put_topology(unit, topology)
            response.headers["etag"] = etag(topology_version(unit))
        return topology

    @router.get(
        "",
        operation_id="get_topology",
        summary="Read the topology; `ETag` is its version",
        responses=answers(HTTPStatus.NOT_FOUND),
    )
    def get(caller: Who, response: Response) -> Topology:
        caller.must(Action.READ_TOPOLOGY)
        with service.store.read() as unit:
            response.headers["etag"] = etag(topology_version(unit))
            return read_topology(unit)

    return router
