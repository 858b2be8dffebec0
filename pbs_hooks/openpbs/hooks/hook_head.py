"""What a hook does first: let jobs without a virtual cluster pass, before anything is loaded."""

import time

BEGAN = time.monotonic()
"""What is loaded counts as time of the hook, too."""
TYPE_CHECKING = False
if TYPE_CHECKING:  # importing typing would cost every job on every host some milliseconds
    from typing import Any

REQUEST_RESOURCES = ("vcluster", "vcluster_spec")


def concerns(pbs: "Any") -> bool:
    """Say whether an event is about a job with a virtual cluster, or about a host as a whole."""
    event = pbs.event()
    if event.type in (pbs.EXECHOST_STARTUP, pbs.EXECHOST_PERIODIC):
        return True
    if event.type == pbs.PERIODIC:  # OpenPBS's server runs hooks of EXECHOST_PERIODIC itself, too: that is about no job
        return False
    return _has_request(event.job) or (event.type == pbs.MODIFYJOB and _has_request(event.job_o))


def _has_request(job: "Any") -> bool:
    listed = job.Resource_List
    try:
        return listed is not None and any(listed[name] is not None for name in REQUEST_RESOURCES)
    except (AttributeError, KeyError):  # PBS has no such resource any more, so that no job has one
        return False
