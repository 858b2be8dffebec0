"""Calls about the catalogue of images."""

from collections.abc import Iterable, Iterator

from virtcloud.client.calls import DEVICE_S, PAGE_SIZE, SbfCalls, content_query, flag_query, validated
from virtcloud.model.image import CatalogueImage, ImageCheck, ImageContent, ImageRequest, ImageShares
from virtcloud.model.values import Name, UserName


class ImageCalls(SbfCalls):
    """Calls about images.

    The calls about one existing image raise NotFound if SBF has no image with this name, or if the caller may not use
    the image. Each call raises Forbidden if the caller lacks the right to this call.
    """

    def images(self) -> list[CatalogueImage]:
        """Return the images that the caller may use, sorted by name."""
        return self._documents(CatalogueImage, self._connection.send("GET", "/v1/images"))

    def image_pages(self, *, owner: str | None = None, size: int = PAGE_SIZE) -> Iterator[list[CatalogueImage]]:
        """Yield the images that the caller may use, sorted by name, in pages of ``size``."""
        return self._pages(CatalogueImage, "/v1/images", {"owner": owner}, size)

    def image(self, name: str) -> CatalogueImage:
        """Return an image."""
        return self._document(CatalogueImage, self._connection.send("GET", _path(name)))

    def add_image(
        self, name: str, content: ImageContent, *, url: str | None = None, file: str | None = None
    ) -> CatalogueImage:
        """Add an image. Hosts fetch the image's file from ``url``, or read ``file`` in their folder of images.

        Idempotent.

        Raise BadInput if both or neither of ``url`` and ``file`` are given, or if the given value is invalid. Raise
        NameTaken if another image has the name. Raise NotAdmitted if the name is reserved.
        """
        request = validated(ImageRequest, **content.model_dump(), url=url, file=file)
        return self._document(CatalogueImage, self._connection.send("PUT", _path(name), request))

    def check_upload(self, name: str, content: ImageContent) -> CatalogueImage | None:
        """Return the existing image with this content, or None if SBF would accept the upload.

        Raise the errors of :meth:`upload_image`.
        """
        query = {**content_query(content), **flag_query(dry_run=True)}
        answer = self._connection.send("PUT", f"{_path(name)}/content", query=query)
        return None if answer.content == b"null" else self._document(CatalogueImage, answer)

    def upload_image(self, name: str, content: ImageContent, data: Iterable[bytes]) -> CatalogueImage:
        """Add an image and upload its file. ``data`` yields the bytes of the file. Idempotent.

        Raise NameTaken if another image has the name. Raise NotAdmitted if the name is reserved. Raise QuotaExceeded or
        BeyondLimit if the file is too large. Raise StorageFull if SBF's disk is full. Raise BadInput if the file
        differs from ``content``.
        """
        path, query = f"{_path(name)}/content", content_query(content)
        return self._document(CatalogueImage, self._connection.upload(path, data, content.size, query))

    def verify_image(self, name: str) -> ImageCheck:
        """Request that SBF reads the file of an uploaded image again.

        Return whether the file's checksum is correct.
        """
        return self._document(ImageCheck, self._connection.send("POST", f"{_path(name)}/verify", wait=DEVICE_S))

    def share_image(
        self, name: str, add: Iterable[str] = (), remove: Iterable[str] = (), *, everybody: bool | None = None
    ) -> CatalogueImage:
        """Change who may use an image. Idempotent. Clusters that already use the image are not affected.

        Raise BadInput for an invalid user name.
        """
        added, removed = tuple(map(UserName, add)), tuple(map(UserName, remove))
        shares = validated(ImageShares, add=added, remove=removed, everybody=everybody)
        return self._document(CatalogueImage, self._connection.send("POST", f"{_path(name)}/shares", shares))

    def certify_image(self, name: str, site: str) -> CatalogueImage:
        """Certify an image for a site, as the site's administrator. Idempotent. Raise NotFound for an unknown site."""
        path = f"{_path(name)}/certifications/{Name(site)}"
        return self._document(CatalogueImage, self._connection.send("PUT", path))

    def revoke_certification(self, name: str, site: str) -> CatalogueImage:
        """Revoke the certification of an image for a site. Idempotent."""
        path = f"{_path(name)}/certifications/{Name(site)}"
        return self._document(CatalogueImage, self._connection.send("DELETE", path))

    def remove_image(self, name: str) -> CatalogueImage:
        """Remove an image from the catalogue. SBF then removes the image's file, unless another image uses the file.

        Raise Conflict if a running cluster uses the image. Raise StorageFull if the image is removed, but SBF cannot
        remove the file.
        """
        return self._document(CatalogueImage, self._connection.send("DELETE", _path(name)))


def _path(name: str) -> str:
    return f"/v1/images/{Name(name)}"
