"""ASGI middleware around the application."""

import json
import time
from asyncio import CancelledError
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final
from urllib.parse import parse_qs

from starlette.datastructures import MutableHeaders
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from sbf_service.change_feed import ChangeFeed
from sbf_service.domain.idempotency import SAFE_TO_REPEAT
from sbf_service.http.problems import MEDIA_TYPE, BodyTooLong, error_response
from sbf_service.http.version_0_1 import rewrite_answer, rewrite_problem
from sbf_service.log import get_log
from sbf_service.metrics import ServiceMetrics
from virtcloud.model.errors import ServiceStopping

NO_ROUTE: Final = "none"
UNFINISHED: Final = 500
"""Status recorded for a call that ended without an answer."""
VERSION_0_1: Final = b"python-httpx/"
"""The start of the header ``User-Agent`` (RFC 9110, 10.1.5) of clients of version 0.1, which name only their HTTP
library.
"""
JSON: Final = "application/json"
STOPPING: Final = (
    f"this SBF is stopping, and ended the call before the call was finished: try again in {{}} s; {SAFE_TO_REPEAT}"
)
RETRY_AFTER_S: Final = 1
log = get_log(__name__)


class RequestTimingMiddleware:
    """Records the duration of calls by method, route and status, except for long polls and streams of events."""

    def __init__(self, app: ASGIApp, metrics: ServiceMetrics, clock: Callable[[], float] = time.monotonic) -> None:
        """Wrap ``app``; ``clock`` returns seconds."""
        self._app = app
        self._metrics = metrics
        self._clock = clock

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Process a call, and record its duration."""
        if scope["type"] != "http" or is_long_poll(scope):
            await self._app(scope, receive, send)
            return
        status, start, is_stream = UNFINISHED, self._clock(), False

        async def record_status(message: Message) -> None:
            nonlocal status, is_stream
            status = message.get("status", status)
            is_stream = is_stream or _is_event_stream(message)
            await send(message)

        try:
            await self._app(scope, receive, record_status)
        finally:
            if not is_stream:
                self._metrics.record_request(method_label(scope), route_template(scope), status, self._clock() - start)


def _is_event_stream(message: Message) -> bool:
    return message["type"] == "http.response.start" and _media_type(message) == "text/event-stream"


def is_long_poll(scope: Scope) -> bool:
    """Return whether a call has the query parameter ``wait``, even ``wait=0``."""
    return "wait" in parse_qs(scope["query_string"].decode("latin-1"))


def route_template(scope: Scope) -> str:
    """Return the template of a call's route, such as ``/v1/clusters/{key}``.

    The path cannot be a label of the metrics: each path would create a time series.
    """
    return getattr(scope.get("route"), "path", NO_ROUTE)


def method_label(scope: Scope) -> str:
    """Return a call's method, or ``none`` for a call without a route: the method of such a call may be any text."""
    return str(scope["method"]) if "route" in scope else NO_ROUTE


@dataclass(frozen=True, slots=True)
class Version01Middleware:
    """Rewrites answers to clients of version 0.1 (:mod:`sbf_service.http.version_0_1`)."""

    app: ASGIApp

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Process a call, and rewrite the answer if the client is of version 0.1."""
        if scope["type"] == "http" and _is_version_0_1(scope):
            await self.app(scope, receive, _AnswerRewriter(scope, send))
        else:
            await self.app(scope, receive, send)


def _is_version_0_1(scope: Scope) -> bool:
    return any(name == b"user-agent" and value.startswith(VERSION_0_1) for name, value in scope["headers"])


class _AnswerRewriter:
    def __init__(self, scope: Scope, send: Send) -> None:
        self._scope, self._send = scope, send
        self._start: Message | None = None
        self._body = bytearray()

    async def __call__(self, message: Message) -> None:
        if message["type"] == "http.response.start" and _media_type(message) in {JSON, MEDIA_TYPE}:
            self._start = message
        elif message["type"] == "http.response.body" and self._start is not None:
            self._body += message.get("body", b"")
            if not message.get("more_body", False):
                await self._finish(self._start)
        else:
            await self._send(message)

    async def _finish(self, start: Message) -> None:
        body = self._rewrite(start) if self._body else b""  # an answer with status 204 has no body
        if body:
            MutableHeaders(scope=start)["content-length"] = str(len(body))
        await self._send(start)
        await self._send({"type": "http.response.body", "body": body})

    def _rewrite(self, start: Message) -> bytes:
        answer = json.loads(self._body)
        if _media_type(start) == MEDIA_TYPE:
            rewritten = rewrite_problem(answer)
        else:
            operation = str(getattr(self._scope.get("route"), "operation_id", None))
            rewritten = rewrite_answer(operation, answer)
        return json.dumps(rewritten, ensure_ascii=False, separators=(",", ":")).encode()


@dataclass(frozen=True, slots=True)
class StopMiddleware:
    """Answers 503 for a call that the server cancels because the service stops.

    For a WebSocket, or if the answer has begun, the server closes the connection instead.
    """

    app: ASGIApp
    change_feed: ChangeFeed

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Process a call. Answer 503 if the server cancels the call because the service stops."""
        started = False

        async def record_start(message: Message) -> None:
            nonlocal started
            started = True
            await send(message)

        try:
            await self.app(scope, receive, record_start)
        except CancelledError:
            if not self.change_feed.closed:
                raise
            log.warning("call_cancelled", path=scope["path"], why="the service stops")
            if scope["type"] == "http" and not started:
                error = ServiceStopping(STOPPING.format(RETRY_AFTER_S), RETRY_AFTER_S)
                await error_response(error, scope)(scope, receive, send)


def _media_type(start: Message) -> str:
    return MutableHeaders(scope=start).get("content-type", "").partition(";")[0]


def declared_length(scope: Scope) -> int:
    """Return a call's Content-Length in bytes; 0 without a valid value."""
    value = next((value for name, value in scope["headers"] if name == b"content-length"), b"0")
    return int(value) if value.isdigit() else 0


def limit_body(receive: Receive, limit: int, setting: str) -> Receive:
    """Return an ASGI channel that raises BodyTooLong for a body of more than ``limit`` bytes.

    ``setting`` names the limit in the error message.
    """
    received = 0

    async def receive_limited() -> Message:
        nonlocal received
        message = await receive()
        received += len(message.get("body", b""))
        if received > limit:
            raise BodyTooLong(limit, setting)
        return message

    return receive_limited
