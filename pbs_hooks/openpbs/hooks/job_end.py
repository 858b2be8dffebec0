"""MoM events other than a job's start: a job's deletion, abort and end, and the periodic report of jobs.

No handler in this module fails a job. If the agent does not answer, the server hook ends the cluster at the job's end,
or reconciliation ends it later.
"""

import time

from pbs_hooks.kit.agent_client import BUSY_SLUG, AgentRefused, AgentUnreachable
from pbs_hooks.openpbs.hooks.mom_event import MomEvent
from pbs_hooks.openpbs.hooks.pbs_job import (
    REASON_VARIABLE,
    REQUEST_RESOURCE,
    RETRY_SUFFIX,
    attempt_number,
    cluster_key,
    format_reason,
    is_in_array,
    read_resource,
    read_unreported_reason,
)
from virtcloud.jobs.host_names import parse_exec_vnode

DELETED_REASON = "the job was deleted"
AGENT_TIMEOUT_S = 2.0
"""Seconds for one request. The MoM is blocked while preterm or abort runs."""
CANCEL_TIMEOUT_S = 8.0
"""Seconds for which :func:`handle_preterm` repeats its request to an agent that restarts or is busy.

If the agent receives no request, the prologue continues to wait.
"""
PAUSE_S = 0.5
END_TIMEOUT_S = 8.0
"""Seconds for which the end event repeats its request to an agent that restarts or is busy.

If the agent receives no request, the script's access to guests remains until the agent notices that the job is missing.
"""
ABORT_WAIT_S = 0.0
NOT_BEGUN = "vcluster: one of the hosts %s could not start the job; the log of the failed host has the reason%s"


def handle_preterm(event: MomEvent) -> None:
    """Request the cancellation of the attempt, which ends the prologue's wait at the start barrier.

    On the first host, PBS runs this event only for ``qdel``. On other hosts, PBS runs this event at every end of a job,
    so the hook ignores the event there.
    """
    if not event.run.head:
        return
    deadline = event.clock() + CANCEL_TIMEOUT_S
    while not _cancel(event, last=not event.before_script or event.clock() + AGENT_TIMEOUT_S > deadline):
        time.sleep(PAUSE_S)


def _cancel(event: MomEvent, *, last: bool) -> bool:
    """Request the cancellation once. Return False if the caller must retry."""
    try:
        event.ask_about_run("cancel", event.run, grace=AGENT_TIMEOUT_S, reason=DELETED_REASON)
    except AgentUnreachable as error:
        if last:
            event.log_job("%s; the server hook or reconciliation will end the cluster" % error)
        return last
    except AgentRefused as error:
        if error.slug == BUSY_SLUG and not last:
            return False
        event.log_job("not cancelled: %s" % error)
    return True


def handle_abort(event: MomEvent) -> None:
    """Remove an attempt that did not start."""
    _remove(event, ABORT_WAIT_S, retry_until=event.clock())
    run, variables = event.run, event.job.Variable_List
    if run.head and read_unreported_reason(variables, run.attempt) is None:
        vnodes = parse_exec_vnode(str(event.job.exec_vnode))
        hosts = dict.fromkeys(vnode.partition("[")[0] for vnode in vnodes)
        variables[REASON_VARIABLE] = format_reason(run.attempt, NOT_BEGUN % (", ".join(hosts), RETRY_SUFFIX))


def handle_end(event: MomEvent) -> None:
    """Remove an ended attempt. Retry for ``END_TIMEOUT_S`` seconds while the agent does not answer or is busy.

    PBS runs this event in a separate process, before the MoM reports the job's end.
    """
    deadline = event.clock() + END_TIMEOUT_S
    while not _remove(event, event.settings.removal, retry_until=deadline):
        time.sleep(PAUSE_S)


def _remove(event: MomEvent, wait: float, *, retry_until: float) -> bool:
    """Request the removal of an attempt. Return False if the caller must retry.

    Until the time ``retry_until``, the caller must retry if the agent does not answer or is busy.
    """
    try:
        answer = event.ask_about_run("remove", event.run, wait=wait, grace=AGENT_TIMEOUT_S)
    except (AgentUnreachable, AgentRefused) as error:
        is_passing = isinstance(error, AgentUnreachable) or error.slug == BUSY_SLUG
        if is_passing and event.clock() < retry_until:
            return False
        event.log_job("%s; the server hook or reconciliation will end the cluster" % error)
        return True
    if wait and not answer.get("gone", True):
        event.log_job("not removed completely yet: %s" % "; ".join(answer.get("missing") or []))
    return True


def handle_host_periodic(event: MomEvent) -> None:
    """Report to the agent all jobs that have a cluster.

    PBS does not name the host's jobs at the start of a MoM (``exechost_startup``), so this event is the first report.
    """
    listed = [job for job in event.event.job_list.values() if not is_in_array(job)]  # the agent refuses array jobs
    jobs = [job for job in listed if read_resource(job, REQUEST_RESOURCE) is not None]
    clusters = [[cluster_key(job), attempt_number(job)] for job in jobs]
    try:
        event.ask_about_host({"do": "running", "clusters": clusters})
    except (AgentUnreachable, AgentRefused) as error:
        event.log(str(error))
