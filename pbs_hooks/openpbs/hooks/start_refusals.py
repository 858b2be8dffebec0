"""What SBF's answer to a job's cluster means for the job: a table, by the name of the problem. Decides only."""

import re
from typing import Callable, Mapping, NamedTuple, Optional

from pbs_hooks.kit.sbf_client import SbfAnswer

SHORT_RETRY_S = 5
"""For what passes by itself within seconds: a former run's network that is being removed, two jobs at once."""
RETRY_SUFFIX = "; the job will be tried again"
LIVE_STATES = ("requested", "configuring", "active", "degraded")


class RefusalContext(NamedTuple):
    """What was asked: by whose job, for which network to join, and what PBS calls SBF's hosts."""

    owner: str
    net: Optional[str]
    hosts: Mapping[str, str]


class StartRefusal(NamedTuple):
    """The job does not start now.

    ``wait``: seconds until it is tried again, 0 for the next scheduling cycle; ``hold``: who must release it (``u`` the
    user, after altering it; ``s`` an administrator); ``alert`` is for administrators.
    """

    message: str
    wait: int = 0
    hold: Optional[str] = None
    alert: bool = False


RefusalRule = Callable[[SbfAnswer, RefusalContext, int], StartRefusal]


def decide_refusal(answer: SbfAnswer, asked: RefusalContext, retry_after: int) -> Optional[StartRefusal]:
    """Say why the job cannot start now; nothing when it can, or when this attempt is over."""
    if answer.well or is_attempt_over(answer):
        return None
    return REFUSAL_RULES.get(answer.slug, _refuse_unexpected)(answer, asked, retry_after)


def is_attempt_over(answer: SbfAnswer) -> bool:
    """Say whether nothing will come of this attempt: only a later one, with a number of its own, can have a cluster.

    PBS counts runs when it sends the job to its host, and so offers a number again when a hook after this one refused,
    or files could not be staged. It was used then, perhaps for other hosts.
    """
    if answer.well:
        state = answer.document.get("state") if isinstance(answer.document, dict) else None
        return state not in LIVE_STATES
    return answer.slug in {"gone", "other-spec"}


def refuse_unreachable(why: str, retry_after: int) -> StartRefusal:
    """SBF did not answer."""
    return StartRefusal(
        "vcluster: SBF cannot be asked for the network (%s)%s" % (why, RETRY_SUFFIX), retry_after, alert=True
    )


def _refuse_unlinked_host(answer: SbfAnswer, asked: RefusalContext, retry_after: int) -> StartRefusal:
    words = re.findall(r"[a-z][a-z0-9-]*", answer.detail)
    named = next((asked.hosts[word] for word in words if word in asked.hosts), None)
    if named is None:
        return _refuse_unexpected(answer, asked, retry_after)
    return StartRefusal(
        "vcluster: host %s has no switch port in SBF%s" % (named, RETRY_SUFFIX), retry_after, alert=True
    )


def _refuse_for_now(answer: SbfAnswer, _asked: RefusalContext, retry_after: int) -> StartRefusal:
    return StartRefusal("vcluster: %s%s" % (answer.detail, RETRY_SUFFIX), retry_after)


def _refuse_shortly(answer: SbfAnswer, _asked: RefusalContext, _retry_after: int) -> StartRefusal:
    return StartRefusal("vcluster: %s%s" % (answer.detail, RETRY_SUFFIX), SHORT_RETRY_S)


def _refuse_until_next_cycle(answer: SbfAnswer, _asked: RefusalContext, _retry_after: int) -> StartRefusal:
    return StartRefusal("vcluster: %s" % answer.detail)


def _refuse_and_hold(answer: SbfAnswer, _asked: RefusalContext, _retry_after: int) -> StartRefusal:
    return StartRefusal("vcluster: %s" % answer.detail, hold="u")


def _refuse_former_run(answer: SbfAnswer, _asked: RefusalContext, _retry_after: int) -> StartRefusal:
    """Say what the former run waits for, which SBF adds to its words."""
    waits = answer.detail.partition("; ")[2]
    what = "the network of the job's former run is still being removed" + (" (%s)" % waits if waits else "")
    return StartRefusal("vcluster: %s%s" % (what, RETRY_SUFFIX), SHORT_RETRY_S)


def _refuse_missing_network(answer: SbfAnswer, asked: RefusalContext, retry_after: int) -> StartRefusal:
    if asked.net is None:
        return _refuse_unexpected(answer, asked, retry_after)
    return StartRefusal("vcluster: network '%s' is not running%s" % (asked.net, RETRY_SUFFIX), retry_after)


def _refuse_forbidden(answer: SbfAnswer, asked: RefusalContext, retry_after: int) -> StartRefusal:
    """Tell the user's fault from the site's: the batch system itself may have every network made."""
    if asked.net is None:
        return _refuse_unexpected(answer, asked, retry_after)
    return StartRefusal(format_not_shared(asked.net, asked.owner), hold="u")


def format_not_shared(net: str, user: str) -> str:
    """Say that a user may not join a network."""
    return "vcluster: network '%s' is not shared with %s" % (net, user)


def _refuse_malformed(answer: SbfAnswer, _asked: RefusalContext, _retry_after: int) -> StartRefusal:
    return StartRefusal("vcluster: SBF cannot make such a network: %s" % answer.detail, hold="s", alert=True)


def _refuse_unexpected(answer: SbfAnswer, _asked: RefusalContext, retry_after: int) -> StartRefusal:
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
