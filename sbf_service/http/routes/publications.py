"""Publications of guests: a gateway accepts connections at one of its own ports, and forwards them to a guest."""

from http import HTTPStatus
from typing import Annotated

from fastapi import APIRouter, Path, Query

from sbf_service.domain.rights import Action
from sbf_service.http.auth.authorization import CurrentCaller, CurrentService
from sbf_service.http.operations import Operation
from sbf_service.http.problems import problem_responses
from sbf_service.http.routes.clusters import IdQuery, KeyPath
from sbf_service.http.routes.vpn import authorize_vpn, change_vpn
from sbf_service.store.networks import publications
from virtcloud.model.gateway_access import PublishedProtocol
from virtcloud.model.publication import PublicationRequest, PublicationView
from virtcloud.model.values import Name

PortPath = Annotated[int, Path(description="The port of the guest.", ge=1, le=65535)]
ProtocolQuery = Annotated[PublishedProtocol, Query(description="The transport protocol of the port.")]
SiteQuery = Annotated[Name | None, Query(description="Only the publication at this site; absent: at all sites.")]
PROBLEMS = problem_responses(404, 409, 422)

router = APIRouter(prefix="/v1/clusters/{key}/publications", tags=["publications"], route_class=Operation)


@router.get("", responses=PROBLEMS)
def list_publications(
    key: KeyPath,
    caller: CurrentCaller,
    service: CurrentService,
    id: IdQuery = None,  # noqa: A002 - the word of the API
) -> list[PublicationView]:
    """List the published ports of a cluster's guests."""
    with service.store.read() as unit:
        authorize_vpn(unit, caller, Action.PUBLISH_GUEST, key, id)
        return publications.list_publications(unit, key, id)


@router.post("", status_code=HTTPStatus.CREATED, responses=PROBLEMS)
def publish_guest(
    key: KeyPath,
    request: PublicationRequest,
    caller: CurrentCaller,
    service: CurrentService,
    id: IdQuery = None,  # noqa: A002 - the word of the API
) -> PublicationView:
    """Publish a port of a guest at a site's gateway; idempotent. The call restores a suspended publication.

    All guests of the network must have images that are certified for the site.
    """
    with change_vpn(service, caller, Action.PUBLISH_GUEST, key, id) as (unit, _):
        return publications.publish(unit, key, request, service.settings.limits, id)


@router.delete("/{guest}/{port}", responses=PROBLEMS)
def unpublish_guest(  # noqa: PLR0913, PLR0917 - FastAPI passes each parameter by its name
    key: KeyPath,
    guest: Name,
    port: PortPath,
    caller: CurrentCaller,
    service: CurrentService,
    site: SiteQuery = None,
    protocol: ProtocolQuery = PublishedProtocol.TCP,
    id: IdQuery = None,  # noqa: A002 - the word of the API
) -> list[PublicationView]:
    """End the publication of a port of a guest; idempotent. Return the publications that ended."""
    with change_vpn(service, caller, Action.PUBLISH_GUEST, key, id) as (unit, _):
        request = PublicationRequest(guest=guest, port=port, protocol=protocol, site=site)
        return publications.unpublish(unit, key, request, id)
