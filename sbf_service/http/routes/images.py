"""Images: add, upload, read, share, certify and remove them."""

from http import HTTPStatus
from typing import Annotated, Any

from fastapi import APIRouter, Path, Query, Request, Response
from fastapi.concurrency import run_in_threadpool
from fastapi.responses import FileResponse

from sbf_service.domain.image_rules import check_architecture, check_size, make_unknown_image_error, may_use
from sbf_service.domain.rights import Action, ProtectedResource, RightScope, find_scope
from sbf_service.http.auth.authorization import CurrentCaller, CurrentService, describe_site
from sbf_service.http.auth.caller import Caller
from sbf_service.http.image_uploads import (
    OCTET_STREAM,
    ArchitectureQuery,
    ChecksumQuery,
    DryRunQuery,
    FormatQuery,
    SizeQuery,
    find_same,
    new_image,
    receive_image,
    require_addition,
)
from sbf_service.http.operations import Operation
from sbf_service.http.pages import PAGES, CurrentPage
from sbf_service.http.problems import problem_responses
from sbf_service.log import get_log
from sbf_service.store.pages import Page, PagePart
from sbf_service.store.unit_of_work import Unit
from sbf_service.store.users import image_uses, images
from virtcloud.model.errors import NotFound, StorageFull
from virtcloud.model.image import (
    CatalogueImage,
    ImageCheck,
    ImageRequest,
    ImageShares,
    ImageSource,
)
from virtcloud.model.values import Name, UserName

OwnerQuery = Annotated[
    UserName | None, Query(description="Only images of this owner; without effect for the agent of a host.")
]
NamePath = Annotated[Name, Path(description="The image's name.")]
SitePath = Annotated[Name, Path(description="The site for which the image is certified.")]

ADDED: dict[int | str, dict[str, Any]] = {200: {"model": CatalogueImage, "description": "The image existed already"}}
UPLOADED: dict[int | str, dict[str, Any]] = {
    200: {"model": CatalogueImage | None, "description": "The image existed already; null: the dry run found no fault"}
}

log = get_log(__name__)
router = APIRouter(prefix="/v1/images", tags=["images"], route_class=Operation)


@router.get("", response_model=list[CatalogueImage], responses={**PAGES, **problem_responses(422)})
def list_images(
    caller: CurrentCaller, service: CurrentService, page: CurrentPage, owner: OwnerQuery = None
) -> Response:
    """List the images that the caller may use, by name."""
    caller.require_for_any(Action.READ_IMAGE, "image")
    scope, name = find_scope(caller.principal, Action.READ_IMAGE), caller.principal.name

    def read(part: PagePart) -> Page[CatalogueImage]:
        with service.store.read() as unit:
            if scope is RightScope.ELEMENT:
                return images.read_needed_page(unit, part, name)
            user = name if scope is RightScope.OWN else None
            return images.read_image_page(unit, part, owner=owner, user=user)

    return page.answer(CatalogueImage, read)


@router.get("/{name}", responses=problem_responses(404, 422))
def get_image(name: NamePath, caller: CurrentCaller, service: CurrentService) -> CatalogueImage:
    """Return an image."""
    with service.store.read() as unit:
        return _authorize(unit, caller, Action.READ_IMAGE, name)


@router.put("/{name}", status_code=HTTPStatus.CREATED, responses={**ADDED, **problem_responses(404, 409, 422)})
def add_image(
    name: NamePath, request: ImageRequest, response: Response, caller: CurrentCaller, service: CurrentService
) -> CatalogueImage:
    """Add an image whose file is at a URL, or in each host's folder of images; idempotent."""
    require_addition(caller)
    check_size(service.settings.images, request.size)
    check_architecture(request.architecture)
    new = new_image(service, caller, name, ImageSource(**request.model_dump()))
    with service.store.change(who=caller.who) as unit:
        image, created = images.add_image(unit, new)
    return _report_addition(response, caller, image, created=created)


@router.put(
    "/{name}/content",
    status_code=HTTPStatus.CREATED,
    responses={**UPLOADED, **problem_responses(404, 409, 413, 422, 507)},
    openapi_extra=OCTET_STREAM,
)
async def upload_image(  # noqa: PLR0913, PLR0917 - FastAPI passes each parameter by its name
    name: NamePath,
    sha256: ChecksumQuery,
    size: SizeQuery,
    format: FormatQuery,  # noqa: A002 - the word of the API
    architecture: ArchitectureQuery,
    request: Request,
    response: Response,
    caller: CurrentCaller,
    service: CurrentService,
    dry_run: DryRunQuery = False,
) -> CatalogueImage | None:
    """Add an image whose file is the body of the call; idempotent.

    The image appears when the whole file is stored and its checksum is correct.
    """
    require_addition(caller)
    check_size(service.settings.images, size)
    check_architecture(architecture)
    source = ImageSource(sha256=sha256, size=size, format=format, architecture=architecture)
    new = new_image(service, caller, name, source)
    same = await run_in_threadpool(find_same, service, new)
    if same is not None or dry_run:
        response.status_code = HTTPStatus.OK
        return same
    image, created = await receive_image(request, service, caller, new)
    return _report_addition(response, caller, image, created=created)


