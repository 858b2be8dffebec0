"""Entity tags of answers to GET, and conditional GET (RFC 9110, 13.1.2)."""

from collections.abc import Mapping
from hashlib import blake2b
from http import HTTPStatus
from typing import Final

from fastapi import Request, Response

from virtcloud import __version__

ANY_ETAG: Final = "*"
DIGEST_BYTES: Final = 16
JSON: Final = "application/json"
KEPT: Final = ("etag", "link", "cache-control", "vary")
"""The headers that an answer with status 304 repeats from the complete answer (RFC 9110, 15.4.5)."""


def make_etag(version: object) -> str:
    """Return the strong entity tag of a document whose version or digest is ``version``."""
    return f'"{version}"'


def make_wanted_etag(revision: int) -> str:
    """Return the entity tag of a wanted document.

    The tag contains SBF's version: two versions of SBF may compute different documents for the same revision.
    """
    return make_etag(f"{revision}-{__version__}")


def matches(header: str | None, etag: str) -> bool:
    """Return whether ``header`` (``If-None-Match``) contains ``etag`` or ``*`` (weakly, RFC 9110, 13.1.2)."""
    tags = {tag.strip().removeprefix("W/") for tag in (header or "").split(",")}
    return bool(tags & {ANY_ETAG, etag.removeprefix("W/")})


def add_etag(request: Request, response: Response) -> Response:
    """Return a JSON answer with an entity tag, or status 304 if the caller already has this answer.

    The default tag is the digest of the body. An answer that is not JSON or not of status 200 is returned unchanged.
    """
    if response.status_code != HTTPStatus.OK or not response.headers.get("content-type", "").startswith(JSON):
        return response
    if "etag" not in response.headers:
        response.headers["etag"] = make_etag(blake2b(bytes(response.body), digest_size=DIGEST_BYTES).hexdigest())
    if matches(request.headers.get("if-none-match"), response.headers["etag"]):
        return not_modified(response.headers)
    return response


def not_modified(headers: Mapping[str, str]) -> Response:
    """Return an answer with status 304 and those ``headers`` that are in ``KEPT``."""
    return Response(status_code=HTTPStatus.NOT_MODIFIED, headers={key: headers[key] for key in KEPT if key in headers})
