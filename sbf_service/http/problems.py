"""Problem documents (RFC 9457): the answers to errors of virtcloud, FastAPI, Starlette and the database."""

from collections.abc import Sequence
from http import HTTPStatus
from typing import Any, Final

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse, Response
from pydantic_core import ErrorDetails
from sqlalchemy.exc import SQLAlchemyError
from starlette.exceptions import HTTPException
from starlette.types import Scope

from sbf_service.domain.idempotency import NOT_SAFE_TO_REPEAT, SAFE_TO_REPEAT
from sbf_service.log import get_log
from sbf_service.store.connections.database_errors import is_unavailable, make_unavailable
from virtcloud.current_call import work_for
from virtcloud.model.call_context import CallContext
from virtcloud.model.errors import (
    BadInput,
    BeyondLimit,
    Conflict,
    ElementError,
    Forbidden,
    Gone,
    JobUnproven,
    NotFound,
    OtherSpec,
    PreconditionFailed,
    PreconditionRequired,
    Refused,
    ServiceBusy,
    ServiceUnreachable,
    StorageFull,
    TooManyRequests,
    Unauthenticated,
    Unreachable,
    VirtcloudError,
)
from virtcloud.model.validation_errors import explain_validation_error
from virtcloud.model.views import Problem

log = get_log(__name__)

MEDIA_TYPE = "application/problem+json"
URN = "urn:virtcloud:problem:"
TOO_DEEP = "expected a document with fewer nested levels, got too many levels"
NOT_READY = "not-ready"
CALL_KEY = "virtcloud.call"
NOT_IDEMPOTENT: Final = frozenset(
    {"create_token", "create_vpn_profile", "create_ssh_certificate", "renew_vpn_authority"}
)
"""The operations that create something new with each call."""
SHOWN_FAULTS: Final = 100
SLUGS_WITHOUT_ERRORS = ("http", "no-such-method", "no-such-route", NOT_READY)
"""Types of problems that have no exception class."""
EXAMPLES: dict[HTTPStatus, tuple[type[VirtcloudError], str]] = {
    HTTPStatus.UNPROCESSABLE_ENTITY: (BadInput, "spec.guests.0.memory_mb: expected at least 16, got 8"),
    HTTPStatus.UNAUTHORIZED: (Unauthenticated, "this SBF has no such token: check the token and the address of SBF"),
    HTTPStatus.FORBIDDEN: (
        Forbidden,
        (
            "alice (user) may not change the pool of site brno: the action requires a site administrator of brno or an "
            "operator"
        ),
    ),
    HTTPStatus.NOT_FOUND: (NotFound, "cluster demo is not known; list the clusters: virtcloud cluster list"),
    HTTPStatus.CONFLICT: (
        OtherSpec,
        "cluster demo exists and is active, and differs from this request in hosts: choose another key",
    ),
    HTTPStatus.GONE: (Gone, "cluster 7.pbs: attempt 1 has ended: the latest is attempt 2"),
    HTTPStatus.PRECONDITION_FAILED: (PreconditionFailed, "the topology was changed since it was read: read it again"),
    HTTPStatus.PRECONDITION_REQUIRED: (PreconditionRequired, "expected If-Match with the document's ETag, got none"),
    HTTPStatus.REQUEST_ENTITY_TOO_LARGE: (BeyondLimit, "body: expected at most 4194304 bytes, got more"),
    HTTPStatus.TOO_MANY_REQUESTS: (
        TooManyRequests,
        "alice requested clusters too often (limit 60/minute): try again in 7 s",
    ),
    HTTPStatus.SERVICE_UNAVAILABLE: (ServiceUnreachable, "the database does not answer: try again later"),
    HTTPStatus.INSUFFICIENT_STORAGE: (
        StorageFull,
        "the disk of SBF's folder of images is full, or SBF has no access to this folder",
    ),
    HTTPStatus.BAD_GATEWAY: (Refused, 'switch brno-sw: sent "vlan 112"; the device answered "% Invalid input"'),
    HTTPStatus.GATEWAY_TIMEOUT: (Unreachable, "switch brno-sw does not answer; SBF tries again"),
}
"""The most frequent problem of each status, as an example in the OpenAPI document."""
STATUS: tuple[tuple[type[VirtcloudError], HTTPStatus], ...] = (
    (BadInput, HTTPStatus.UNPROCESSABLE_ENTITY),
    (Unauthenticated, HTTPStatus.UNAUTHORIZED),
    (Forbidden, HTTPStatus.FORBIDDEN),
    (NotFound, HTTPStatus.NOT_FOUND),
    (Conflict, HTTPStatus.CONFLICT),
    (Gone, HTTPStatus.GONE),
    (PreconditionFailed, HTTPStatus.PRECONDITION_FAILED),
    (PreconditionRequired, HTTPStatus.PRECONDITION_REQUIRED),
    (TooManyRequests, HTTPStatus.TOO_MANY_REQUESTS),
    (JobUnproven, HTTPStatus.SERVICE_UNAVAILABLE),
    (ServiceUnreachable, HTTPStatus.SERVICE_UNAVAILABLE),
    (StorageFull, HTTPStatus.INSUFFICIENT_STORAGE),
    (Unreachable, HTTPStatus.GATEWAY_TIMEOUT),
    (ElementError, HTTPStatus.BAD_GATEWAY),
)


