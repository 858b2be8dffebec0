"""What administrators configure once, as text: for a site's uplinks, and for the backbone. Nothing is ever done."""

from http import HTTPStatus
from typing import Annotated

from fastapi import APIRouter, Query

from sbf_service.bootstrap import SbfService
from sbf_service.domain.rights import Action
from sbf_service.http.auth.authorization import CurrentCaller
from sbf_service.http.problems import problem_responses
from sbf_service.preparation.sheets import BackboneDevice, make_sheets
from sbf_service.store.pools import make_site_view
from sbf_service.store.unit_of_work import read_topology
from virtcloud.model.site import SitePreparation
from virtcloud.model.values import Name, PortName

Platform = Annotated[str | None, Query(description="The platform of the backbone's device.")]
Port = Annotated[PortName | None, Query(description="The backbone's port that the site is attached to.")]
CorePort = Annotated[PortName | None, Query(description="That device's port towards the rest of the backbone.")]
OneTransport = Annotated[Name | None, Query(description="Only for this transport.")]
REFUSED = (HTTPStatus.NOT_FOUND, HTTPStatus.CONFLICT, HTTPStatus.UNPROCESSABLE_ENTITY)


def routes(service: SbfService) -> APIRouter:
    """Give the routes."""
    router = APIRouter(prefix="/v1/sites", tags=["sites"])

    @router.get(
        "/{name}/preparation",
        operation_id="get_preparation",
        summary="Write down what is to be configured once for a site, on its uplinks and in the backbone",
        responses=problem_responses(*REFUSED),
    )
    def get(  # noqa: PLR0913, PLR0917 - what may be said of the backbone
        name: Name,
        caller: CurrentCaller,
        platform: Platform = None,
        port: Port = None,
        core_port: CorePort = None,
        transport: OneTransport = None,
    ) -> SitePreparation:
        caller.must(Action.READ_TOPOLOGY)
        with service.store.read() as unit:
            topology = read_topology(unit)
            site = topology.site(name)
            vlans = make_site_view(unit, site, service.reserved).pool
        return make_sheets(topology, site, vlans, BackboneDevice(platform, port, core_port, transport))

    return router
