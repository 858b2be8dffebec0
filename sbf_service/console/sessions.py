"""Sessions of browsers: cookies, the authentication of requests, and the check of forms.

The cookie is HttpOnly and SameSite=Strict, and Secure under TLS. Under TLS, the cookie's name has the prefix
``__Host-``, so no other host of the domain can set the cookie (RFC 6265bis, 4.1.3).
"""

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from functools import partial
from http import HTTPStatus
from typing import Annotated, Final
from urllib.parse import parse_qs

from fastapi import Depends, Request
from fastapi.concurrency import run_in_threadpool
from starlette.exceptions import HTTPException
from starlette.responses import Response

from sbf_service.bootstrap import SbfService
from sbf_service.console.page import LOGIN, SESSION_COOKIE, ForeignForm
from sbf_service.console.rendering import Visitor
from sbf_service.domain.authentication import Principal
from sbf_service.domain.console_sessions import SessionSecret
from sbf_service.domain.rights import Action, is_allowed
from sbf_service.http.auth.authentication import client_address
from sbf_service.http.auth.authorization import CALLER_KEY, CurrentService
from sbf_service.http.auth.caller import Caller, RateLimiter
from sbf_service.store.users.console_sessions import NO_SESSION, ConsoleSession, authenticate_session
from virtcloud.model.errors import BadInput, Unauthenticated

MAX_FORM: Final = 64 << 10
TOO_LONG: Final = f"the form: expected at most {MAX_FORM} bytes, got more: shorten the text"
MAX_FIELDS: Final = 100
FORM_TOKEN: Final = "form_token"  # noqa: S105 - the name of a field
OTHER_SITE: Final = (
    "the form came from another site, so SBF did nothing: expected a form of this console; open the console's page "
    "yourself, and send the form from there"
)


@dataclass(frozen=True, slots=True)
class Browser:
    """The browser of a request: the user as the API's caller, and the session."""

    caller: Caller
    secret: SessionSecret
    expires_at: datetime

    @property
    def principal(self) -> Principal:
        """The user."""
        return self.caller.principal


@dataclass(frozen=True, slots=True)
class Form:
    """The fields of a form."""

    fields: Mapping[str, str]

    def get(self, name: str) -> str:
        """Return a field without surrounding space; "" for a missing field.

        Replace CR LF, which browsers send at the end of a line, by LF.
        """
        return self.fields.get(name, "").strip().replace("\r\n", "\n")


def cookie_name(request: Request) -> str:
    """Return the name of the session's cookie."""
    return f"__Host-{SESSION_COOKIE}" if is_encrypted(request) else SESSION_COOKIE


def is_encrypted(request: Request) -> bool:
    """Return whether the browser used TLS."""
    return request.url.scheme == "https"


def set_session_cookie(request: Request, response: Response, secret: SessionSecret, seconds: int) -> None:
    """Set the cookie of a new session."""
    response.set_cookie(
        cookie_name(request),
        secret.text,
        max_age=seconds,
        path="/",
        secure=is_encrypted(request),
        httponly=True,
        samesite="strict",
    )


def delete_session_cookie(request: Request, response: Response) -> None:
    """Delete the cookie of a session."""
    response.delete_cookie(
        cookie_name(request), path="/", secure=is_encrypted(request), httponly=True, samesite="strict"
    )


def find_secret(request: Request) -> SessionSecret | None:
    """Return the secret of a request's cookie, or None."""
    return SessionSecret.parse(request.cookies.get(cookie_name(request), ""))


def read_session(service: SbfService, secret: SessionSecret) -> ConsoleSession:
    """Return a session. Raise Unauthenticated if the session is not valid."""
    with service.store.read() as unit:
        return authenticate_session(unit, secret)


def make_caller(request: Request, service: SbfService, principal: Principal) -> Caller:
    """Return the `Caller` with which the console's pages call the API's functions for a user."""
    return Caller(principal, client_address(request.scope), service.metrics, RateLimiter.of(service))


async def _authenticate(request: Request, service: CurrentService) -> Browser:
    secret = find_secret(request)
    if secret is None:
        raise Unauthenticated(NO_SESSION)
    session = await run_in_threadpool(partial(read_session, service, secret))
    principal = session.principal
    request.state.visitor = Visitor(
        principal.name,
        principal.role,
        tuple(sorted(principal.sites)),
        secret.form_token,
        is_allowed(principal, Action.READ_ELEMENT),
    )
    caller = request.scope[CALLER_KEY] = make_caller(request, service, principal)  # for the access log
    return Browser(caller, secret, session.expires_at)


CurrentBrowser = Annotated[Browser, Depends(_authenticate)]
"""The type of a page's parameter that receives the browser.

Without a valid session, the page raises Unauthenticated.
"""


async def read_form(request: Request) -> Form:
    """Read a form. If a field occurs several times, the last value counts.

    Raise ForeignForm for a form of another web site, HTTPException for a form above ``MAX_FORM``, and BadInput for a
    form that is not in UTF-8 or has more than ``MAX_FIELDS`` fields.
    """
    check_same_origin(request)
    body = bytearray()
    async for chunk in request.stream():
        body += chunk
        if len(body) > MAX_FORM:
            raise HTTPException(HTTPStatus.REQUEST_ENTITY_TOO_LARGE, TOO_LONG)
    if body.count(b"&") >= MAX_FIELDS:
        raise BadInput(f"the form: expected at most {MAX_FIELDS} fields, got more: send the form of the console's page")
    try:
        fields = parse_qs(body.decode(), keep_blank_values=True, errors="strict")
    except ValueError as error:
        raise BadInput("the form: expected fields in UTF-8, got something else") from error
    return Form({name: values[-1] for name, values in fields.items()})


async def _read_checked_form(request: Request, browser: CurrentBrowser) -> Form:
    form = await read_form(request)
    if not browser.secret.matches(form.get(FORM_TOKEN)):
        raise ForeignForm(
            "the form does not belong to your present session, so SBF did nothing: expected a form that was opened "
            "after your login; open the page again, and send the form from there"
        )
    return form


CheckedForm = Annotated[Form, Depends(_read_checked_form)]
"""The type of a page's parameter that receives a form with the token of the browser's session.

For a form without this token, the page raises ForeignForm.
"""


def check_same_origin(request: Request) -> None:
    """Raise ForeignForm for a form that another web site sent (Fetch Metadata; RFC 6454 for older browsers)."""
    site, origin = request.headers.get("sec-fetch-site"), request.headers.get("origin")
    if site is not None:
        is_own = site in {"same-origin", "none"}
    else:
        is_own = origin is None or origin.partition("://")[2] == request.headers.get("host")
    if not is_own:
        raise ForeignForm(OTHER_SITE)


def safe_target(text: str) -> str:
    """Return ``text`` if it is a path of the console, otherwise the path of the start page. Prevents open redirects."""
    is_own = text.startswith("/console/") and not any(part in text for part in ("//", "\\", "\r", "\n"))
    return text if is_own and not text.startswith(LOGIN) else "/console/"
