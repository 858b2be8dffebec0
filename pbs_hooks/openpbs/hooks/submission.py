"""The events queuejob and modifyjob: parse and check the request of a submitted or altered job."""

from typing import Any, NamedTuple, Optional, Tuple

from pbs_hooks.kit.sbf_client import SbfUnreachable
from pbs_hooks.openpbs.hooks.pbs_job import (
    REQUEST_RESOURCE,
    SPEC_RESOURCE,
    cluster_key,
    read_changed_resource,
    read_resource,
)
from pbs_hooks.openpbs.hooks.server_event import ServerHookEvent, parse_stored_request, read_job_shape
from pbs_hooks.openpbs.hooks.start_refusals import format_not_shared
from pbs_hooks.openpbs.hooks.user_files import check_images, read_request_file
from virtcloud.jobs.job_cluster_spec import find_network_cluster
from virtcloud.jobs.openpbs_request import JobShape, admit_pbs_job
from virtcloud.jobs.request import JobRequest
from virtcloud.jobs.request_values import OWNERS, RequestError

RUNNING_MESSAGE = "the request of a running job cannot be changed"
SPEC_RESERVED_MESSAGE = "the resource %s is reserved for the server; name the request file with spec=" % SPEC_RESOURCE
NO_CHECKPOINT = "n"
"""The value of a job's attribute ``Checkpoint`` that forbids checkpoints. A job restarted from a checkpoint has the
same run number as before, and the checkpoint does not contain the job's guests.
"""


class JobOwner(NamedTuple):
    """The owner of a job, and the key of its cluster if the job already has an id."""

    user: str
    key: str = ""


class AdmittedJob(NamedTuple):
    """The request of an admitted job, its value of ``place``, and the content of its request file."""

    request: JobRequest
    place: str
    content: Optional[str]


def queuejob(event: ServerHookEvent) -> None:
    """Check a submitted job. Raise RequestError if the job must be rejected.

    Reject an empty request (``-l vcluster=$REQUEST`` with an unset variable): PBS would remove the empty resource, and
    run the script without a cluster.
    """
    job = event.job
    line, content, is_moved = (
        read_resource(job, REQUEST_RESOURCE),
        read_resource(job, SPEC_RESOURCE),
        job.Job_Owner is not None,
    )
    if line is None and job.Resource_List[REQUEST_RESOURCE] is not None:
        parse_stored_request("", None)
    if content is not None and not is_moved:
        raise RequestError(SPEC_RESERVED_MESSAGE)
    if line is None:
        return
    user = str(job.Job_Owner).partition("@")[0] if is_moved else str(event.requestor)
    admitted = _admit(event, line, content, read_job_shape(job), JobOwner(user))
    _check_network(event, admitted.request, JobOwner(user))
    job.Resource_List["place"] = event.pbs.place(admitted.place)
    job.Checkpoint = event.pbs.checkpoint(NO_CHECKPOINT)
    if admitted.content is not None and admitted.content != content:
        job.Resource_List[SPEC_RESOURCE] = admitted.content


def modifyjob(event: ServerHookEvent) -> None:
    """Check an altered job. Raise RequestError if the change must be rejected.

    The request of a running job must not change. A queued job is checked as at submission, except for a network that
    the job already requested: the job may wait for the end of another job that uses the name (``-W depend``).

    After an extension of the walltime, reconciliation extends the lease. This hook must not extend the lease, because
    PBS checks only after the hook whether the caller may alter the job.
    """
    job, former = event.job, event.former
    if job.Resource_List is not None and job.Resource_List[SPEC_RESOURCE] is not None:  # a removed resource is ""
        raise RequestError(SPEC_RESERVED_MESSAGE)
    before, line = read_resource(former, REQUEST_RESOURCE), read_changed_resource(job, former, REQUEST_RESOURCE)
    if former.job_state in event.queued:
        _alter_queued(event, before, line)
    elif line != before:
        raise RequestError(RUNNING_MESSAGE)


