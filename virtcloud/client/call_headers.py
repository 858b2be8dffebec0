"""The request ID and the trace context that this process sends with its calls to SBF. By default, neither is sent."""

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar

from virtcloud.model.call_context import REQUEST_ID_HEADER, TRACE_HEADER, CallContext, RequestId
from virtcloud.tracing import current_traceparent

_CURRENT: ContextVar[CallContext | None] = ContextVar("virtcloud_client_call", default=None)


@contextmanager
def calling_for(call: CallContext | None) -> Iterator[None]:
    """Within the block, send the request ID of ``call`` and a trace context with each call to SBF.

    The trace context is the context of the current span or, without a current span, the trace context of ``call``. If
    ``call`` is None, send neither a request ID nor a trace context.
    """
    token = _CURRENT.set(call)
    try:
        yield
    finally:
        _CURRENT.reset(token)


def current_request_id() -> str | None:
    """Return the request ID that is sent with calls to SBF at present, or None."""
    call = _CURRENT.get()
    return call.request_id if call else None


def call_headers() -> dict[str, str]:
    """Return the headers with the request ID and the trace context, or {} if there is no valid request ID."""
    call = _CURRENT.get()
    if call is None or not RequestId.matches(call.request_id):
        return {}
    trace = current_traceparent() or call.traceparent
    return {REQUEST_ID_HEADER: call.request_id, **({} if trace is None else {TRACE_HEADER: trace})}
