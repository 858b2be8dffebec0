"""How long calls take, by route; calls that asked to wait say nothing about that and are left out."""

import time
from collections.abc import Callable
from urllib.parse import parse_qs

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from sbf_service.meters import Meters

NO_ROUTE = "none"
UNFINISHED = 500


class Timed:
    """Stands around the application and times every call."""

    def __init__(self, app: ASGIApp, meters: Meters, clock: Callable[[], float] = time.monotonic) -> None:
        """Stand around ``app``; ``clock`` counts seconds."""
        self._app = app
        self._meters = meters
        self._clock = clock

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass a call on, and time it."""
        if scope["type"] != "http" or waits(scope):
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
            self._meters.answered(method_of(scope), route_of(scope), status, self._clock() - begun)


def waits(scope: Scope) -> bool:
    """Say whether a call asks for a long poll."""
    return "wait" in parse_qs(scope["query_string"].decode("latin-1"))


def route_of(scope: Scope) -> str:
    """Give a call's template, such as ``/v1/clusters/{key}``: a name in a label would make a series for each."""
    return getattr(scope.get("route"), "path", NO_ROUTE)


def method_of(scope: Scope) -> str:
    """Give a call's method; one that no route has is none of ours, and might be anything."""
    return str(scope["method"]) if "route" in scope else NO_ROUTE
