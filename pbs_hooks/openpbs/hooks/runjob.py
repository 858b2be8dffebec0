"""The server's events: runjob requests a cluster before the job starts, jobobit ends the cluster after the run.

One scheduling cycle may contain a thousand jobs of the same user. Therefore, for ten seconds after a quota refusal, the
hook sends no request with the same user, hosts and walltime.
"""

import time
from typing import Any, Dict, NamedTuple, Optional, Tuple

from pbs_hooks.kit.deadline import ChildError
from pbs_hooks.kit.sbf_client import SbfAnswer, SbfUnreachable
from pbs_hooks.kit.user_keys import read_user_keys
from pbs_hooks.openpbs.hooks.pbs_job import (
    REPORTED_VARIABLE,
    REQUEST_RESOURCE,
    RETRY_SUFFIX,
    SPEC_RESOURCE,
    attempt_number,
    cluster_key,
    is_in_array,
    read_resource,
    read_unreported_reason,
)
from pbs_hooks.openpbs.hooks.server_event import (
    ServerHookEvent,
    parse_host_elements,
    parse_stored_request,
    read_job_shape,
)
from pbs_hooks.openpbs.hooks.start_refusals import (
    SHORT_RETRY_S,
    RefusalContext,
    StartRefusal,
    decide_refusal,
    is_attempt_over,
    refuse_unreachable,
)
from pbs_hooks.openpbs.hooks.submission import format_name_taken
from virtcloud.jobs.address_plan import AddressesInUse
from virtcloud.jobs.host_names import element_of_host, parse_exec_vnode
from virtcloud.jobs.job_cluster_spec import JobRun, build_cluster_spec, find_network_cluster, parse_network
from virtcloud.jobs.openpbs_request import admit_pbs_job
from virtcloud.jobs.request import JobRequest
from virtcloud.jobs.request_ids import job_request_id
from virtcloud.jobs.request_values import RequestError

MAX_DEADLINE_S = 510
"""Maximum of the deadline in a spec: 30 s less than the hosts' default ``patience``."""
QUOTA_PAUSE_S = 10
_refusals: Dict[JobRun, Tuple[float, str]] = {}
"""Quota refusals by user, hosts and walltime. A refused long job does not block a shorter job of the same user."""


def find_recent_refusal(run: JobRun) -> Optional[str]:
    """Return the message of a recent quota refusal for the same user, hosts and walltime, or None."""
    until, message = _refusals.get(_refusal_key(run), (0.0, ""))
    return message if time.monotonic() < until else None


def record_refusal(run: JobRun, message: str) -> None:
    """Record a quota refusal."""
    _refusals[_refusal_key(run)] = (time.monotonic() + QUOTA_PAUSE_S, message)


def forget_refusals() -> None:
    """Delete all recorded quota refusals, because the end of a cluster may free its owner's quota."""
    _refusals.clear()


def _refusal_key(run: JobRun) -> JobRun:
    return run._replace(key="")


NOTHING_TO_END = (404, 410)
"""The HTTP statuses that mean: no cluster ever had the key, or a later attempt or another owner has the key."""


def jobobit(event: ServerHookEvent) -> None:
    """End the cluster of the job's last attempt, and of no other attempt. Idempotent."""
    job = event.job
    number = attempt_number(job)
    if read_resource(job, REQUEST_RESOURCE) is None or not number or is_in_array(job):
        return
    forget_refusals()
    end_attempt(event, number)


def end_attempt(event: ServerHookEvent, number: int) -> None:
    """End the cluster of an attempt of the job."""
    job = event.job
    name = "cluster %s, attempt %d (request ID %s)" % (
        cluster_key(job),
        number,
        job_request_id(cluster_key(job), number),
    )
    try:
        answer = event.sbf.end(cluster_key(job), number, str(job.euser))
    except SbfUnreachable as error:
        event.log("%s will be ended by reconciliation: %s: %s" % (name, error.summary, error))
        return
    if not answer.ok and answer.status not in NOTHING_TO_END:
        event.alert("%s will be ended by reconciliation: %s" % (name, answer.detail))


class ClusterOrder(NamedTuple):
    """A job's request, its hosts and walltime, and the number of the attempt."""

    request: JobRequest
    run: JobRun
    attempt: int


def runjob(event: ServerHookEvent) -> None:
    """Request the job's cluster. If the job cannot have a cluster now, reject the job with a reason in its comment.

    A job of an array is accepted here, and the job's host deletes the job. After a rejection here, the scheduler would
    endlessly try to start this job, and start no other job (measured).
    """
    line = read_resource(event.job, REQUEST_RESOURCE)
    if line is None or is_in_array(event.job):
        return
    try:
        refusal = _refuse_after_failure(event) or _request_cluster(event, _build_order(event, line))
    except RequestError as error:
        refusal = StartRefusal(str(error), hold="u")
    except SbfUnreachable as error:
        refusal = refuse_unreachable(error, event.settings.retry_after)
    if refusal is not None:
        _refuse(event, refusal)


def _refuse_after_failure(event: ServerHookEvent) -> Optional[StartRefusal]:
    """Return a refusal with the reason why the last run did not start, or None if there is no reason left to report.

    Before a refusal, end the cluster of the last run: PBS runs no jobobit after a rejection by the first host.
    """
    number = attempt_number(event.job)
    text = read_unreported_reason(event.job.Variable_List or {}, number)
    if text is None:
        return None
    event.job.Variable_List[REPORTED_VARIABLE] = str(number)
    end_attempt(event, number)
    return StartRefusal(text, event.settings.retry_after)


