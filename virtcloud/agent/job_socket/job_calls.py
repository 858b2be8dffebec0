"""The context of the calls that the agent makes for a job's attempt. The hooks compute the same request ID."""

from virtcloud.jobs.request_ids import job_request_id, make_traceparent
from virtcloud.model.call_context import CallContext


def make_job_call(cluster: str, attempt: int) -> CallContext:
    """Return the context of a job's attempt: the request ID and the trace context of the hook's call."""
    request_id = job_request_id(cluster, attempt)
    return CallContext(request_id=request_id, traceparent=make_traceparent(request_id))
