"""Reads a PBS job in hooks: its request, its cluster's key, its attempt, and the reason why its last start failed.

A MoM cannot set a job's comment on the server. The first host therefore stores the reason in a variable of the job,
which the MoM sends to the server (measured). At the next try, the server hook writes the reason into the comment. Every
event on every host loads this module, so the module is small.
"""

from typing import Any, Mapping, Optional
from urllib.parse import quote, unquote

REQUEST_RESOURCE, SPEC_RESOURCE = "vcluster", "vcluster_spec"


def read_resource(job: Any, name: str) -> Optional[str]:
    """Return a resource of a job as text, or None if the resource is unset or empty."""
    listed = job.Resource_List
    value = None if listed is None else listed[name]
    return None if value is None else str(value) or None


def read_changed_resource(job: Any, former: Optional[Any], name: str) -> Optional[str]:
    """Return a resource after a change of the job; None if the resource is unset or removed (set to "").

    ``former`` is the job before the change.
    """
    listed = job.Resource_List
    value = None if listed is None else listed[name]
    if value is None and former is not None:
        return read_resource(former, name)
    return None if value is None else str(value) or None


def cluster_key(job: Any) -> str:
    """Return the key of the job's cluster."""
    return str(job.id).lower()


def attempt_number(job: Any) -> int:
    """Return the number of the job's current or last run; 0 before the first run."""
    return int(job.run_version or 0)


def is_in_array(job: Any) -> bool:
    """Return whether the job belongs to an array (``5[1].pbssrv``).

    The hooks reject such a job if it requests a cluster.
    """
    return "[" in str(job.id)


REASON_VARIABLE = "VCLUSTER_LAST"
REPORTED_VARIABLE = "VCLUSTER_TOLD"
RETRY_SUFFIX = "; the job will be tried again"
MAX_REASON_CHARACTERS = 1000
UNQUOTED_CHARACTERS = " :;()/"
"""The characters that are not percent-encoded, besides letters, digits and ``_.-~``.

PBS would cut a variable at a comma, end a line at a newline, and add a backslash before a quotation mark.
"""


def format_reason(attempt: int, text: str) -> str:
    """Return the value of the variable that carries the reason why an attempt failed."""
    return "%d %s" % (attempt, quote(text[:MAX_REASON_CHARACTERS], safe=UNQUOTED_CHARACTERS))


def read_unreported_reason(variables: Mapping[str, Any], run_version: Optional[int]) -> Optional[str]:
    """Return the reason why the last run failed; None if no reason is stored, or if the reason was already reported."""
    attempt, _, text = str(variables.get(REASON_VARIABLE, "")).partition(" ")
    if not text or attempt != str(run_version) or attempt == str(variables.get(REPORTED_VARIABLE)):
        return None
    return unquote(text)
