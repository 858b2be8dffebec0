"""Clones of guests: agents send images for sessions of kind ``clone``, which users open (decision 59)."""

from typing import Annotated

from fastapi import APIRouter, Path, Request
from fastapi.concurrency import run_in_threadpool

from sbf_service.bootstrap import SbfService
from sbf_service.domain.image_rules import check_architecture, check_size
from sbf_service.domain.rights import Action
from sbf_service.http.auth.authorization import CurrentCaller, CurrentService, authorize_element
from sbf_service.http.auth.caller import Caller
from sbf_service.http.image_uploads import (
    OCTET_STREAM,
    ArchitectureQuery,
    ChecksumQuery,
    DryRunQuery,
    FormatQuery,
    SizeQuery,
    new_image,
    receive_image,
    require_addition,
)
from sbf_service.http.operations import Operation
from sbf_service.http.problems import problem_responses
from sbf_service.http.session_relay import SessionRelay
from sbf_service.store.unit_of_work import Unit
from sbf_service.store.users import images
from virtcloud.model.errors import Conflict
from virtcloud.model.guests import GuestPower, GuestView
from virtcloud.model.image import Architecture, CatalogueImage, ImageFormat, ImageSource, Sha256
from virtcloud.model.values import Name

SessionPath = Annotated[str, Path(description="The session's id.")]
UNKNOWN = ImageSource(sha256=Sha256("0" * 64), size=1, format=ImageFormat.TAR_GZ, architecture=Architecture("unknown"))
"""The placeholder for the content of a clone before the host has packed the guest's root file system."""

router = APIRouter(tags=["elements"], route_class=Operation)


def check_clone(unit: Unit, service: SbfService, caller: Caller, guest: GuestView, image: Name) -> None:
    """Raise Conflict unless the guest's host has confirmed that the guest is stopped.

    Raise other errors if the caller may not add an image with the name ``image``.
    """
    require_addition(caller)
    images.check_addition(unit, new_image(service, caller, image, UNKNOWN))
    if guest.power is not GuestPower.OFF or not guest.is_confirmed:
        raise Conflict(
            f"guest {guest.name} of cluster {guest.cluster} {_describe_power(guest)}: a copy of its files would "
            f"be inconsistent; stop the guest first (virtcloud guest stop {guest.cluster} {guest.name}), or pass --stop"
        )


def _describe_power(guest: GuestView) -> str:
    if guest.power is GuestPower.ON:
        return "runs"
    return "is stopping" if guest.reachable else f"may still run, because host {guest.host} does not answer"


@router.put(
    "/v1/elements/{name}/sessions/{session}/image",
    responses=problem_responses(404, 409, 413, 422, 507),
    openapi_extra=OCTET_STREAM,
)
async def upload_clone(  # noqa: PLR0913, PLR0917 - FastAPI passes each parameter by its name
    name: Name,
    session: SessionPath,
    sha256: ChecksumQuery,
    size: SizeQuery,
    format: FormatQuery,  # noqa: A002 - the word of the API
    architecture: ArchitectureQuery,
    request: Request,
    caller: CurrentCaller,
    service: CurrentService,
    dry_run: DryRunQuery = False,
) -> CatalogueImage | None:
    """As the agent of a guest's host, add the image that a user's session of kind `clone` requested.

    The body is the file. The user becomes the owner of the image. If the user's session has ended before the whole file
    is stored, SBF discards the file.
    """
    await run_in_threadpool(authorize_element, service.store, caller, Action.REPORT_FOR_ELEMENT, name)
    relay: SessionRelay = request.app.state.sessions
    order = relay.find_clone(name, session)
    source = ImageSource(sha256=sha256, size=size, format=format, architecture=architecture)
    new = new_image(service, order.caller, order.image, source)

    def check() -> None:
        check_size(service.settings.images, size)
        check_architecture(architecture)
        with service.store.read() as unit:
            images.check_addition(unit, new)

    await run_in_threadpool(check)
    if dry_run:
        return None
    image, _ = await receive_image(request, service, order.caller, new, lambda: relay.find_clone(name, session))
    return image