def _build_order(event: ServerHookEvent, line: str) -> ClusterOrder:
    job, settings = event.job, event.settings
    request = _admit_again(event, line)
    hosts = parse_host_elements(str(job.exec_vnode), settings.hosts)
    seconds = event.walltime(str(read_resource(job, "walltime")))
    run = JobRun(cluster_key(job), str(job.euser), hosts, seconds, int(settings.setup))
    return ClusterOrder(request, run, attempt_number(job) + 1)


def _admit_again(event: ServerHookEvent, line: str) -> JobRequest:
    """Parse and check the request again.

    The hook never checked a request that comes from a queue's defaults, or from before the hook's installation.
    """
    content = read_resource(event.job, SPEC_RESOURCE)
    request = parse_stored_request(line, content)
    if request.spec is not None and content is None:
        raise RequestError("spec: %s was not read at submission; submit the job again" % request.spec)
    admit_pbs_job(request, read_job_shape(event.job), event.settings.longest_walltime)
    return request


def _request_cluster(event: ServerHookEvent, order: ClusterOrder) -> Optional[StartRefusal]:
    recent = find_recent_refusal(order.run)
    if recent is not None:
        return StartRefusal(recent)
    event.log("cluster %s: request ID %s" % (order.run.key, job_request_id(order.run.key, order.attempt)))
    answer = _put(event, _add_user_keys(event, order))
    if answer.slug == "name-taken":
        return _refuse_taken_name(event, order, answer)
    if is_attempt_over(answer):
        _accept_to_fail(event, order, answer)
    vnodes = parse_exec_vnode(str(event.job.exec_vnode))
    names = {element_of_host(vnode, event.settings.hosts): vnode for vnode in vnodes}
    refusal = decide_refusal(
        answer, RefusalContext(order.run.owner, order.request.net, names), event.settings.retry_after
    )
    if refusal is not None and answer.slug == "quota-exceeded":
        record_refusal(order.run, refusal.message)
    return refusal


def _add_user_keys(event: ServerHookEvent, order: ClusterOrder) -> ClusterOrder:
    if not event.settings.user_keys:
        return order
    try:
        keys = tuple(read_user_keys(order.run.owner))
    except ChildError as error:
        event.log("cluster %s: no keys of %s: %s" % (order.run.key, order.run.owner, error))
        return order
    return order._replace(run=order.run._replace(ssh_keys=keys))


def _put(event: ServerHookEvent, order: ClusterOrder) -> SbfAnswer:
    """Send the request. If its addresses are in use, choose new addresses and send it once more.

    Return SBF's answer. Two jobs that join a network at the same time may choose the same addresses.
    """
    request = order.request
    if request.net is None:
        return event.sbf.put(order.run.key, _build_spec(event, order, None), order.attempt)
    answer = _join(event, order)
    return _join(event, order) if answer.slug == "guest-taken" else answer


def _join(event: ServerHookEvent, order: ClusterOrder) -> SbfAnswer:
    answer = event.sbf.network(str(order.request.net))
    if not answer.ok:
        return answer
    joined = parse_network(answer.document, order.run.key)
    if joined is None:
        return SbfAnswer(404, {"type": "urn:virtcloud:problem:no-such-network", "detail": ""})
    try:
        spec = _build_spec(event, order, joined)
    except AddressesInUse as error:  # the end of another job frees addresses
        return SbfAnswer(409, {"type": "urn:virtcloud:problem:conflict", "detail": str(error).partition(": ")[2]})
    return event.sbf.put(order.run.key, spec, order.attempt)


def _build_spec(event: ServerHookEvent, order: ClusterOrder, joined: Any) -> Dict[str, Any]:
    """Return the spec of the job's cluster.

    The deadline is earlier than the end of the hosts' default ``patience``, so the hosts can report why SBF failed.
    """
    spec = build_cluster_spec(order.request, order.run, joined)
    return dict(spec, deadline_s=min(event.settings.setup * 3 // 4, MAX_DEADLINE_S))


def _refuse_taken_name(event: ServerHookEvent, order: ClusterOrder, answer: SbfAnswer) -> StartRefusal:
    name = str(order.request.name)
    holders = event.sbf.network(name)
    if not holders.ok or not holders.document:
        return StartRefusal("vcluster: %s%s" % (answer.detail, RETRY_SUFFIX), SHORT_RETRY_S)
    text = "vcluster: %s%s" % (format_name_taken(name, find_network_cluster(holders.document)["key"]), RETRY_SUFFIX)
    return StartRefusal(text, event.settings.retry_after)


def _accept_to_fail(event: ServerHookEvent, order: ClusterOrder, answer: SbfAnswer) -> None:
    """Accept the start of the job although its attempt is over.

    The job's hosts then detect that the attempt is over, and requeue the job with a new attempt number.
    """
    if not answer.ok:
        event.sbf.end(order.run.key, order.attempt, order.run.owner)
    event.alert(
        "job %s: attempt %d is over (%s): its hosts will requeue the job"
        % (order.run.key, order.attempt, answer.detail if not answer.ok else answer.document.get("state"))
    )


def _refuse(event: ServerHookEvent, refusal: StartRefusal) -> None:
    job = event.job
    if refusal.wait:
        job.Execution_Time = int(time.time()) + refusal.wait
    if refusal.hold:
        job.Hold_Types = event.pbs.hold_types(refusal.hold)
    if refusal.alert:
        event.alert("job %s: %s" % (cluster_key(job), refusal.message))
    event.reject(refusal.message)
