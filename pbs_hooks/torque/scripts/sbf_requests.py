"""SBF for one job. A call is repeated while SBF is away, for as long as the job may take."""

from typing import Any, Callable, Dict, Optional, Sequence, Union
from urllib.parse import quote

from pbs_hooks.kit.deadline import Deadline
from pbs_hooks.kit.sbf_client import SbfAddress, SbfAnswer, SbfUnreachable, call_sbf
from pbs_hooks.torque.scripts.script_call import EXIT_ABORT, EXIT_REQUEUE, RetryBudget, ScriptExit
from virtcloud.jobs.job_cluster_spec import JobNetwork, parse_network
from virtcloud.jobs.request_values import RequestError

CALL_TIMEOUT_S = 10.0
NOT_FOUND = 404
ENDED_STATUSES = (NOT_FOUND, 410)
"""It never was, or the key is another owner's by now."""
FIRST_SERVER_ERROR = 500
RETRY_SLUGS = (
    "attempt-waits",
    "job-unproven",
    "guest-taken",
    "too-many-requests",
    "database-unavailable",
    "service-unreachable",
)
"""What may be otherwise in a moment."""
REQUEUE_SLUGS = ("no-vlan-free", "quota-exceeded", "unauthenticated")
"""What may be otherwise when the job is tried again: its request is right."""
UNLINKED_SLUGS = ("no-such-host", "host-not-linked")


class JobSbfClient:
    """The calls about one cluster."""

    def __init__(self, where: SbfAddress, key: str, patience: RetryBudget) -> None:
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

    def network(self, name: str) -> JobNetwork:
        """Give the running network that is to be joined; raises RequestError when there is none."""
        answer = self._ask("GET", "/v1/clusters?network=" + quote(name, safe=""))
        found = parse_network(answer.document, self._key) if answer.well else None
        if found is None:
            raise RequestError("net: expected the name of a running network, got %r" % name)
        return found

    def end(self, owner: str) -> None:
        """End the owner's cluster; raises AwayError, also when SBF refuses. One that never was, or is over, is fine."""
        path = "%s?owner=%s" % (self._path, quote(owner, safe=""))
        answer = call_sbf(self._where, "DELETE", path, deadline=Deadline(CALL_TIMEOUT_S))
        if not answer.well and answer.status not in ENDED_STATUSES:
            raise SbfUnreachable(answer.detail)

    def _ask(self, method: str, path: str, document: Optional[Dict[str, Any]] = None) -> SbfAnswer:
        while True:
            answer = self._asked(method, path, document)
            if isinstance(answer, SbfAnswer):
                return answer
            self._patience.pause("SBF at %s: %s" % (self._where.sbf, answer))

    def _asked(self, method: str, path: str, document: Optional[Dict[str, Any]]) -> Union[SbfAnswer, SbfUnreachable]:
        try:
            return call_sbf(self._where, method, path, document, Deadline(CALL_TIMEOUT_S))
        except SbfUnreachable as error:
            return error

    def _check(self, answer: SbfAnswer, hosts: Sequence[str]) -> None:
        """Return when it is to be tried again in a moment; raises Ended when that is of no use."""
        if answer.well:
            return
        ended = decide_exit(answer, hosts)
        if ended is not None:
            raise ended
        self._patience.pause(answer.detail)


def decide_exit(answer: SbfAnswer, hosts: Sequence[str]) -> Optional[ScriptExit]:
    """PURE. Say what a refusal is for the job; nothing when the call is to be repeated."""
    if answer.slug in RETRY_SLUGS or answer.status >= FIRST_SERVER_ERROR:
        return None
    if answer.slug in UNLINKED_SLUGS:
        host = next((one for one in hosts if one in answer.detail.split()), ", ".join(hosts))
        return ScriptExit(EXIT_REQUEUE, "host %s has no switch port in SBF; the job will be tried again" % host)
    if answer.slug in REQUEUE_SLUGS:
        return ScriptExit(EXIT_REQUEUE, "%s; the job will be tried again" % answer.detail)
    return ScriptExit(EXIT_ABORT, answer.detail)