@router.get("/{name}/content", responses=problem_responses(404, 422, 507), response_class=FileResponse)
def get_image_content(name: NamePath, caller: CurrentCaller, service: CurrentService) -> FileResponse:
    """Return the file of an uploaded image. The headers `Range` and `If-Range` resume an interrupted transfer."""
    with service.store.read() as unit:
        source = _authorize(unit, caller, Action.READ_IMAGE, name).source
    if not source.is_stored:
        raise NotFound(f"image {name} is not stored at SBF: fetch it from {source.url or source.file}")
    path = service.image_folder.find(source.sha256)
    return FileResponse(path, headers={"etag": f'"{source.sha256}"'}, media_type="application/octet-stream")


@router.post("/{name}/verify", responses=problem_responses(404, 422, 507))
async def verify_image(name: NamePath, caller: CurrentCaller, service: CurrentService) -> ImageCheck:
    """Read the file of an uploaded image again, and compare the file's checksum with the recorded checksum."""

    def authorize() -> ImageSource:
        with service.store.read() as unit:
            return _authorize(unit, caller, Action.READ_IMAGE, name).source

    source = await run_in_threadpool(authorize)
    if not source.is_stored:
        return ImageCheck(name=name, sha256=source.sha256, found=None, intact=None)
    caller.count_device_read()
    found = await service.device_threads.run(lambda: service.image_folder.compute_checksum(source.sha256))
    return ImageCheck(name=name, sha256=source.sha256, found=found, intact=found == source.sha256)


@router.post("/{name}/shares", responses=problem_responses(404, 422))
def share_image(name: NamePath, shares: ImageShares, caller: CurrentCaller, service: CurrentService) -> CatalogueImage:
    """Change the users who may use an image; idempotent."""
    with service.store.change(who=caller.who) as unit:
        _authorize(unit, caller, Action.SHARE_IMAGE, name)
        return images.share_image(unit, name, shares)


@router.put("/{name}/certifications/{site}", responses=problem_responses(404, 422))
def certify_image(name: NamePath, site: SitePath, caller: CurrentCaller, service: CurrentService) -> CatalogueImage:
    """Certify an image for a site; idempotent."""
    caller.require(Action.CERTIFY_IMAGE, describe_site(site))
    with service.store.change(who=caller.who) as unit:
        return images.certify_image(unit, name, site)


@router.delete("/{name}/certifications/{site}", responses=problem_responses(404, 422))
def revoke_certification(
    name: NamePath, site: SitePath, caller: CurrentCaller, service: CurrentService
) -> CatalogueImage:
    """Revoke the certification of an image for a site; idempotent."""
    caller.require(Action.CERTIFY_IMAGE, describe_site(site))
    with service.store.change(who=caller.who) as unit:
        return images.revoke_certification(unit, name, site)


@router.delete("/{name}", responses=problem_responses(404, 409, 422, 507))
def remove_image(name: NamePath, caller: CurrentCaller, service: CurrentService) -> CatalogueImage:
    """Remove an image that no running cluster uses, and its file."""
    with service.store.change(who=caller.who) as unit:
        _authorize(unit, caller, Action.REMOVE_IMAGE, name)
        image = images.remove_image(unit, name, caller.may_read_clusters_of)
    log.info("image_removed", name=name, by=caller.who)
    try:
        with service.store.change(who=caller.who) as unit:
            service.image_folder.remove_unknown(images.list_stored_checksums(unit))
    except StorageFull as error:
        raise StorageFull(f"image {name} is removed from the catalogue, but its file may remain: {error}") from error
    return image


def _report_addition(response: Response, caller: Caller, image: CatalogueImage, *, created: bool) -> CatalogueImage:
    response.status_code = HTTPStatus.CREATED if created else HTTPStatus.OK
    if created:
        log.info("image_added", name=image.name, sha256=image.source.sha256, by=caller.who)
    return image


def _authorize(unit: Unit, caller: Caller, action: Action, name: Name) -> CatalogueImage:
    """Return an image, after checking the caller's right to ``action`` on the image.

    Raise Forbidden if the caller's role has no right to ``action`` on any image, or if the caller may only see this
    image. Raise NotFound if the image does not exist or the caller may not see it.
    """
    caller.require_for_any(action, "image")
    unrestricted = caller.is_unrestricted(action)
    try:
        image = images.get_image(unit, name)
    except NotFound:
        image = None
    if image is not None and (unrestricted or _is_visible(unit, caller, image)):
        if action is not Action.READ_IMAGE:
            caller.require(action, ProtectedResource(f"image {name}", owner=image.owner))
        return image
    error = make_unknown_image_error(name)
    raise error if unrestricted else caller.deny(error, action, ProtectedResource(f"image {name}"))


def _is_visible(unit: Unit, caller: Caller, image: CatalogueImage) -> bool:
    if caller.is_unrestricted(Action.READ_IMAGE):
        return True
    if find_scope(caller.principal, Action.READ_IMAGE) is RightScope.ELEMENT:
        return image.name in image_uses.find_needed_images(unit, caller.principal.name)
    return may_use(image, caller.principal.name)