class BodyTooLong(HTTPException):
    """The body of a call is longer than the limit.

    FastAPI's body parser passes an HTTPException on unchanged.
    """

    def __init__(self, limit: int, setting: str = "limits.body") -> None:
        """Create the error. ``limit`` is in bytes; ``setting`` names the setting with this limit."""
        super().__init__(
            HTTPStatus.REQUEST_ENTITY_TOO_LARGE,
            f"body: expected at most {limit} bytes, got more; the limit is '{setting}' in the settings of this SBF: "
            "raise it, or send less (a topology: one site at a time, with 'virtcloud topology set FILE --site NAME')",
        )


class ProblemResponse(JSONResponse):
    """A response with a problem document."""

    media_type = MEDIA_TYPE


def problem_responses(*statuses: int) -> dict[int | str, dict[str, Any]]:
    """Return the OpenAPI description of the problems that an operation may return."""
    described = [HTTPStatus(status) for status in statuses]
    return {int(status): {"description": status.phrase, "content": _content(status)} for status in described}


def _content(status: HTTPStatus) -> dict[str, Any]:
    kind, detail = EXAMPLES.get(status, (VirtcloudError, "the expectation, the observation and the remedy"))
    example = {"type": URN + kind.slug, "title": status.phrase, "status": int(status), "detail": detail}
    return {MEDIA_TYPE: {"schema": {"$ref": "#/components/schemas/Problem"}, "example": example}}


def add_problem_schema(document: dict[str, Any]) -> None:
    """Add the schema of problem documents to an OpenAPI document."""
    schema = Problem.model_json_schema()
    slugs = {*_slugs(VirtcloudError), *SLUGS_WITHOUT_ERRORS}
    schema["properties"]["type"] |= {"enum": sorted(URN + slug for slug in slugs)}
    document.setdefault("components", {}).setdefault("schemas", {})["Problem"] = schema


def _slugs(root: type[VirtcloudError]) -> set[str]:
    return {root.slug}.union(*(_slugs(kind) for kind in root.__subclasses__()))


def problem_response(status: HTTPStatus, slug: str, detail: str) -> ProblemResponse:
    """Return a response with a problem document."""
    document = Problem(type=URN + slug, title=status.phrase, status=status, detail=detail)
    return ProblemResponse(document.model_dump(), status_code=status)


def error_status(error: VirtcloudError) -> HTTPStatus:
    """Return the status of an error."""
    return next((status for kind, status in STATUS if isinstance(error, kind)), HTTPStatus.INTERNAL_SERVER_ERROR)


def advise_on_repetition(scope: Scope, detail: str) -> str:
    """Return ``detail``, without the advice to repeat the call if the call creates something each time."""
    is_repeatable = getattr(scope.get("route"), "name", "") not in NOT_IDEMPOTENT
    return detail if is_repeatable else detail.replace(SAFE_TO_REPEAT, NOT_SAFE_TO_REPEAT)


def error_response(error: VirtcloudError, scope: Scope | None = None) -> ProblemResponse:
    """Return the response to an error of the call with this ``scope``.

    The response contains ``Retry-After`` (in seconds) for JobUnproven, TooManyRequests and ServiceBusy, and
    ``WWW-Authenticate`` for Unauthenticated.
    """
    detail = str(error) if scope is None else advise_on_repetition(scope, str(error))
    response = problem_response(error_status(error), error.slug, detail)
    if isinstance(error, Unauthenticated):
        response.headers["www-authenticate"] = "Bearer"
    if isinstance(error, JobUnproven):
        response.headers["retry-after"] = "1"
    if isinstance(error, TooManyRequests | ServiceBusy):
        response.headers["retry-after"] = str(error.retry_after_s)
    return response


