"""The route class of pages: an error becomes a page that names the remedy.

A page never answers with a problem document. A reader without a valid session is sent to the login page.
"""

from collections.abc import Callable, Coroutine
from http import HTTPStatus
from typing import Any, Final
from urllib.parse import quote

from fastapi.exceptions import RequestValidationError
from fastapi.routing import APIRoute
from pydantic import ValidationError
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import RedirectResponse, Response

from sbf_service.console.rendering import HEADERS, PREFIX, render
from sbf_service.http.problems import error_status
from sbf_service.log import get_log
from sbf_service.store.connections.database_errors import UNAVAILABLE_ERRORS, make_unavailable
from virtcloud.model.errors import BadInput, Forbidden, Unauthenticated, VirtcloudError
from virtcloud.model.validation_errors import explain_validation_error, list_validation_errors

LOGIN: Final = f"{PREFIX}/login"
SESSION_COOKIE: Final = "virtcloud_session"
"""The name of the session's cookie. With TLS, the name has the additional prefix ``__Host-``."""
HTMX_REQUEST: Final = "hx-request"
EXPLANATIONS: Final = {
    HTTPStatus.FORBIDDEN: "You may not do this",
    HTTPStatus.NOT_FOUND: "Not found",
    HTTPStatus.CONFLICT: "This is not possible now",
    HTTPStatus.GONE: "This has ended",
    HTTPStatus.REQUEST_ENTITY_TOO_LARGE: "The request is too long",
    HTTPStatus.UNPROCESSABLE_ENTITY: "The request is not valid",
    HTTPStatus.TOO_MANY_REQUESTS: "Too many requests",
    HTTPStatus.SERVICE_UNAVAILABLE: "SBF is not ready",
}
"""The headings of error pages. The error's message with its remedy is below the heading."""
log = get_log(__name__)

Handler = Callable[[Request], Coroutine[Any, Any, Response]]


class ForeignForm(Forbidden):
    """The form came from another web site, or belongs to another session.

    The error page of any other Forbidden error advises the reader to ask for a right. This reader lacks no right.
    """


class ConsoleRoute(APIRoute):
    """A route that answers an error with an error page."""

    def get_route_handler(self) -> Handler:
        """Return the handler, which translates errors."""
        handler = super().get_route_handler()

        async def answer(request: Request) -> Response:
            try:
                response = await handler(request)
            except Unauthenticated as error:
                return _ask_for_login(request, error)
            except (
                VirtcloudError,
                ValidationError,
                RequestValidationError,
                HTTPException,
                *UNAVAILABLE_ERRORS,
            ) as error:
                return error_page(request, error)
            except Exception as error:  # noqa: BLE001 - the reader gets an error page, and the log contains the error
                log.fault("page_fault", error, path=request.url.path)
                message = "internal error in SBF: an operator finds the error in SBF's log"
                return error_page(request, VirtcloudError(message))
            for name, value in HEADERS.items():
                response.headers.setdefault(name, value)
            return response

        return answer


def _ask_for_login(request: Request, error: Unauthenticated) -> Response:
    """Send the reader to the login page.

    After a form or a request for a part of a page, the login leads to the start page; otherwise, to the requested page.
    After a link on another web site, the browser sends no cookie (SameSite=Strict). SBF then answers with a page that
    reloads itself, which sends the cookie.
    """
    if request.headers.get("sec-fetch-site") == "cross-site" and request.method == "GET":
        return render(request, "reload.html", {})
    reason = "ended" if any(name.endswith(SESSION_COOKIE) for name in request.cookies) else "needed"
    log.info("console_login_needed", why=error, path=request.url.path)
    if HTMX_REQUEST in request.headers:
        return Response(headers={**HEADERS, "hx-redirect": f"{LOGIN}?reason={reason}"})
    target = request.url.path + (f"?{request.url.query}" if request.url.query else "")
    query = f"&next={quote(target, safe='')}" if request.method == "GET" else ""
    return RedirectResponse(f"{LOGIN}?reason={reason}{query}", HTTPStatus.SEE_OTHER, HEADERS)


def error_page(request: Request, error: Exception) -> Response:
    """Return the page of an error. The page contains the expectation, the observation and the remedy."""
    known = _translate(error)
    status = HTTPStatus(error.status_code) if isinstance(error, HTTPException) else error_status(known)
    if status >= HTTPStatus.INTERNAL_SERVER_ERROR:
        log.warning("page_not_shown", why=known, path=request.url.path)
    values = {
        "title": EXPLANATIONS.get(status, "Something went wrong"),
        "message": str(known),
        "status": int(status),
        "lacks_right": isinstance(known, Forbidden) and not isinstance(known, ForeignForm),
        "done": None,
    }
    return render(request, "error.html", values, status)


def _translate(error: Exception) -> VirtcloudError:
    if isinstance(error, VirtcloudError):
        return error
    if isinstance(error, ValidationError):
        return BadInput("\n".join(map(explain_validation_error, list_validation_errors(error))))
    if isinstance(error, RequestValidationError):
        return BadInput("\n".join(f"{fault['loc'][-1]}: {explain_validation_error(fault)}" for fault in error.errors()))
    if isinstance(error, HTTPException):
        return BadInput(str(error.detail))
    return make_unavailable(error)
