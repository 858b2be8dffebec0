"""ASGI middleware that assigns a request ID to each call, and writes the access log.

A client may send its request ID in the header ``X-Request-ID``; SBF replaces an invalid ID. The answer contains the ID
in this header.
"""

import time
from contextlib import AbstractContextManager
from dataclasses import dataclass
from uuid import uuid4

from starlette.datastructures import Headers, MutableHeaders
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from sbf_service.http.auth.authorization import CALLER_KEY
from sbf_service.http.middleware import route_template
from sbf_service.http.problems import CALL_KEY
from sbf_service.log import get_log
from virtcloud.current_call import work_for
from virtcloud.model.call_context import REQUEST_ID_HEADER, TRACE_HEADER, CallContext, RequestId, TraceParent
from virtcloud.tracing import NO_SPAN, Span, current_traceparent, span

READING_METHODS = frozenset({"GET", "HEAD", "OPTIONS"})
FIRST_SERVER_ERROR = 500
log = get_log(__name__)


@dataclass(frozen=True, slots=True)
class RequestIdMiddleware:
    """Sets the context of each call, and logs each call that may change something or that fails in SBF."""

    app: ASGIApp

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Process a call with its request ID."""
        if scope["type"] not in {"http", "websocket"}:
            await self.app(scope, receive, send)
            return
        call = scope[CALL_KEY] = read_call_context(Headers(scope=scope))
        status, start = FIRST_SERVER_ERROR, time.monotonic()

        async def send_with_id(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
                MutableHeaders(scope=message)[REQUEST_ID_HEADER] = call.request_id
            await send(message)

        with _trace(scope, call) as started, work_for(_continue_trace(call)):
            try:
                await self.app(scope, receive, send_with_id)
            finally:
                started.describe(f"{scope.get('method', 'WS')} {route_template(scope)}", status=status)
                _log_call(scope, status, time.monotonic() - start)


def _trace(scope: Scope, call: CallContext) -> AbstractContextManager[Span]:
    """Return the call's span. A reading call is traced only if the client sends ``traceparent``."""
    if call.traceparent is None and scope.get("method", "GET") in READING_METHODS:
        return NO_SPAN
    return span("call", parent=call.traceparent, request=call.request_id)


def _continue_trace(call: CallContext) -> CallContext:
    return call.model_copy(update={"traceparent": current_traceparent() or call.traceparent})


def read_call_context(headers: Headers) -> CallContext:
    """Return the context in the headers of a call, with a new request ID instead of a missing or invalid ID."""
    given, trace = headers.get(REQUEST_ID_HEADER, ""), headers.get(TRACE_HEADER, "")
    return CallContext(
        request_id=given if RequestId.matches(given) else uuid4().hex,
        traceparent=trace if TraceParent.matches(trace) else None,
    )


def _log_call(scope: Scope, status: int, seconds: float) -> None:
    """Log a call that may change something, or that fails in SBF.

    Other calls are not logged: the frequent reads by agents and consoles would fill the log.
    """
    if scope["type"] != "http" or (scope["method"] in READING_METHODS and status < FIRST_SERVER_ERROR):
        return
    caller = scope.get(CALLER_KEY)
    who = caller.principal.name if caller else "unknown"
    log.info("call", method=scope["method"], path=scope["path"], status=status, ms=round(seconds * 1000), who=who)
