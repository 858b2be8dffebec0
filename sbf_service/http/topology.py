"""The topology: what there is, as administrators describe it."""

from http import HTTPStatus

from fastapi import APIRouter

from sbf_service.access.rights import Action
from sbf_service.http.caller import Who
from sbf_service.http.devices import check_devices
from sbf_service.http.problems import answers
from sbf_service.service import Service
from sbf_service.store.reading import read_topology
from sbf_service.store.topology import put_topology
from virtcloud.model.topology import Topology


def routes(service: Service) -> APIRouter:
    """Give the routes."""
    router = APIRouter(prefix="/v1/topology", tags=["topology"])

    @router.put(
        "",
        operation_id="put_topology",
        summary="Say what sites, elements, links and transports there are",
        responses=answers(HTTPStatus.CONFLICT, HTTPStatus.UNPROCESSABLE_ENTITY),
    )
    def put(topology: Topology, caller: Who) -> Topology:
        caller.must(Action.SET_TOPOLOGY)
        check_devices(topology, service.platforms, service.settings.credentials)
        with service.store.change(who=caller.who) as unit:
            put_topology(unit, topology)
        return topology

    @router.get(
        "",
        operation_id="get_topology",
        summary="Read the topology",
        responses=answers(HTTPStatus.NOT_FOUND),
    )
    def get(caller: Who) -> Topology:
        caller.must(Action.READ_TOPOLOGY)
        with service.store.read() as unit:
            return read_topology(unit)

    return router
