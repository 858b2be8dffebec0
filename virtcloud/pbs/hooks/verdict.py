"""What SBF's answer to a job's cluster means for the job: a table, by the name of the problem. Decides only."""

import re
from typing import Callable, Mapping, NamedTuple, Optional

from virtcloud.pbs.hooks.service import Answer

SHORT_S = 5
"""For what passes by itself within seconds: a former run's network that is being removed, two jobs at once."""
AGAIN = "; the job will be tried again"
RUNS = ("requested", "configuring", "active", "degraded")


class Asked(NamedTuple):
    """What was asked: by whose job, for which network to join, and what PBS calls SBF's hosts."""

    owner: str
    net: Optional[str]
    hosts: Mapping[str, str]


class Refusal(NamedTuple):
    """The job does not start now.

    ``wait``: seconds until it is tried again, 0 for the next scheduling cycle; ``hold``: who must release it (``u`` the
    user, after altering it; ``s`` an administrator); ``alert`` is for administrators.
    """

    message: str
    wait: int = 0
    hold: Optional[str] = None
    alert: bool = False


Rule = Callable[[Answer, Asked, int], Refusal]


def refusal(answer: Answer, asked: Asked, retry_after: int) -> Optional[Refusal]:
    """Say why the job cannot start now; nothing when it can, or when this attempt is over."""
    if answer.well or over(answer):
        return None
    return RULES.get(answer.slug, _unexpected)(answer, asked, retry_after)


def over(answer: Answer) -> bool:
    """Say whether nothing will come of this attempt: only a later one, with a number of its own, can have a cluster.

    PBS counts runs when it sends the job to its host, and so offers a number again when a hook after this one refused,
    or files could not be staged. It was used then, perhaps for other hosts.
    """
    if answer.well:
        state = answer.document.get("state") if isinstance(answer.document, dict) else None
        return state not in RUNS
    return answer.slug in {"gone", "other-spec"}


def away(why: str, retry_after: int) -> Refusal:
    """SBF did not answer."""
    return Refusal("vcluster: SBF cannot be asked for the network (%s)%s" % (why, AGAIN), retry_after, alert=True)


def _host(answer: Answer, asked: Asked, retry_after: int) -> Refusal:
    words = re.findall(r"[a-z][a-z0-9-]*", answer.detail)
    named = next((asked.hosts[word] for word in words if word in asked.hosts), None)
    if named is None:
        return _unexpected(answer, asked, retry_after)
    return Refusal("vcluster: host %s has no switch port in SBF%s" % (named, AGAIN), retry_after, alert=True)


def _passing(answer: Answer, _asked: Asked, retry_after: int) -> Refusal:
    return Refusal("vcluster: %s%s" % (answer.detail, AGAIN), retry_after)


def _soon(answer: Answer, _asked: Asked, _retry_after: int) -> Refusal:
    return Refusal("vcluster: %s%s" % (answer.detail, AGAIN), SHORT_S)


def _queued(answer: Answer, _asked: Asked, _retry_after: int) -> Refusal:
    return Refusal("vcluster: %s" % answer.detail)


def _user(answer: Answer, _asked: Asked, _retry_after: int) -> Refusal:
    return Refusal("vcluster: %s" % answer.detail, hold="u")


def _former(answer: Answer, _asked: Asked, _retry_after: int) -> Refusal:
    """Say what the former run waits for, which SBF adds to its words."""
    waits = answer.detail.partition("; ")[2]
    what = "the network of the job's former run is still being removed" + (" (%s)" % waits if waits else "")
    return Refusal("vcluster: %s%s" % (what, AGAIN), SHORT_S)


def _not_running(answer: Answer, asked: Asked, retry_after: int) -> Refusal:
    if asked.net is None:
        return _unexpected(answer, asked, retry_after)
    return Refusal("vcluster: network '%s' is not running%s" % (asked.net, AGAIN), retry_after)


def _forbidden(answer: Answer, asked: Asked, retry_after: int) -> Refusal:
    """Tell the user's fault from the site's: the batch system itself may have every network made."""
    if asked.net is None:
        return _unexpected(answer, asked, retry_after)
    return Refusal(not_shared(asked.net, asked.owner), hold="u")


def not_shared(net: str, user: str) -> str:
    """Say that a user may not join a network."""
    return "vcluster: network '%s' is not shared with %s" % (net, user)


def _malformed(answer: Answer, _asked: Asked, _retry_after: int) -> Refusal:
    return Refusal("vcluster: SBF cannot make such a network: %s" % answer.detail, hold="s", alert=True)


def _unexpected(answer: Answer, _asked: Asked, retry_after: int) -> Refusal:
    return Refusal("vcluster: SBF refused: %s%s" % (answer.detail, AGAIN), retry_after, alert=True)


RULES = {
    "no-such-host": _host,
    "host-not-linked": _host,
    "no-vlan-free": _passing,
    "vlan-not-in-pool": _user,
    "quota-exceeded": _queued,
    "name-taken": _soon,
    "attempt-waits": _former,
    "guest-taken": _soon,
    "conflict": _passing,
    "no-such-network": _not_running,
    "forbidden": _forbidden,
    "not-admitted": _unexpected,
    "beyond-limit": _user,
    "bad-input": _malformed,
    "too-many-requests": _soon,
}  # type: Mapping[str, Rule]
