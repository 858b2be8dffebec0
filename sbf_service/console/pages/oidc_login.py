"""Log in with an OpenID Connect provider."""

from functools import partial
from http import HTTPStatus
from typing import Annotated, Final

from fastapi import APIRouter, Query, Request
from starlette.responses import RedirectResponse, Response

from sbf_service.bootstrap import SbfService
from sbf_service.console.oidc import OidcClient, PendingLogin
from sbf_service.console.page import ConsoleRoute
from sbf_service.console.pages.login import start_session
from sbf_service.console.rendering import PREFIX, render
from sbf_service.console.sessions import is_encrypted, safe_target
from sbf_service.domain.oidc_identity import make_principal
from sbf_service.http.auth.authentication import client_address
from sbf_service.http.auth.authorization import CurrentService
from sbf_service.http.auth.caller import RateLimiter
from sbf_service.http.problems import error_status
from sbf_service.log import get_log
from sbf_service.overload import BoundedThreads
from virtcloud.model.errors import BadInput, Forbidden, NotFound, ServiceUnreachable, Unauthenticated, VirtcloudError

CALLBACK: Final = f"{PREFIX}/login/oidc/callback"
PENDING_S: Final = 600
LOGINS: Final = BoundedThreads(8, "logins with OpenID Connect")
"""Threads that wait for the provider, so that logins do not occupy the threads of other calls."""
THREAD_WAIT_S: Final = 2.0
NextQuery = Annotated[str, Query(max_length=2000)]

log = get_log(__name__)
router = APIRouter(prefix=PREFIX, route_class=ConsoleRoute, include_in_schema=False)


@router.get("/login/oidc")
async def begin_login(request: Request, service: CurrentService, next: NextQuery = "") -> Response:  # noqa: A002 - the usual word
    """Send the browser to the provider."""
    return await LOGINS.run(partial(_begin, request, service, safe_target(next)), THREAD_WAIT_S)


def _begin(request: Request, service: SbfService, target: str) -> Response:
    client = _find_client(service)
    pending = PendingLogin.make(target)
    try:
        address = client.make_authorization_url(pending, _callback(request))
    except ServiceUnreachable as error:
        log.warning("oidc_login_failed", why=error, provider=client.keys.issuer)
        return _show_refusal(request, client, target, error)
    response = RedirectResponse(address, HTTPStatus.SEE_OTHER)
    response.set_cookie(
        _cookie(request),
        pending.text,
        max_age=PENDING_S,
        path="/",
        secure=is_encrypted(request),
        httponly=True,
        samesite="lax",
    )
    return response


@router.get("/login/oidc/callback")
async def finish_login(request: Request, service: CurrentService) -> Response:
    """Create a session for the user whom the provider has authenticated.

    The answer is a page, which then loads the requested page. After a redirection, the browser would not send the
    session's cookie (SameSite=Strict), because the chain of redirections begins at the provider.
    """
    response = await LOGINS.run(partial(_finish, request, service), THREAD_WAIT_S)
    response.delete_cookie(_cookie(request), path="/", secure=is_encrypted(request), httponly=True, samesite="lax")
    return response


def _finish(request: Request, service: SbfService) -> Response:
    client, limiter, address = _find_client(service), RateLimiter.of(service), client_address(request.scope)
    limiter.check_address(address)
    try:
        pending = PendingLogin.parse(request.cookies.get(_cookie(request), ""))
        claims = client.read_claims(pending, str(request.url), _callback(request))
        principal = make_principal(claims, client.keys.roles)
    except (Unauthenticated, Forbidden) as error:
        limiter.record_failure(address)
        service.metrics.record_denial(error.slug)
        log.warning("denied", why=error, path=CALLBACK, address=address)
        return _show_refusal(request, client, f"{PREFIX}/", error)
    except (BadInput, ServiceUnreachable) as error:  # not counted as a denial, because the user is not at fault
        log.warning("oidc_login_failed", why=error, provider=client.keys.issuer)
        return _show_refusal(request, client, f"{PREFIX}/", error)
    response = render(request, "reload.html", {"target": safe_target(pending.target)})
    start_session(request, service, principal, response)
    return response


def _show_refusal(request: Request, client: OidcClient, target: str, error: VirtcloudError) -> Response:
    values = {"next": target, "notice": None, "error": str(error), "oidc": client.keys.name, "is_token_wrong": False}
    return render(request, "login.html", values, error_status(error))


def _find_client(service: SbfService) -> OidcClient:
    keys = service.settings.console.oidc
    if keys is None:
        raise NotFound("this SBF has no OpenID Connect provider: log in with a token")
    return OidcClient(keys, service.settings)


def _callback(request: Request) -> str:
    return f"{request.url.scheme}://{request.url.netloc}{CALLBACK}"


def _cookie(request: Request) -> str:
    return "__Host-virtcloud_oidc" if is_encrypted(request) else "virtcloud_oidc"
