"""A job as PBS shows it to a hook. Hosts load this for each of their events, so it is little.

Why a job's start failed, on its way from a host to the job's comment.

A MoM sends the server no comment, but it does send a job's variables (measured). The host that runs the script leaves
its reason there, and the server's hook, to which PBS offers the job again in the same second, tells it.
"""

from collections import OrderedDict
from typing import Any, Mapping, Optional, Tuple
from urllib.parse import quote, unquote

REQUEST_RESOURCE, SPEC_RESOURCE = "vcluster", "vcluster_spec"


def read_resource(job: Any, name: str) -> Optional[str]:
    """Give a resource of a job as text; nothing where it has none, or an empty one."""
    listed = job.Resource_List
    value = None if listed is None else listed[name]
    return None if value is None else str(value) or None


def read_changed_resource(job: Any, former: Optional[Any], name: str) -> Optional[str]:
    """Give a resource after the change; one that is taken away comes as an empty text."""
    listed = job.Resource_List
    value = None if listed is None else listed[name]
    if value is None and former is not None:
        return read_resource(former, name)
    return None if value is None else str(value) or None


def cluster_key(job: Any) -> str:
    """Give the key of a job's cluster."""
    return str(job.id).lower()


def attempt_number(job: Any) -> int:
    """Give the number of the run that a job has, or had last; 0 when it never ran."""
    return int(job.run_version or 0)


def parse_exec_vnode(exec_vnode: str) -> Tuple[str, ...]:
    """Give the hosts of an ``exec_vnode`` such as ``(n1:ncpus=4)+(n2:ncpus=4)``, each once, in order."""
    names = (part.strip("() ").partition(":")[0] for part in exec_vnode.split("+"))
    return tuple(OrderedDict.fromkeys(name for name in names if name))


def is_in_array(job: Any) -> bool:
    """Say whether it is one job of an array: ``5[1].pbssrv``. Submissions of arrays are refused."""
    return "[" in str(job.id)


REASON_VARIABLE = "VCLUSTER_LAST"
REPORTED_VARIABLE = "VCLUSTER_TOLD"
MAX_REASON_CHARACTERS = 1000
UNQUOTED_CHARACTERS = " :;()/"
"""What stays as it is: a comma would end the variable, a newline the line, and before a quote PBS puts a backslash."""


def format_reason(attempt: int, text: str) -> str:
    """Give the variable's value."""
    return "%d %s" % (attempt, quote(text[:MAX_REASON_CHARACTERS], safe=UNQUOTED_CHARACTERS))


def read_unreported_reason(variables: Mapping[str, Any], run_version: Optional[int]) -> Optional[str]:
    """Give the reason of the run before, when it has not been told yet."""
    attempt, _, text = str(variables.get(REASON_VARIABLE, "")).partition(" ")
    if not text or attempt != str(run_version) or attempt == str(variables.get(REPORTED_VARIABLE)):
        return None
    return unquote(text)
