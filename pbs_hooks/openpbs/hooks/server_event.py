"""One event as our handlers see it: PBS's module and event, the settings, and SBF.

What a job asks for, and where it is to run, read from PBS's job.
"""

import json
from typing import Any, Mapping, Optional, Tuple

from pbs_hooks.kit.deadline import Deadline
from pbs_hooks.kit.hook_settings import ServerSettings
from pbs_hooks.kit.sbf_client import HookSbfClient, SbfAddress
from pbs_hooks.openpbs.hooks.pbs_job import parse_exec_vnode, read_changed_resource
from virtcloud.jobs.openpbs_request import JobShape
from virtcloud.jobs.request import JobRequest, parse_request
from virtcloud.jobs.request_file import merge_request_file
from virtcloud.jobs.sizes import parse_seconds

EXIT_RESERVE_S = 0.05
"""What the hook itself takes at its end of the time that it may take."""


class ServerHookEvent:
    """An event of PBS's server."""

    def __init__(self, pbs: Any, settings: ServerSettings, began: float) -> None:
        """Give its parts names of ours; the time that SBF may take has run since the hook began."""
        self.pbs, self.settings, self._event = pbs, settings, pbs.event()
        where = SbfAddress(settings.sbf, settings.token_file, settings.ca_file)
        allowed = settings.timeout - EXIT_RESERVE_S
        self.sbf = HookSbfClient(where, Deadline(allowed, began), allowed, settings.breaker)

    @property
    def job(self) -> Any:
        """The job; while it is altered, only what is to change."""
        return self._event.job

    @property
    def former(self) -> Any:
        """The job as it was before it is altered."""
        return self._event.job_o

    @property
    def requestor(self) -> str:
        """Who asked PBS."""
        return str(self._event.requestor)

    @property
    def requestor_host(self) -> str:
        """From where PBS was asked."""
        return str(self._event.requestor_host)

    @property
    def from_here(self) -> bool:
        """Whether the caller is the user of that name on the server's host, too."""
        server = self.pbs.server()
        here = (self.pbs.get_local_nodename(), server.name, getattr(server, "server_host", None))
        flat = str(getattr(server, "flatuid", None)).lower() in {"true", "1"}
        return flat or self.requestor_host in map(str, here)

    @property
    def queued(self) -> Tuple[int, ...]:
        """States of a job that does not run yet."""
        return (
            self.pbs.JOB_STATE_TRANSIT,
            self.pbs.JOB_STATE_QUEUED,
            self.pbs.JOB_STATE_HELD,
            self.pbs.JOB_STATE_WAITING,
        )

    def walltime(self, text: str) -> int:
        """Read a walltime; one that cannot be read is the longest, and PBS's to refuse."""
        try:
            return parse_seconds(text)
        except ValueError:
            return self.settings.longest_walltime

    def log(self, text: str) -> None:
        """Write to the server's log."""
        self.pbs.logmsg(self.pbs.LOG_DEBUG, "vcluster: " + text)

    def alert(self, text: str) -> None:
        """Write to the server's log what administrators should see."""
        self.pbs.logmsg(self.pbs.LOG_ERROR, "vcluster: " + text.replace("vcluster: ", ""))

    def reject(self, message: str) -> None:
        """Refuse; ends with SystemExit."""
        self._event.reject(message)


SHAPE_RESOURCES = ("select", "nodes", "place", "walltime")


def read_job_shape(job: Any, former: Optional[Any] = None) -> JobShape:
    """Give what its request depends on; what is not changed is that of the job as it was."""
    found = {name: read_changed_resource(job, former, name) for name in SHAPE_RESOURCES}
    array = getattr(former or job, "array_indices_submitted", None)
    return JobShape(array=array is not None, **found)


def parse_stored_request(line: str, kept: Optional[str]) -> JobRequest:
    """Read a job's request, with what its file said when the job was submitted. Raises RequestError."""
    request = parse_request(line)
    return request if request.spec is None or kept is None else merge_request_file(request, json.loads(kept))


def parse_host_elements(exec_vnode: str, known: Mapping[str, str]) -> Tuple[str, ...]:
    """Give SBF's names of the hosts of an ``exec_vnode``, each once, the script's first."""
    return tuple(dict.fromkeys(element_of_vnode(vnode, known) for vnode in parse_exec_vnode(exec_vnode)))


def element_of_vnode(vnode: str, known: Mapping[str, str]) -> str:
    """Give SBF's name of a host: as the settings say, else without domain and part (``n1[0]``), in lower case."""
    bare = vnode.partition("[")[0]
    return known.get(vnode) or known.get(bare) or bare.partition(".")[0].lower()
