"""The request ID of a job's attempt, and its trace context.

Both values are computed from the cluster's key and the attempt number, so all hooks and agents use the same values.
"""

import re
from typing import Optional

REQUEST_ID_HEADER = "X-Request-ID"
TRACE_HEADER = "traceparent"
MAX_CHARACTERS = 64


def job_request_id(key: str, attempt: Optional[int]) -> str:
    """Return the request ID of a job's attempt, such as ``job-123.pbs-1``; ``job-123.pbs`` for attempt 0 or None.

    A dash replaces each character other than letters, digits, ``.``, ``_`` and ``-``. A long key is truncated, so that
    the ID has at most :data:`MAX_CHARACTERS` characters.
    """
    suffix = "-%d" % attempt if attempt else ""
    name = re.sub("[^A-Za-z0-9._-]", "-", key)
    return "job-%s%s" % (name[: MAX_CHARACTERS - len("job-") - len(suffix)], suffix)


def make_traceparent(request_id: str) -> str:
    """Return the header of the W3C recommendation Trace Context, version 00, for the trace of a request ID."""
    import hashlib  # noqa: PLC0415 - hooks that do not call SBF need no hash

    digits = hashlib.sha256(request_id.encode()).hexdigest()
    return "00-%s-%s-01" % (digits[:32], digits[32:48])
