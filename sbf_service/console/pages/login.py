"""Log in with a token, log out, and choose a theme."""

import secrets
from datetime import timedelta
from http import HTTPStatus
from typing import Annotated, Final

from fastapi import APIRouter, Query, Request
from fastapi.concurrency import run_in_threadpool
from starlette.responses import RedirectResponse, Response

from sbf_service.bootstrap import SbfService
from sbf_service.console.page import LOGIN, ConsoleRoute
from sbf_service.console.rendering import PREFIX, THEME_COOKIE, THEMES, render
from sbf_service.console.sessions import (
    CheckedForm,
    CurrentBrowser,
    Form,
    delete_session_cookie,
    is_encrypted,
    read_form,
    safe_target,
    set_session_cookie,
)
from sbf_service.domain.authentication import Principal, Token
from sbf_service.domain.console_sessions import SessionSecret, check_person
from sbf_service.http.auth.authentication import client_address
from sbf_service.http.auth.authorization import CurrentService
from sbf_service.http.auth.caller import RateLimiter
from sbf_service.log import get_log
from sbf_service.store.users.console_sessions import create_session, end_session
from virtcloud.model.errors import Forbidden, TooManyRequests, Unauthenticated, VirtcloudError

REASONS: Final = {
    "ended": "Your session has ended, or your token was revoked or has expired. Log in again.",
    "needed": "Log in to see this page.",
    "out": "You have logged out.",
}
MALFORMED: Final = (
    "this is not a complete token: expected vc_, eight characters, _ and 43 characters, as 'virtcloud token create' "
    "prints it; paste the whole token"
)
YEAR_S: Final = 366 * 86400

log = get_log(__name__)
router = APIRouter(prefix=PREFIX, route_class=ConsoleRoute, include_in_schema=False)

ReasonQuery = Annotated[str, Query()]
NextQuery = Annotated[str, Query(max_length=2000)]


@router.get("/login")
def show_login(
    request: Request,
    service: CurrentService,
    reason: ReasonQuery = "",
    next: NextQuery = "",  # noqa: A002 - the usual word
) -> Response:
    """Show the form for a token."""
    return _show_form(request, service, safe_target(next), REASONS.get(reason))


@router.post("/login")
async def log_in(request: Request, service: CurrentService) -> Response:
    """Create a session for the holder of a token."""
    form = await read_form(request)
    try:
        principal = await run_in_threadpool(_find_principal, service, form, client_address(request.scope))
        check_person(principal)
    except (Unauthenticated, Forbidden, TooManyRequests) as error:
        service.metrics.record_denial(error.slug)
        log.warning("denied", why=error, path=LOGIN, address=client_address(request.scope))
        return _show_form(request, service, safe_target(form.get("next")), None, error)
    response = RedirectResponse(safe_target(form.get("next")), HTTPStatus.SEE_OTHER)
    await run_in_threadpool(start_session, request, service, principal, response)
    return response


def start_session(request: Request, service: SbfService, principal: Principal, response: Response) -> SessionSecret:
    """Create a session, and set its cookie in ``response``."""
    seconds = service.settings.console.session
    with service.store.change_row(who=principal.who) as unit:
        secret, _ = create_session(unit, principal, timedelta(seconds=seconds), secrets.token_bytes)
    set_session_cookie(request, response, secret, int(seconds))
    log.info("console_login", who=principal.who, role=principal.role, token=principal.token or "none")
    return secret


def _find_principal(service: SbfService, form: Form, address: str) -> Principal:
    limiter = RateLimiter.of(service)
    limiter.check_address(address)
    try:
        return service.token_cache.authenticate(_parse_token(form.get("token")))
    except Unauthenticated:
        limiter.record_failure(address)
        raise


def _parse_token(text: str) -> Token:
    token = Token.parse(text)
    if token is None:
        raise Unauthenticated(MALFORMED)
    return token


def _show_form(
    request: Request, service: SbfService, target: str, notice: str | None, error: VirtcloudError | None = None
) -> Response:
    statuses = {Forbidden: HTTPStatus.FORBIDDEN, TooManyRequests: HTTPStatus.TOO_MANY_REQUESTS}
    status = HTTPStatus.OK if error is None else statuses.get(type(error), HTTPStatus.UNAUTHORIZED)
    oidc = service.settings.console.oidc
    values = {
        "next": target,
        "notice": notice,
        "error": None if error is None else str(error),
        "oidc": None if oidc is None else oidc.name,
        "is_token_wrong": error is not None,
    }
    return render(request, "login.html", values, status)


@router.post("/logout")
async def log_out(request: Request, service: CurrentService, browser: CurrentBrowser, form: CheckedForm) -> Response:
    """End the session."""
    del form
    await run_in_threadpool(_end_session, service, browser)
    response = RedirectResponse(f"{LOGIN}?reason=out", HTTPStatus.SEE_OTHER)
    delete_session_cookie(request, response)
    return response


def _end_session(service: SbfService, browser: CurrentBrowser) -> None:
    with service.store.change_row(who=browser.principal.who) as unit:
        end_session(unit, browser.secret)
    log.info("console_logout", who=browser.principal.who)


@router.post("/theme")
async def choose_theme(request: Request) -> Response:
    """Store the reader's theme in a cookie. A session is not required."""
    form = await read_form(request)
    theme = form.get("theme")
    response = RedirectResponse(safe_target(form.get("here")) if form.get("here") else LOGIN, HTTPStatus.SEE_OTHER)
    if theme in THEMES:
        response.set_cookie(
            THEME_COOKIE,
            theme,
            max_age=YEAR_S,
            path=PREFIX,
            secure=is_encrypted(request),
            httponly=True,
            samesite="lax",
        )
    return response
