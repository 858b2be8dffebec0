"""A run of a job is over, however it ended: its cluster ends, and no other run's."""

from virtcloud.pbs.hooks import quota
from virtcloud.pbs.hooks.event import Event
from virtcloud.pbs.hooks.job import ASKED, attempt, in_array, key, resource
from virtcloud.pbs.hooks.service import AwayError

UNKNOWN = (404, 410)
"""It was never made, or a later run has one by now: there is nothing to end."""


def jobobit(event: Event) -> None:
    """End the cluster of exactly this attempt."""
    job = event.job
    number = attempt(job)
    if resource(job, ASKED) is None or not number or in_array(job):
        return
    quota.forget()
    end_run(event, number)


def end_run(event: Event, number: int) -> None:
    """End a job's cluster of one attempt; what cannot be said now is left to the reconciliation."""
    job = event.job
    name = "cluster %s, attempt %d" % (key(job), number)
    try:
        answer = event.sbf.end(key(job), number, str(job.euser))
    except AwayError as error:
        event.log("%s is left to the reconciliation to end: SBF cannot be asked: %s" % (name, error))
        return
    if not answer.well and answer.status not in UNKNOWN:
        event.alert("%s is left to the reconciliation to end: %s" % (name, answer.detail))