def body_too_long_response(error: HTTPException) -> ProblemResponse:
    """Return the response to a body that is too long, with which SBF closes the connection.

    SBF does not read the rest of the body.
    """
    response = problem_response(HTTPStatus.REQUEST_ENTITY_TOO_LARGE, BeyondLimit.slug, str(error.detail))
    response.headers["connection"] = "close"
    return response


def install_error_handlers(app: FastAPI) -> None:
    """Answer every error of an application with a problem document."""
    app.add_exception_handler(VirtcloudError, _answer_error)
    app.add_exception_handler(RequestValidationError, _answer_malformed_request)
    app.add_exception_handler(HTTPException, _answer_framework_error)
    app.add_exception_handler(SQLAlchemyError, _answer_database_error)
    app.add_exception_handler(Exception, _answer_unexpected_error)


async def _answer_error(request: Request, error: Exception) -> Response:
    return (
        error_response(error, request.scope)
        if isinstance(error, VirtcloudError)
        else await _answer_unexpected_error(request, error)
    )


async def _answer_malformed_request(_request: Request, error: Exception) -> Response:
    faults = error.errors() if isinstance(error, RequestValidationError) else []
    lines = [_format_fault(fault) for fault in faults[:SHOWN_FAULTS]]
    if len(faults) > SHOWN_FAULTS:
        lines.append(f"and {len(faults) - SHOWN_FAULTS} more")
    return problem_response(HTTPStatus.UNPROCESSABLE_ENTITY, BadInput.slug, "\n".join(lines))


async def _answer_framework_error(request: Request, error: Exception) -> Response:
    status = HTTPStatus(error.status_code) if isinstance(error, HTTPException) else HTTPStatus.INTERNAL_SERVER_ERROR
    if isinstance(error, BodyTooLong):
        return body_too_long_response(error)
    if status is HTTPStatus.BAD_REQUEST:  # FastAPI's status for a body that is binary or too deeply nested
        deep = isinstance(error.__cause__, RecursionError)
        return error_response(BadInput(f"body: {TOO_DEEP if deep else 'not JSON: expected UTF-8, got something else'}"))
    slug = {HTTPStatus.NOT_FOUND: "no-such-route", HTTPStatus.METHOD_NOT_ALLOWED: "no-such-method"}.get(status, "http")
    response = problem_response(
        status, slug, f"{request.method} {request.url.path}: {status.phrase.lower()}; see /docs"
    )
    response.headers.update(getattr(error, "headers", None) or {})
    return response


async def _answer_database_error(request: Request, error: Exception) -> Response:
    if not isinstance(error, SQLAlchemyError) or not is_unavailable(error):
        return await _answer_unexpected_error(request, error)
    log.fault("database_fault", error, path=request.url.path)
    detail = advise_on_repetition(request.scope, str(make_unavailable(error)))
    return problem_response(HTTPStatus.SERVICE_UNAVAILABLE, ServiceUnreachable.slug, detail)


async def _answer_unexpected_error(request: Request, error: Exception) -> Response:
    """Answer an error that no other handler answers. Starlette calls this handler outside of all middleware."""
    call: CallContext | None = request.scope.get(CALL_KEY)
    with work_for(call):
        log.fault("request_fault", error, method=request.method, path=request.url.path)
    where = f"SBF's log, request ID {call.request_id}" if call else "SBF's log"
    text = advise_on_repetition(request.scope, f"internal error in SBF: see {where}; {SAFE_TO_REPEAT}")
    return problem_response(HTTPStatus.INTERNAL_SERVER_ERROR, VirtcloudError.slug, text)


def _format_fault(fault: ErrorDetails) -> str:
    if fault["type"] == "json_invalid":
        return f"body: not JSON: {fault['ctx']['error']}"
    path = ".".join(str(part) for part in _path_in_document(fault["loc"]))
    return f"{path}: {explain_validation_error(fault)}" if path else explain_validation_error(fault)


def _path_in_document(location: Sequence[int | str]) -> Sequence[int | str]:
    return location[1:] if location[:1] == ("body",) else location
