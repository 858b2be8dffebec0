"""A run ends on a host, well or badly: the agent hears it; an agent that does not answer leaves it to others.

The server's hook ends the cluster too, and the reconciliation ends what both of them missed, so nothing here fails a
job, and nothing waits for long.
"""

import time

from virtcloud.pbs.hooks.agent import AgentAway, AgentRefused
from virtcloud.pbs.hooks.faults import AGAIN
from virtcloud.pbs.hooks.job import hosts_of
from virtcloud.pbs.hooks.mom_event import MomEvent
from virtcloud.pbs.hooks.reason import NAME, untold, written

DELETED = "the job was deleted"
ASK_S = 2.0
"""A MoM does nothing else while preterm and abort run."""
CANCEL_S = 8.0
"""So long an agent that starts again is waited for: a deletion it does not hear is lost while the barrier waits."""
PAUSE_S = 0.5
ABORT_S = 0.0
NOT_BEGUN = "vcluster: one of %s could not begin the job, and its log says why%s"


def preterm(event: MomEvent) -> None:
    """Tell the agent that the job is deleted: the barrier, which PBS lets wait on, hears it from there.

    On the host of the script PBS runs this for ``qdel`` only; on the others at every end, of which they hear later.
    """
    if not event.run.head:
        return
    ends = event.clock() + CANCEL_S
    while not _cancelled(event, last=not event.before_script or event.clock() + ASK_S > ends):
        time.sleep(PAUSE_S)


def _cancelled(event: MomEvent, *, last: bool) -> bool:
    """Say whether there is nothing more to try."""
    try:
        event.about("cancel", event.run, grace=ASK_S, reason=DELETED)
    except AgentAway as error:
        if last:
            event.note("the deletion is left to the server and the reconciliation: %s" % error)
        return last
    except AgentRefused as error:
        event.note("nothing is cancelled: %s" % error)
    return True


def abort(event: MomEvent) -> None:
    """Let go of a run that did not start; its first host leaves a reason, unless it has one of its own."""
    _removed(event, ABORT_S)
    run, variables = event.run, event.job.Variable_List
    if run.head and untold(variables, run.attempt) is None:
        hosts = ", ".join(hosts_of(str(event.job.exec_vnode)))
        variables[NAME] = written(run.attempt, NOT_BEGUN % (hosts, AGAIN))


def end(event: MomEvent) -> None:
    """Let go of a run that is over; this runs beside the MoM, which reports the job's end when it is done."""
    _removed(event, event.settings.removal)


def _removed(event: MomEvent, wait: float) -> None:
    try:
        answer = event.about("remove", event.run, wait=wait, grace=ASK_S)
    except (AgentAway, AgentRefused) as error:
        event.note("what is left is the server's and the reconciliation's to remove: %s" % error)
        return
    if wait and not answer.get("gone", True):
        event.note("not all is gone yet: %s" % "; ".join(answer.get("missing") or []))
