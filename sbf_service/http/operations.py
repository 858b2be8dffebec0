"""Common parts of operations: route class, parameters of long polls, IDs of clusters, and preconditions."""

import hashlib
import inspect
import re
from collections.abc import Callable, Coroutine
from typing import Annotated, Any

from fastapi import Header, Query, Request, Response
from fastapi.routing import APIRoute

from sbf_service.http.entity_tags import ANY_ETAG, add_etag, make_etag
from virtcloud.model.document import Document
from virtcloud.model.errors import BadInput, PreconditionFailed, PreconditionRequired

MAX_WAIT_S = 60
CLUSTER_ID = "^[0-9a-z-]{1,63}$"

After = Annotated[int | None, Query(description="Answer when the resource is newer than this version.")]
Wait = Annotated[
    float, Query(ge=0, le=MAX_WAIT_S, description="The maximum time in seconds to wait for a newer version.")
]
IfMatch = Annotated[
    str | None,
    Header(
        alias="If-Match",
        description="The `ETag` of the document that was read before the change; `*` replaces any version. Not needed "
        "if no document exists yet, or if the new document equals the current document.",
    ),
]
OptionalIfMatch = Annotated[
    str | None,
    Header(
        alias="If-Match",
        description="The `ETag` of the document that was read before the change. Without this header, any version is "
        "replaced.",
    ),
]
IfNoneMatch = Annotated[
    str | None,
    Header(alias="If-None-Match", description="The `ETag` of a document that the caller has."),
]


def parse_cluster_id(text: str | None) -> str | None:
    """Return ``text`` if it is a cluster ID or None. Raise BadInput for any other text.

    This function checks values that FastAPI does not check: parameters of WebSockets, and fields of forms.
    """
    if text is not None and not re.fullmatch(CLUSTER_ID, text):
        raise BadInput(f"id: expected the ID of a cluster, with digits, letters a to z and '-', got {text!r:.80}")
    return text


class Operation(APIRoute):
    """A route whose operation ID is the name of its function.

    The function's docstring is the summary (first paragraph) and the description.
    """

    def __init__(self, path: str, endpoint: Callable[..., Any], **options: Any) -> None:  # noqa: ANN401 - options of FastAPI
        """Create the route. An operation ID or summary in ``options`` takes precedence."""
        summary, _, description = (inspect.getdoc(endpoint) or "").partition("\n\n")
        options["operation_id"] = options.get("operation_id") or endpoint.__name__
        options["summary"] = options.get("summary") or " ".join(summary.split()).rstrip(".")
        super().__init__(path, endpoint, **options)
        self.description = description

    def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
        """Return a handler that adds an entity tag to answers to GET.

        If the caller already has the answer, the handler answers 304 without a body.
        """
        handler = super().get_route_handler()
        if "GET" not in (self.methods or ()):
            return handler

        async def answer(request: Request) -> Response:
            return add_etag(request, await handler(request))

        return answer


def hash_document(document: Document) -> str:
    """Return a hash of a document, which serves as the document's version."""
    return hashlib.sha256(document.model_dump_json().encode()).hexdigest()[:16]


def check_if_match(if_match: str | None, version: object, document: str) -> None:
    """Check the precondition of a call that replaces a document (RFC 9110, 13.1.1; RFC 6585, 3).

    Raise PreconditionRequired if the header If-Match is missing. Raise PreconditionFailed if the header contains
    neither the entity tag of ``version`` nor ``*``. ``document`` names the document in messages.
    """
    if if_match is None:
        raise PreconditionRequired(
            f"{document} would be replaced: expected If-Match with the version that was read before the change, got "
            f"none; the current version is {version}. Read {document}, apply the change, and send the version that was "
            "read ('*' replaces any version)"
        )
    tags = {tag.strip() for tag in if_match.split(",")}
    if not tags & {ANY_ETAG, make_etag(version)}:
        raise PreconditionFailed(
            f"{document} is at version {version}, but the change was made to version "
            f"{if_match.replace(chr(34), '')}: another call changed {document} in between; nothing was replaced. Read "
            f"{document} again, apply the change, and try again"
        )
