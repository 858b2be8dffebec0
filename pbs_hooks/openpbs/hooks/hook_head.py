"""The first lines of the server hook and of the MoM hook.

`concerns` accepts a job without a virtual cluster before the hook loads its other modules.
"""

import time

BEGAN = time.monotonic()
"""The start time of the hook. The time for loading modules counts against the hook's deadline."""
TYPE_CHECKING = False
if TYPE_CHECKING:  # importing typing would delay every job on every host by some milliseconds
    from typing import Any

REQUEST_RESOURCES = ("vcluster", "vcluster_spec")


def concerns(pbs: "Any") -> bool:
    """Return whether the current event concerns a job with a virtual cluster, or a host as a whole."""
    event = pbs.event()
    if event.type in (pbs.EXECHOST_STARTUP, pbs.EXECHOST_PERIODIC):
        return True
    if (
        event.type == pbs.PERIODIC
    ):  # OpenPBS runs a hook of EXECHOST_PERIODIC on the server too, where the hook has no task
        return False
    return _has_request(event.job) or (event.type == pbs.MODIFYJOB and _has_request(event.job_o))


def _has_request(job: "Any") -> bool:
    listed = job.Resource_List
    try:
        return listed is not None and any(listed[name] is not None for name in REQUEST_RESOURCES)
    except (AttributeError, KeyError):  # PBS does not define the resource, so no job has it
        return False
