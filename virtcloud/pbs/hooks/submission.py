"""A job is submitted, or altered: its request is understood, and looked up as far as that can be done now."""

from typing import Any, NamedTuple, Optional

from virtcloud.jobs.errors import RequestError
from virtcloud.jobs.pbs import Job, admit
from virtcloud.jobs.request import Request
from virtcloud.jobs.values import OWNERS
from virtcloud.pbs.hooks.asked import requested, shape
from virtcloud.pbs.hooks.event import Event
from virtcloud.pbs.hooks.job import ASKED, KEPT, changed, key, resource
from virtcloud.pbs.hooks.service import AwayError
from virtcloud.pbs.hooks.user import check_images, read_spec
from virtcloud.pbs.hooks.verdict import not_shared

RUNNING = "the request cannot change while the job runs"
OURS = "the resource %s is the server's own; name the file with spec=" % KEPT
NO_CHECKPOINT = "n"
"""A job that goes on from a checkpoint keeps its number of runs, and its guests cannot be kept so."""


class Whose(NamedTuple):
    """Whose job it is, and the key of its cluster, where it has an id by now."""

    user: str
    key: str = ""


class Admitted(NamedTuple):
    """What the job is to have: its place, and what its file said."""

    place: str
    kept: Optional[str]


def queuejob(event: Event) -> None:
    """Check a job that comes in. Raises RequestError.

    PBS takes an empty resource for none (``-l vcluster=$REQUEST``, unset): the script would run without its cluster.
    """
    job = event.job
    line, kept, moved = resource(job, ASKED), resource(job, KEPT), job.Job_Owner is not None
    if line is None and job.Resource_List[ASKED] is not None:
        requested("", None)
    if kept is not None and not moved:
        raise RequestError(OURS)
    if line is None:
        return
    user = str(job.Job_Owner).partition("@")[0] if moved else str(event.requestor)
    found = _admitted(event, line, kept, shape(job), Whose(user))
    job.Resource_List["place"] = event.pbs.place(found.place)
    job.Checkpoint = event.pbs.checkpoint(NO_CHECKPOINT)
    if found.kept is not None and found.kept != kept:
        job.Resource_List[KEPT] = found.kept


def modifyjob(event: Event) -> None:
    """Check a job that is altered: one that runs keeps its request, one that is queued is as if it came in now.

    A longer walltime is seen by the reconciliation, which extends the lease: PBS asks us before it looks whether the
    caller may alter this job at all. Raises RequestError.
    """
    job, former = event.job, event.former
    if changed(job, None, KEPT) is not None:
        raise RequestError(OURS)
    before, line = resource(former, ASKED), changed(job, former, ASKED)
    if former.job_state in event.queued:
        _alter_queued(event, before, line)
    elif line != before:
        raise RequestError(RUNNING)


def _alter_queued(event: Event, before: Optional[str], line: Optional[str]) -> None:
    job, former = event.job, event.former
    kept = resource(former, KEPT) if line == before else None
    if line is not None:
        whose = Whose(str(former.euser), key(former))
        found = _admitted(event, line, kept, shape(job, former), whose)
        if found.place != shape(job, former).place:
            job.Resource_List["place"] = event.pbs.place(found.place)
        kept = found.kept
    if kept != resource(former, KEPT):
        job.Resource_List[KEPT] = kept or ""
    if line is not None and (before is None or job.Checkpoint is not None):
        job.Checkpoint = event.pbs.checkpoint(NO_CHECKPOINT)


def _admitted(event: Event, line: str, kept: Optional[str], job: Job, whose: Whose) -> Admitted:
    """Check a request as one would see it now; ``kept`` is what its file said, where that is known."""
    _check_user(whose.user)
    request = requested(line, None)
    if request.spec is None:
        kept = None
    elif kept is None:
        _check_reader(event, whose.user)
        kept = read_spec(request.spec, whose.user)
    request = requested(line, kept)
    place = admit(request, job, event.settings.longest_walltime)
    check_images(event.settings.images, request.images, whose.user)
    _check_network(event, request, whose)
    return Admitted(place, kept)


def _check_reader(event: Event, user: str) -> None:
    """Refuse to read a file for somebody who may not be its user, and would read of it in what we say is wrong.

    PBS asks us before it looks whether the caller may do this: to alter another's job, to be that user from there.
    """
    if event.requestor != user:
        raise RequestError("spec: expected %s, whose file it is, got %s" % (user, event.requestor))
    if not event.from_here:
        raise RequestError(
            "spec: expected a call from the server's host, or flatuid set on the server, got one from %s"
            % event.requestor_host
        )


def _check_user(user: str) -> None:
    try:
        OWNERS.read(user)
    except ValueError:
        raise RequestError("expected a user whose name SBF can keep, got %r" % user) from None


def _check_network(event: Event, request: Request, whose: Whose) -> None:
    """Refuse a name that is taken, and a network that cannot be joined; with SBF away, the job's run will tell."""
    name = request.net or request.name
    if name is None:
        return
    try:
        answer = event.sbf.network(name)
    except AwayError as error:
        event.log("network %s is looked up when the job runs: SBF cannot be asked: %s" % (name, error))
        return
    if not answer.well or not isinstance(answer.document, list):
        event.log("network %s is looked up when the job runs: %s" % (name, answer.detail))
    elif request.net is None:
        _check_free(name, answer.document, whose.key)
    else:
        _check_joinable(name, answer.document, whose.user)


def _check_free(name: str, clusters: Any, own: str) -> None:
    if clusters and clusters[0]["key"] != own:
        raise RequestError(taken(name, clusters[0]["key"]))


def taken(name: str, holder: str) -> str:
    """Say who has a name."""
    return "'%s' is already running as job %s" % (name, holder)


def _check_joinable(name: str, clusters: Any, user: str) -> None:
    if not clusters:
        raise RequestError("network '%s' is not running; start it first, or leave net out" % name)
    spec = clusters[0]["spec"]
    if user != spec["owner"] and user not in (spec.get("shares_with") or ()):
        raise RequestError(not_shared(name, user).partition(": ")[2])
