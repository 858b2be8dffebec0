"""How long calls take, by route; calls that asked to wait say nothing about that and are left out.

How long the body of a call may be: a longer one is refused before it is read whole.
"""

import time
from collections.abc import Callable
from http import HTTPStatus
from urllib.parse import parse_qs

from starlette.exceptions import HTTPException
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from sbf_service.metrics import ServiceMetrics

NO_ROUTE = "none"
UNFINISHED = 500


class RequestTimingMiddleware:
    """Stands around the application and times every call."""

    def __init__(self, app: ASGIApp, metrics: ServiceMetrics, clock: Callable[[], float] = time.monotonic) -> None:
        """Stand around ``app``; ``clock`` counts seconds."""
        self._app = app
        self._metrics = metrics
        self._clock = clock

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass a call on, and time it."""
        if scope["type"] != "http" or is_long_poll(scope):
            await self._app(scope, receive, send)
            return
        status, begun = UNFINISHED, self._clock()

        async def heard(message: Message) -> None:
            nonlocal status
            status = message.get("status", status)
            await send(message)

        try:
            await self._app(scope, receive, heard)
        finally:
            self._metrics.record_request(method_label(scope), route_template(scope), status, self._clock() - begun)


def is_long_poll(scope: Scope) -> bool:
    """Say whether a call asks for a long poll."""
    return "wait" in parse_qs(scope["query_string"].decode("latin-1"))


def route_template(scope: Scope) -> str:
    """Give a call's template, such as ``/v1/clusters/{key}``: a name in a label would make a series for each."""
    return getattr(scope.get("route"), "path", NO_ROUTE)


def method_label(scope: Scope) -> str:
    """Give a call's method; one that no route has is none of ours, and might be anything."""
    return str(scope["method"]) if "route" in scope else NO_ROUTE


class BodyTooLong(HTTPException):
    """The body is longer than ``most`` bytes; Starlette hands this exception through the parser of bodies."""

    def __init__(self, most: int) -> None:
        """Name the limit."""
        super().__init__(
            HTTPStatus.REQUEST_ENTITY_TOO_LARGE,
            f"body: expected at most {most} bytes, got more; the limit is 'limits.body' in the settings of this SBF",
        )


def declared_length(scope: Scope) -> int:
    """Return the length that a call declares; 0 where it declares none, which is counted as it comes."""
    found = next((value for name, value in scope["headers"] if name == b"content-length"), b"0")
    return int(found) if found.isdigit() else 0


def limit_body(receive: Receive, most: int) -> Receive:
    """Return a channel that raises BodyTooLong once more than ``most`` bytes of a body came."""
    seen = 0

    async def counted() -> Message:
        nonlocal seen
        message = await receive()
        seen += len(message.get("body", b""))
        if seen > most:
            raise BodyTooLong(most)
        return message

    return counted
