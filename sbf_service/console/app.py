"""The console as a part of SBF's application: its pages, its static files, and the redirection of ``/``."""

from http import HTTPStatus
from typing import Any, Final

from fastapi import APIRouter, FastAPI
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import RedirectResponse, Response
from starlette.staticfiles import StaticFiles
from starlette.types import Scope

from sbf_service.console.events import StreamCounts
from sbf_service.console.page import ConsoleRoute, error_page
from sbf_service.console.pages import actions, clusters, elements, live, login, oidc_login, overview, sites
from sbf_service.console.rendering import PREFIX, STATIC_FOLDER, STATIC_PREFIX, make_environment
from sbf_service.console.sessions import CurrentBrowser
from virtcloud.model.errors import NotFound

STATIC_HEADERS: Final = {"cache-control": "public, max-age=31536000, immutable", "x-content-type-options": "nosniff"}
unknown_router = APIRouter(prefix=PREFIX, route_class=ConsoleRoute, include_in_schema=False)


class ImmutableFiles(StaticFiles):
    """Static files. Browsers may store them for a year: each file's URL contains the file's hash."""

    async def get_response(self, path: str, scope: Scope) -> Response:
        """Return a file."""
        response = await super().get_response(path, scope)
        response.headers.update(STATIC_HEADERS)
        return response


def add_console(app: FastAPI) -> FastAPI:
    """Add the console to SBF's application, and return the application."""
    make_environment()
    app.state.console_streams = StreamCounts()
    app.mount(STATIC_PREFIX, ImmutableFiles(directory=STATIC_FOLDER), name="console-static")
    for module in (login, oidc_login, live, actions, overview, sites, elements, clusters):
        app.include_router(module.router)
    app.include_router(unknown_router)
    add_error_pages(app)
    app.add_api_route("/", _go_to_console, include_in_schema=False)
    app.add_api_route(PREFIX, _go_to_console, include_in_schema=False)
    return app


def add_error_pages(app: FastAPI) -> None:
    """Add the handler that answers requests for unknown paths and methods of the console with a page."""
    answer_problem: Any = app.exception_handlers[HTTPException]

    async def answer(request: Request, error: Exception) -> Response:
        status, path = getattr(error, "status_code", None), request.url.path
        if path.startswith(f"{PREFIX}/") and status == HTTPStatus.NOT_FOUND:
            return error_page(request, _make_no_page_error(path.removeprefix(f"{PREFIX}/")))
        if path.startswith(f"{PREFIX}/") and status == HTTPStatus.METHOD_NOT_ALLOWED:
            text = (
                f"the page {path} does not accept the method {request.method}: use the links and forms of the console"
            )
            page = error_page(request, HTTPException(status, text))
            page.headers.update(getattr(error, "headers", None) or {})
            return page
        response: Response = await answer_problem(request, error)
        return response

    app.add_exception_handler(HTTPException, answer)


async def _go_to_console() -> Response:
    return RedirectResponse(f"{PREFIX}/")


@unknown_router.get("/{path:path}")
async def show_unknown(path: str, browser: CurrentBrowser) -> Response:
    """Answer a request for a page that does not exist."""
    del browser
    raise _make_no_page_error(path)


def _make_no_page_error(path: str) -> NotFound:
    return NotFound(f"the console has no page {path!r}: use the links of the menu")
