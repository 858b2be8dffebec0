"""A hook event of the PBS server: the job, the user who called PBS, the hook's settings, and the client for SBF."""

import json
from typing import Any, Mapping, Optional, Tuple

from pbs_hooks.kit.deadline import Deadline
from pbs_hooks.kit.sbf_client import HookSbfClient, SbfAddress
from pbs_hooks.openpbs.hooks.openpbs_settings import ServerSettings
from pbs_hooks.openpbs.hooks.pbs_job import read_changed_resource
from virtcloud.jobs.host_names import element_of_host, parse_exec_vnode
from virtcloud.jobs.openpbs_request import JobShape
from virtcloud.jobs.request import JobRequest, parse_request
from virtcloud.jobs.request_file import merge_request_file
from virtcloud.jobs.sizes import parse_seconds

EXIT_RESERVE_S = 0.05
"""Seconds that the hook reserves for its own work after the calls to SBF."""


class ServerHookEvent:
    """A hook event of the PBS server, with its settings."""

    def __init__(self, pbs: Any, settings: ServerSettings, began: float) -> None:
        """Create an object for the current event of PBS's module ``pbs``.

        The deadline of calls to SBF counts from ``began``, the start time of the hook.
        """
        self.pbs, self.settings, self._event = pbs, settings, pbs.event()
        where = SbfAddress(settings.sbf, settings.token_file, settings.ca_file)
        allowed = settings.timeout - EXIT_RESERVE_S
        self.sbf = HookSbfClient(where, Deadline(allowed, began), allowed, settings.breaker)

    @property
    def job(self) -> Any:
        """The job of the event. In modifyjob events, the job has only the changed attributes."""
        return self._event.job

    @property
    def former(self) -> Any:
        """The job before the change (modifyjob)."""
        return self._event.job_o

    @property
    def requestor(self) -> str:
        """The user who called PBS."""
        return str(self._event.requestor)

    @property
    def requestor_host(self) -> str:
        """The host from which PBS was called."""
        return str(self._event.requestor_host)

    @property
    def caller_is_local_user(self) -> bool:
        """Whether the caller's user name denotes the same user on the caller's host and on the server's host."""
        server = self.pbs.server()
        here = (self.pbs.get_local_nodename(), server.name, getattr(server, "server_host", None))
        flat = str(getattr(server, "flatuid", None)).lower() in {"true", "1"}
        return flat or self.requestor_host in map(str, here)

    @property
    def queued(self) -> Tuple[int, ...]:
        """The states of a job before its start."""
        return (
            self.pbs.JOB_STATE_TRANSIT,
            self.pbs.JOB_STATE_QUEUED,
            self.pbs.JOB_STATE_HELD,
            self.pbs.JOB_STATE_WAITING,
        )

    def walltime(self, text: str) -> int:
        """Parse a walltime and return seconds.

        If the text is invalid, return the longest allowed walltime; PBS itself rejects such a job.
        """
        try:
            return parse_seconds(text)
        except ValueError:
            return self.settings.longest_walltime

    def log(self, text: str) -> None:
        """Write a debug line to the server's log."""
        self.pbs.logmsg(self.pbs.LOG_DEBUG, "vcluster: " + text)

    def alert(self, text: str) -> None:
        """Write an error line to the server's log, for administrators."""
        self.pbs.logmsg(self.pbs.LOG_ERROR, "vcluster: " + text.replace("vcluster: ", ""))

    def reject(self, message: str) -> None:
        """Reject the event. Raise SystemExit."""
        self._event.reject(message)


SHAPE_RESOURCES = ("select", "nodes", "place", "walltime")


def read_job_shape(job: Any, former: Optional[Any] = None) -> JobShape:
    """Return the job's attributes that decide whether the job can have a cluster.

    In modifyjob events, ``job`` has only the changed attributes. ``former``, the job before the change, has the other
    attributes.
    """
    found = {name: read_changed_resource(job, former, name) for name in SHAPE_RESOURCES}
    array = getattr(former or job, "array_indices_submitted", None)
    return JobShape(array=array is not None, **found)


def parse_stored_request(line: str, content: Optional[str]) -> JobRequest:
    """Parse a request line and the content of its request file, as stored at submission.

    Raise RequestError if the request is invalid.
    """
    request = parse_request(line)
    return request if request.spec is None or content is None else merge_request_file(request, json.loads(content))


def parse_host_elements(exec_vnode: str, known: Mapping[str, str]) -> Tuple[str, ...]:
    """Return SBF's names of the hosts in an ``exec_vnode``, in order and without duplicates."""
    return tuple(dict.fromkeys(element_of_host(vnode, known) for vnode in parse_exec_vnode(exec_vnode)))
