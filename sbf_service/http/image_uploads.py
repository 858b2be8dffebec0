"""Uploads of images: the parameters of the calls, and the storage of a call's body as an image.

Users upload images, and agents upload clones of guests.
"""

from collections.abc import Callable
from typing import Annotated, Any

from fastapi import Query, Request
from fastapi.concurrency import run_in_threadpool

from sbf_service.bootstrap import SbfService
from sbf_service.domain.rights import Action, ProtectedResource
from sbf_service.http.auth.caller import Caller
from sbf_service.image_files import Upload
from sbf_service.store.users import images
from sbf_service.store.users.images import NewImage
from virtcloud.model.errors import BadInput
from virtcloud.model.image import Architecture, CatalogueImage, ImageFormat, ImageSource, Sha256
from virtcloud.model.values import Name, UserName

WRITE_BYTES = 1 << 20

ChecksumQuery = Annotated[Sha256, Query(description="The SHA-256 of the file, which SBF compares with the upload.")]
SizeQuery = Annotated[int, Query(ge=1, lt=2**53, description="The size of the file in bytes.")]
FormatQuery = Annotated[ImageFormat, Query(description="The format of the file.")]
ArchitectureQuery = Annotated[Architecture, Query(description="The processor architecture of the image.")]
DryRunQuery = Annotated[bool, Query(description="Only check whether the upload would be accepted; send no file.")]
OCTET_STREAM: dict[str, Any] = {
    "requestBody": {"content": {"application/octet-stream": {"schema": {"type": "string", "format": "binary"}}}}
}


def require_addition(caller: Caller) -> None:
    """Raise Forbidden if the caller may not add images."""
    owner = caller.principal.name
    caller.require(Action.ADD_IMAGE, ProtectedResource(f"an image of {owner}", owner=owner))


def new_image(service: SbfService, caller: Caller, name: Name, source: ImageSource) -> NewImage:
    """Return an image that belongs to the caller."""
    return NewImage(name, UserName(caller.principal.name), caller.principal.role, source, service.settings.quota)


async def receive_image(
    request: Request,
    service: SbfService,
    caller: Caller,
    new: NewImage,
    check: Callable[[], object] = lambda: None,
) -> tuple[CatalogueImage, bool]:
    """Store the body of a call as an image, and return the image and whether the image is new.

    ``check`` is called after the whole body was received and may raise an error. Raise BadInput if the body's size or
    checksum differs from ``new``. Raise the errors of ``images.add_image``, too.
    """
    with service.image_folder.open_upload(new.source.size, new.owner) as upload:
        await run_in_threadpool(find_same, service, new, new.source.size)
        await _receive(request, upload)
        check()
        return await run_in_threadpool(_store_upload, service, caller, new, upload)


def find_same(service: SbfService, new: NewImage, begun: int = 0) -> CatalogueImage | None:
    """Return the image with the owner, name and content of ``new``, or None if SBF lacks the image or its file.

    ``begun`` is the announced size in bytes of the upload of ``new``, or 0 if it has not begun. Raise the errors of
    ``images.find_same_image``.
    """
    uploading = service.image_folder.count_uploading(new.owner) - begun
    with service.store.read() as unit:
        same = images.find_same_image(unit, new, uploading)
    return same if service.image_folder.contains(new.source.sha256, new.source.size) else None


async def _receive(request: Request, upload: Upload) -> None:
    collected = bytearray()
    async for chunk in request.stream():
        collected += chunk
        if len(collected) >= WRITE_BYTES:
            await run_in_threadpool(upload.write, bytes(collected))
            collected.clear()
    await run_in_threadpool(upload.write, bytes(collected))


def _store_upload(service: SbfService, caller: Caller, new: NewImage, upload: Upload) -> tuple[CatalogueImage, bool]:
    sha256, _ = upload.finish(new.source.format)
    if (sha256, upload.size) != (new.source.sha256, new.source.size):
        raise BadInput(
            f"image {new.name}: expected {new.source.size} bytes with sha256 {new.source.sha256}, got {upload.size} "
            f"bytes with sha256 {sha256}; nothing was stored: send the file again"
        )
    with service.store.change(who=caller.who) as unit:
        service.image_folder.remove_unknown(images.list_stored_checksums(unit))
        return images.add_image(unit, new, lambda: upload.place(sha256))
