"""A job as PBS shows it to a hook. Hosts load this for each of their events, so it is little."""

from collections import OrderedDict
from typing import Any, Optional, Tuple

ASKED, KEPT = "vcluster", "vcluster_spec"


def resource(job: Any, name: str) -> Optional[str]:
    """Give a resource of a job as text; nothing where it has none, or an empty one."""
    listed = job.Resource_List
    value = None if listed is None else listed[name]
    return None if value is None else str(value) or None


def changed(job: Any, former: Optional[Any], name: str) -> Optional[str]:
    """Give a resource after the change; one that is taken away comes as an empty text."""
    listed = job.Resource_List
    value = None if listed is None else listed[name]
    if value is None and former is not None:
        return resource(former, name)
    return None if value is None else str(value) or None


def key(job: Any) -> str:
    """Give the key of a job's cluster."""
    return str(job.id).lower()


def attempt(job: Any) -> int:
    """Give the number of the run that a job has, or had last; 0 when it never ran."""
    return int(job.run_version or 0)


def hosts_of(exec_vnode: str) -> Tuple[str, ...]:
    """Give the hosts of an ``exec_vnode`` such as ``(n1:ncpus=4)+(n2:ncpus=4)``, each once, in order."""
    names = (part.strip("() ").partition(":")[0] for part in exec_vnode.split("+"))
    return tuple(OrderedDict.fromkeys(name for name in names if name))


def in_array(job: Any) -> bool:
    """Say whether it is one job of an array: ``5[1].pbssrv``. Submissions of arrays are refused."""
    return "[" in str(job.id)
