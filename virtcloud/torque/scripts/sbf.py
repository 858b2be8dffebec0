"""SBF for one job. A call is repeated while SBF is away, for as long as the job may take."""

from typing import Any, Callable, Dict, Optional, Sequence, Union
from urllib.parse import quote

from virtcloud.jobs.cluster import Network, network_of
from virtcloud.jobs.errors import RequestError
from virtcloud.pbs.hooks.deadline import Deadline
from virtcloud.pbs.hooks.service import Answer, AwayError, Where, call
from virtcloud.torque.scripts.call import ABORT, REQUEUE, Ended
from virtcloud.torque.scripts.patience import Patience

CALL_S = 10.0
NOT_FOUND = 404
OVER = (NOT_FOUND, 410)
"""It never was, or the key is another owner's by now."""
FAULT = 500
AGAIN = (
    "attempt-waits",
    "job-unproven",
    "guest-taken",
    "too-many-requests",
    "database-unavailable",
    "service-unreachable",
)
"""What may be otherwise in a moment."""
LATER = ("no-vlan-free", "quota-exceeded", "unauthenticated")
"""What may be otherwise when the job is tried again: its request is right."""
UNLINKED = ("no-such-host", "host-not-linked")


class Sbf:
    """The calls about one cluster."""

    def __init__(self, where: Where, key: str, patience: Patience) -> None:
        """Say which cluster, and how long the job may take."""
        self._where, self._patience = where, patience
        self._key, self._path = key, "/v1/clusters/" + quote(key, safe="")

    def next_attempt(self) -> int:
        """Give the number of this run: one more than SBF has seen of the job, which Torque does not count."""
        answer = self._ask("GET", self._path)
        while not answer.well and answer.status != NOT_FOUND:
            self._check(answer, ())
            answer = self._ask("GET", self._path)
        if answer.status == NOT_FOUND:
            return 1
        return int(answer.document["attempt"]) + 1

    def put(self, spec: Callable[[], Dict[str, Any]], attempt: int) -> None:
        """Ask for the cluster, until SBF has taken it on; raises Ended and RequestError.

        A former run's cluster, which a dead host may have left, goes first. The spec is made anew for each try: a
        network that is joined may have changed.
        """
        while True:
            asked = spec()
            answer = self._ask("PUT", self._path, {"spec": asked, "attempt": attempt})
            if answer.well:
                return
            self._check(answer, asked["hosts"])

    def network(self, name: str) -> Network:
        """Give the running network that is to be joined; raises RequestError when there is none."""
        answer = self._ask("GET", "/v1/clusters?network=" + quote(name, safe=""))
        found = network_of(answer.document, self._key) if answer.well else None
        if found is None:
            raise RequestError("net: expected the name of a running network, got %r" % name)
        return found

    def end(self, owner: str) -> None:
        """End the owner's cluster; raises AwayError, also when SBF refuses. One that never was, or is over, is fine."""
        path = "%s?owner=%s" % (self._path, quote(owner, safe=""))
        answer = call(self._where, "DELETE", path, deadline=Deadline(CALL_S))
        if not answer.well and answer.status not in OVER:
            raise AwayError(answer.detail)

    def _ask(self, method: str, path: str, document: Optional[Dict[str, Any]] = None) -> Answer:
        while True:
            answer = self._asked(method, path, document)
            if isinstance(answer, Answer):
                return answer
            self._patience.pause("SBF at %s: %s" % (self._where.sbf, answer))

    def _asked(self, method: str, path: str, document: Optional[Dict[str, Any]]) -> Union[Answer, AwayError]:
        try:
            return call(self._where, method, path, document, Deadline(CALL_S))
        except AwayError as error:
            return error

    def _check(self, answer: Answer, hosts: Sequence[str]) -> None:
        """Return when it is to be tried again in a moment; raises Ended when that is of no use."""
        if answer.well:
            return
        ended = refusal(answer, hosts)
        if ended is not None:
            raise ended
        self._patience.pause(answer.detail)


def refusal(answer: Answer, hosts: Sequence[str]) -> Optional[Ended]:
    """PURE. Say what a refusal is for the job; nothing when the call is to be repeated."""
    if answer.slug in AGAIN or answer.status >= FAULT:
        return None
    if answer.slug in UNLINKED:
        host = next((one for one in hosts if one in answer.detail.split()), ", ".join(hosts))
        return Ended(REQUEUE, "host %s has no switch port in SBF; the job will be tried again" % host)
    if answer.slug in LATER:
        return Ended(REQUEUE, "%s; the job will be tried again" % answer.detail)
    return Ended(ABORT, answer.detail)