def _alter_queued(event: ServerHookEvent, before: Optional[str], line: Optional[str]) -> None:
    job, former = event.job, event.former
    content = read_resource(former, SPEC_RESOURCE) if line == before else None
    if line is not None:
        owner = JobOwner(str(former.euser), cluster_key(former))
        admitted = _admit(event, line, content, read_job_shape(job, former), owner)
        if (admitted.request.net, admitted.request.name) != _requested_network(former, before):
            _check_network(event, admitted.request, owner)
        if admitted.place != read_job_shape(job, former).place:
            job.Resource_List["place"] = event.pbs.place(admitted.place)
        content = admitted.content
    if content != read_resource(former, SPEC_RESOURCE):
        job.Resource_List[SPEC_RESOURCE] = content or ""
    if line is not None and (before is None or job.Checkpoint is not None):
        job.Checkpoint = event.pbs.checkpoint(NO_CHECKPOINT)


def _requested_network(former: Any, line: Optional[str]) -> Optional[Tuple[Optional[str], Optional[str]]]:
    """Return ``net`` and ``name`` of the request before the change, or None without a valid request."""
    if line is None:
        return None
    try:
        request = parse_stored_request(line, read_resource(former, SPEC_RESOURCE))
    except (RequestError, ValueError):  # ValueError: the stored content is not JSON
        return None
    return request.net, request.name


def _admit(event: ServerHookEvent, line: str, content: Optional[str], job: JobShape, owner: JobOwner) -> AdmittedJob:
    """Check a request against the job, the settings, and the image folder.

    ``content`` is the content of the request file; None if it was not read yet.
    """
    _check_user(owner.user)
    request = parse_stored_request(line, None)
    if request.spec is None:
        content = None
    elif content is None:
        _check_caller(event, owner.user)
        content = read_request_file(request.spec, owner.user)
    request = parse_stored_request(line, content)
    place = admit_pbs_job(request, job, event.settings.longest_walltime)
    check_images(event.settings.images, request.images, owner.user)
    return AdmittedJob(request, place, content)


def _check_caller(event: ServerHookEvent, user: str) -> None:
    """Raise RequestError unless the caller is certainly ``user``, because error messages can quote the user's file.

    PBS checks only after the hook whether the caller may alter another user's job, or act as ``user``.
    """
    if event.requestor != user:
        raise RequestError(
            "spec: expected a call by %s, the owner of the file, got a call by %s" % (user, event.requestor)
        )
    if not event.caller_is_local_user:
        raise RequestError(
            "spec: expected a call from the server's host, or flatuid set on the server, got a call from %s"
            % event.requestor_host
        )


def _check_user(user: str) -> None:
    try:
        OWNERS.read(user)
    except ValueError:
        raise RequestError("expected a user name that SBF accepts, got %r" % user) from None


def _check_network(event: ServerHookEvent, request: JobRequest, owner: JobOwner) -> None:
    """Reject a network name that is in use, and a network that the job cannot join.

    Without a successful answer of SBF, accept the network: runjob checks again.
    """
    name = request.net or request.name
    if name is None:
        return
    try:
        answer = event.sbf.network(name)
    except SbfUnreachable as error:
        event.log("network %s will be checked when the job starts: %s: %s" % (name, error.summary, error))
        return
    if not answer.ok or not isinstance(answer.document, list):
        event.log("network %s will be checked when the job starts: %s" % (name, answer.detail))
    elif request.net is None:
        _check_free(name, answer.document, owner.key)
    else:
        _check_joinable(name, answer.document, owner.user)


def _check_free(name: str, clusters: Any, own: str) -> None:
    holder = find_network_cluster(clusters)["key"] if clusters else own
    if holder != own:
        raise RequestError(format_name_taken(name, holder))


def format_name_taken(name: str, holder: str) -> str:
    """Return the message for a network name that another job already uses."""
    return "'%s' is already running as job %s" % (name, holder)


def _check_joinable(name: str, clusters: Any, user: str) -> None:
    if not clusters:
        raise RequestError("network '%s' is not running; start the network first, or omit net" % name)
    spec = find_network_cluster(clusters)["spec"]
    if user != spec["owner"] and user not in (spec.get("shares_with") or ()):
        raise RequestError(format_not_shared(name, user).partition(": ")[2])
