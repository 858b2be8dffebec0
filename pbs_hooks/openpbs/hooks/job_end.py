"""A run ends on a host, well or badly: the agent hears it; an agent that does not answer leaves it to others.

The server's hook ends the cluster too, and the reconciliation ends what both of them missed, so nothing here fails a
job, and nothing waits for long.

Which jobs this host has, told to its agent from time to time: what PBS has lost must not stay up.
"""

import time
from typing import Any, List

from pbs_hooks.kit.agent_client import AgentRefused, AgentUnreachable
from pbs_hooks.openpbs.hooks.mom_event import RETRY_SUFFIX, MomEvent
from pbs_hooks.openpbs.hooks.pbs_job import (
    REASON_VARIABLE,
    REQUEST_RESOURCE,
    attempt_number,
    cluster_key,
    format_reason,
    parse_exec_vnode,
    read_resource,
    read_unreported_reason,
)

DELETED_REASON = "the job was deleted"
AGENT_TIMEOUT_S = 2.0
"""A MoM does nothing else while preterm and abort run."""
CANCEL_TIMEOUT_S = 8.0
"""So long an agent that starts again is waited for: a deletion it does not hear is lost while the barrier waits."""
PAUSE_S = 0.5
ABORT_WAIT_S = 0.0
NOT_BEGUN = "vcluster: one of %s could not begin the job, and its log says why%s"


def handle_preterm(event: MomEvent) -> None:
    """Tell the agent that the job is deleted: the barrier, which PBS lets wait on, hears it from there.

    On the host of the script PBS runs this for ``qdel`` only; on the others at every end, of which they hear later.
    """
    if not event.run.head:
        return
    ends = event.clock() + CANCEL_TIMEOUT_S
    while not _cancel(event, last=not event.before_script or event.clock() + AGENT_TIMEOUT_S > ends):
        time.sleep(PAUSE_S)


def _cancel(event: MomEvent, *, last: bool) -> bool:
    """Say whether there is nothing more to try."""
    try:
        event.about("cancel", event.run, grace=AGENT_TIMEOUT_S, reason=DELETED_REASON)
    except AgentUnreachable as error:
        if last:
            event.note("the deletion is left to the server and the reconciliation: %s" % error)
        return last
    except AgentRefused as error:
        event.note("nothing is cancelled: %s" % error)
    return True


def handle_abort(event: MomEvent) -> None:
    """Let go of a run that did not start; its first host leaves a reason, unless it has one of its own."""
    _remove(event, ABORT_WAIT_S)
    run, variables = event.run, event.job.Variable_List
    if run.head and read_unreported_reason(variables, run.attempt) is None:
        hosts = ", ".join(parse_exec_vnode(str(event.job.exec_vnode)))
        variables[REASON_VARIABLE] = format_reason(run.attempt, NOT_BEGUN % (hosts, RETRY_SUFFIX))


def handle_end(event: MomEvent) -> None:
    """Let go of a run that is over; this runs beside the MoM, which reports the job's end when it is done."""
    _remove(event, event.settings.removal)


def _remove(event: MomEvent, wait: float) -> None:
    try:
        answer = event.about("remove", event.run, wait=wait, grace=AGENT_TIMEOUT_S)
    except (AgentUnreachable, AgentRefused) as error:
        event.note("what is left is the server's and the reconciliation's to remove: %s" % error)
        return
    if wait and not answer.get("gone", True):
        event.note("not all is gone yet: %s" % "; ".join(answer.get("missing") or []))


def handle_host_startup(event: MomEvent) -> None:
    """Tell it that a MoM begins; PBS names no jobs here, and the agent forgives what is missed once."""
    _report_running(event, [])


def handle_host_periodic(event: MomEvent) -> None:
    """Tell it the jobs with a cluster."""
    jobs = [job for job in event.event.job_list.values() if read_resource(job, REQUEST_RESOURCE) is not None]
    _report_running(event, [[cluster_key(job), attempt_number(job)] for job in jobs])


def _report_running(event: MomEvent, clusters: List[List[Any]]) -> None:
    try:
        event.tell({"do": "running", "clusters": clusters})
    except (AgentUnreachable, AgentRefused) as error:
        event.log(str(error))
