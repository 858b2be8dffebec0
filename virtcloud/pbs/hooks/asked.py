"""What a job asks for, and where it is to run, read from PBS's job."""

import json
from typing import Any, Mapping, Optional, Tuple

from virtcloud.jobs.pbs import Job
from virtcloud.jobs.request import Request, parse
from virtcloud.jobs.spec import with_spec
from virtcloud.pbs.hooks.job import changed, hosts_of

SHAPE = ("select", "nodes", "place", "walltime")


def shape(job: Any, former: Optional[Any] = None) -> Job:
    """Give what its request depends on; what is not changed is that of the job as it was."""
    found = {name: changed(job, former, name) for name in SHAPE}
    array = getattr(former or job, "array_indices_submitted", None)
    return Job(array=array is not None, **found)


def requested(line: str, kept: Optional[str]) -> Request:
    """Read a job's request, with what its file said when the job was submitted. Raises RequestError."""
    request = parse(line)
    return request if request.spec is None or kept is None else with_spec(request, json.loads(kept))


def elements(exec_vnode: str, known: Mapping[str, str]) -> Tuple[str, ...]:
    """Give SBF's names of the hosts of an ``exec_vnode``, each once, the script's first."""
    return tuple(dict.fromkeys(element(vnode, known) for vnode in hosts_of(exec_vnode)))


def element(vnode: str, known: Mapping[str, str]) -> str:
    """Give SBF's name of a host: as the settings say, else without domain and part (``n1[0]``), in lower case."""
    bare = vnode.partition("[")[0]
    return known.get(vnode) or known.get(bare) or bare.partition(".")[0].lower()
