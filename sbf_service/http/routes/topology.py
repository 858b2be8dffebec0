"""The topology: what there is, as administrators describe it."""

from http import HTTPStatus

from fastapi import APIRouter, Response

from sbf_service.bootstrap import SbfService
from sbf_service.domain.rights import Action
from sbf_service.http.auth.authorization import CurrentCaller
from sbf_service.http.conditional import IfMatch, check_if_match, etag
from sbf_service.http.problems import problem_responses
from sbf_service.http.routes.devices import check_device_support
from sbf_service.store.topology import put_topology
from sbf_service.store.unit_of_work import read_topology, read_topology_version
from virtcloud.model.topology import Topology


def routes(service: SbfService) -> APIRouter:
    """Return the routes."""
    router = APIRouter(prefix="/v1/topology", tags=["topology"])

    @router.put(
        "",
        operation_id="put_topology",
        summary="Replace the topology: sites, elements, links and transports",
        responses=problem_responses(
            HTTPStatus.CONFLICT,
            HTTPStatus.PRECONDITION_FAILED,
            HTTPStatus.UNPROCESSABLE_ENTITY,
            HTTPStatus.PRECONDITION_REQUIRED,
        ),
    )
    def put(topology: Topology, caller: CurrentCaller, response: Response, if_match: IfMatch = None) -> Topology:
        caller.must(Action.SET_TOPOLOGY)
        check_device_support(topology, service.platforms, service.settings.credentials)
        with service.store.change(who=caller.who) as unit:
            version = read_topology_version(unit)
            if version is not None and read_topology(unit) != topology:
                check_if_match(if_match, version, "the topology")
            put_topology(unit, topology)
            response.headers["etag"] = etag(read_topology_version(unit))
        return topology

    @router.get(
        "",
        operation_id="get_topology",
        summary="Read the topology; `ETag` is its version",
        responses=problem_responses(HTTPStatus.NOT_FOUND),
    )
    def get(caller: CurrentCaller, response: Response) -> Topology:
        caller.must(Action.READ_TOPOLOGY)
        with service.store.read() as unit:
            response.headers["etag"] = etag(read_topology_version(unit))
            return read_topology(unit)

    return router
