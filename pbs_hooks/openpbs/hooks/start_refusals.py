"""Decides what happens to a job after SBF refused its cluster: a table of rules by problem name. Pure."""

import re
from typing import Callable, Mapping, NamedTuple, Optional

from pbs_hooks.kit.sbf_client import SbfAnswer, SbfUnreachable
from pbs_hooks.openpbs.hooks.pbs_job import RETRY_SUFFIX

SHORT_RETRY_S = 5
"""Seconds until the next try if the obstacle ends soon. For example, a former run's network is being removed."""
LIVE_STATES = ("requested", "configuring", "active", "degraded")


class RefusalContext(NamedTuple):
    """The job's owner, the network to join (or None), and a mapping from SBF's host names to PBS's host names."""

    owner: str
    net: Optional[str]
    hosts: Mapping[str, str]


class StartRefusal(NamedTuple):
    """The refusal to start a job now.

    - ``wait``: the number of seconds until the next try. 0: the next try is in the next scheduling cycle.
    - ``hold``: who must release the job. ``u``: the user, who must first change the job. ``s``: an administrator. None:
      the job is not held.
    - ``alert``: true if administrators should see the message.
    """

    message: str
    wait: int = 0
    hold: Optional[str] = None
    alert: bool = False


RefusalRule = Callable[[SbfAnswer, RefusalContext, int], StartRefusal]


def decide_refusal(answer: SbfAnswer, context: RefusalContext, retry_after: int) -> Optional[StartRefusal]:
    """Return the refusal of the job's start; None if the job can start, or if this attempt is over."""
    if answer.ok or is_attempt_over(answer):
        return None
    return REFUSAL_RULES.get(answer.slug, _refuse_unexpected)(answer, context, retry_after)


def is_attempt_over(answer: SbfAnswer) -> bool:
    """Return whether this attempt can no longer have a cluster, so that the job needs a new attempt number.

    PBS increments the run number only when it sends the job to a host. If another hook rejects the job before that, or
    files cannot be staged, the job's next start has the same attempt number. SBF may then have a request with this
    number for other hosts.
    """
    if answer.ok:
        state = answer.document.get("state") if isinstance(answer.document, dict) else None
        return state not in LIVE_STATES
    return answer.slug in {"gone", "other-spec"}


def refuse_unreachable(error: SbfUnreachable, retry_after: int) -> StartRefusal:
    """Return the refusal if SBF did not answer, or sent an answer that cannot be used."""
    return StartRefusal("vcluster: %s (%s)%s" % (error.summary, error, RETRY_SUFFIX), retry_after, alert=True)


def _refuse_unlinked_host(answer: SbfAnswer, context: RefusalContext, retry_after: int) -> StartRefusal:
    words = re.findall(r"[a-z][a-z0-9-]*", answer.detail)
    host = next((context.hosts[word] for word in words if word in context.hosts), None)
    if host is None:
        return _refuse_unexpected(answer, context, retry_after)
    return StartRefusal("vcluster: host %s has no switch port in SBF%s" % (host, RETRY_SUFFIX), retry_after, alert=True)


def _refuse_for_now(answer: SbfAnswer, _context: RefusalContext, retry_after: int) -> StartRefusal:
    return StartRefusal("vcluster: %s%s" % (answer.detail, RETRY_SUFFIX), retry_after)


def _refuse_shortly(answer: SbfAnswer, _context: RefusalContext, _retry_after: int) -> StartRefusal:
    return StartRefusal("vcluster: %s%s" % (answer.detail, RETRY_SUFFIX), SHORT_RETRY_S)


def _refuse_until_next_cycle(answer: SbfAnswer, _context: RefusalContext, _retry_after: int) -> StartRefusal:
    return StartRefusal("vcluster: %s" % answer.detail)


def _refuse_and_hold(answer: SbfAnswer, _context: RefusalContext, _retry_after: int) -> StartRefusal:
    return StartRefusal("vcluster: %s" % answer.detail, hold="u")


def _refuse_former_run(answer: SbfAnswer, _context: RefusalContext, _retry_after: int) -> StartRefusal:
    """Return the refusal while the network of the job's former run is still being removed.

    The message contains the obstacle to the removal, if SBF names one.
    """
    waits = answer.detail.partition("; ")[2]
    text = "the network of the job's former run is still being removed" + (" (%s)" % waits if waits else "")
    return StartRefusal("vcluster: %s%s" % (text, RETRY_SUFFIX), SHORT_RETRY_S)


def _refuse_missing_network(answer: SbfAnswer, context: RefusalContext, retry_after: int) -> StartRefusal:
    if context.net is None:
        return _refuse_unexpected(answer, context, retry_after)
    return StartRefusal("vcluster: network '%s' is not running%s" % (context.net, RETRY_SUFFIX), retry_after)


def _refuse_forbidden(answer: SbfAnswer, context: RefusalContext, retry_after: int) -> StartRefusal:
    """Return the refusal for a missing right.

    If the job does not join a network, the batch system lacks a right, which is the site's fault. If the job joins a
    network, the network is not shared with the job's owner, who must change the job.
    """
    if context.net is None:
        return _refuse_unexpected(answer, context, retry_after)
    return StartRefusal(format_not_shared(context.net, context.owner), hold="u")


def format_not_shared(net: str, user: str) -> str:
    """Return the message for a user who may not join a network."""
    return "vcluster: network '%s' is not shared with %s" % (net, user)


def _refuse_malformed(answer: SbfAnswer, _context: RefusalContext, _retry_after: int) -> StartRefusal:
    return StartRefusal("vcluster: SBF cannot create this network: %s" % answer.detail, hold="s", alert=True)


def _refuse_unexpected(answer: SbfAnswer, _context: RefusalContext, retry_after: int) -> StartRefusal:
    return StartRefusal("vcluster: SBF refused: %s%s" % (answer.detail, RETRY_SUFFIX), retry_after, alert=True)


REFUSAL_RULES = {
    "no-such-host": _refuse_unlinked_host,
    "host-not-linked": _refuse_unlinked_host,
    "no-vlan-free": _refuse_for_now,
    "vlan-not-in-pool": _refuse_and_hold,
    "quota-exceeded": _refuse_until_next_cycle,
    "name-taken": _refuse_shortly,
    "attempt-waits": _refuse_former_run,
    "guest-taken": _refuse_shortly,
    "conflict": _refuse_for_now,
    "no-such-network": _refuse_missing_network,
    "forbidden": _refuse_forbidden,
    "not-admitted": _refuse_unexpected,
    "beyond-limit": _refuse_and_hold,
    "bad-input": _refuse_malformed,
    "too-many-requests": _refuse_shortly,
}  # type: Mapping[str, RefusalRule]
