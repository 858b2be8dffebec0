"""The context of a call to SBF (request ID and trace context), and the settings of traces. Pure.

The request ID is in all log lines about the call.
"""

from collections.abc import Iterable, Sequence

from pydantic import Field

from virtcloud.model.document import Document
from virtcloud.model.values import PatternText

REQUEST_ID_HEADER = "X-Request-ID"
TRACE_HEADER = "traceparent"
MAX_REQUESTS = 8
"""Maximum number of request IDs in one log line or audit row."""


class RequestId(PatternText):
    """A request ID, or several request IDs separated by commas."""

    __slots__ = ()
    pattern = r"[A-Za-z0-9._-]{1,64}(,[A-Za-z0-9._-]{1,64}){0,7}"
    meaning = "a request ID: letters, digits, '.', '_' and '-', at most 64 characters"


class TraceParent(PatternText):
    """The header ``traceparent`` of the W3C recommendation Trace Context, version 00."""

    __slots__ = ()
    pattern = r"00-(?!0{32})[0-9a-f]{32}-(?!0{16})[0-9a-f]{16}-[0-9a-f]{2}"
    meaning = "a trace context such as 00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"


class CallContext(Document):
    """The context of the call that changed a cluster."""

    request_id: str
    """The request ID of the call."""
    traceparent: str | None = None
    """The trace context of the call; None if the call is not part of a trace."""


def join_request_ids(calls: Iterable[CallContext]) -> str:
    """Return the distinct request IDs of the calls, at most ``MAX_REQUESTS``, separated by commas; ``""`` if none."""
    ids = dict.fromkeys(request for call in calls for request in call.request_id.split(","))
    return ",".join(list(ids)[:MAX_REQUESTS])


def join_calls(calls: Sequence[CallContext]) -> CallContext | None:
    """Return a context for the work that ``calls`` caused, or None if ``calls`` is empty.

    The context has the distinct request IDs of the calls, at most ``MAX_REQUESTS`` of them. The context has a trace
    only if there is a single call.
    """
    if not calls:
        return None
    trace = calls[0].traceparent if len(calls) == 1 else None
    return CallContext(request_id=join_request_ids(calls), traceparent=trace)


class CollectorAddress(PatternText):
    """The address of an OpenTelemetry collector."""

    __slots__ = ()
    pattern = r"https?://[^/\s]+"
    meaning = "the address of a collector without a path, such as http://collector:4318"


class TelemetryKeys(Document):
    """``[telemetry]``: traces of calls, transactions, and changes of devices and hosts."""

    endpoint: CollectorAddress | None = Field(
        None,
        description="Address of an OpenTelemetry collector with OTLP over HTTP, such as `http://collector:4318`. "
        "Without this key, no traces are recorded. "
        "The key needs the extra `telemetry` (`pip install 'virtcloud[telemetry]'`).",
    )
    ca_file: str | None = Field(
        None, description="File with the certificates (PEM) of the authority that issued the collector's certificate."
    )
