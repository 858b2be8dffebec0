"""Requests to SBF about one job's cluster.

A request is repeated while SBF does not answer, or refuses it for a passing reason (:func:`decide_exit`). The deletion
of the cluster is never repeated.
"""

from typing import Any, Callable, Dict, Optional, Sequence, Union
from urllib.parse import quote

from pbs_hooks.kit.deadline import Deadline
from pbs_hooks.kit.sbf_client import SbfAddress, SbfAnswer, SbfUnreachable, call_sbf
from pbs_hooks.torque.scripts.script_call import EXIT_ABORT, RetryBudget, ScriptExit, requeue
from virtcloud.jobs.job_cluster_spec import JobNetwork, parse_network
from virtcloud.jobs.request_ids import job_request_id
from virtcloud.jobs.request_values import RequestError

CALL_TIMEOUT_S = 10.0
NOT_FOUND = 404
ENDED_STATUSES = (NOT_FOUND, 410)
"""The cluster does not exist, or the key already belongs to another owner."""
FIRST_SERVER_ERROR = 500
RETRY_SLUGS = (
    "attempt-waits",
    "job-unproven",
    "guest-taken",
    "too-many-requests",
    "database-unavailable",
    "service-unreachable",
)
REQUEUE_SLUGS = ("no-vlan-free", "quota-exceeded", "unauthenticated", "conflict", "no-gateway", "other-spec", "gone")
"""Problems that may disappear before the job's next try. The request itself is valid, so the job is requeued.

``other-spec`` and ``gone``: a late request of a former run has used the attempt number. The next try has a higher
number.
"""
UNLINKED_SLUGS = ("no-such-host", "host-not-linked")


class JobSbfClient:
    """Client of SBF for the cluster of one job."""

    def __init__(self, where: SbfAddress, key: str, patience: RetryBudget) -> None:
        """Store SBF's address, the cluster's key, and the time for retries."""
        self._where, self._patience = where, patience
        self._key, self._path = key, "/v1/clusters/" + quote(key, safe="")
        self._request_id = job_request_id(key, None)

    def next_attempt(self) -> int:
        """Return SBF's last attempt number plus one, because Torque does not count runs.

        Raise ScriptExit if SBF refuses the request, or if the time runs out.
        """
        answer = self._call("GET", self._path)
        while not answer.ok and answer.status != NOT_FOUND:
            self._check(answer, ())
            answer = self._call("GET", self._path)
        if answer.status == NOT_FOUND:
            return 1
        return int(answer.document["attempt"]) + 1

    def put(self, spec: Callable[[], Dict[str, Any]], attempt: int) -> None:
        """Request the cluster until SBF accepts the request.

        Raise ScriptExit if SBF refuses the request, or the time runs out. Raise the RequestError of ``spec``, too.

        SBF first removes a former run's cluster, which a failed host may have left. Each try builds the spec again,
        because the joined network may have changed.
        """
        while True:
            wanted = spec()
            answer = self._call("PUT", self._path, {"spec": wanted, "attempt": attempt})
            if answer.ok:
                return
            self._check(answer, wanted["hosts"])

    def network(self, name: str) -> JobNetwork:
        """Return the running network that the job joins.

        Raise RequestError if no such network runs. Raise ScriptExit if SBF refuses the request, or if the time runs
        out.
        """
        path = "/v1/clusters?network=" + quote(name, safe="")
        answer = self._call("GET", path)
        while not answer.ok:
            self._check(answer, ())
            answer = self._call("GET", path)
        found = parse_network(answer.document, self._key)
        if found is None:
            raise RequestError("net: expected the name of a running network, got %r" % name)
        return found

    def end(self, owner: str) -> None:
        """End the owner's cluster. Idempotent: do nothing if the cluster does not exist or has another owner.

        Raise the errors of :func:`call_sbf`, and SbfUnreachable for an answer with another error status than 404 and
        410.
        """
        path = "%s?owner=%s" % (self._path, quote(owner, safe=""))
        answer = call_sbf(self._where, "DELETE", path, None, Deadline(CALL_TIMEOUT_S), self._request_id)
        if not answer.ok and answer.status not in ENDED_STATUSES:
            raise SbfUnreachable(answer.detail)

    def _call(self, method: str, path: str, document: Optional[Dict[str, Any]] = None) -> SbfAnswer:
        while True:
            answer = self._call_once(method, path, document)
            if isinstance(answer, SbfAnswer):
                return answer
            self._patience.pause("SBF at %s: %s" % (self._where.sbf, answer))

    def _call_once(
        self, method: str, path: str, document: Optional[Dict[str, Any]]
    ) -> Union[SbfAnswer, SbfUnreachable]:
        try:
            return call_sbf(self._where, method, path, document, Deadline(CALL_TIMEOUT_S), self._request_id)
        except SbfUnreachable as error:
            return error

    def _check(self, answer: SbfAnswer, hosts: Sequence[str]) -> None:
        """Return if SBF accepted the request, or after a pause if the caller should repeat it.

        Otherwise raise ScriptExit, also if the time runs out or the job was deleted.
        """
        if answer.ok:
            return
        script_exit = decide_exit(answer, hosts)
        if script_exit is not None:
            raise script_exit
        self._patience.pause(answer.detail)


def decide_exit(answer: SbfAnswer, hosts: Sequence[str]) -> Optional[ScriptExit]:
    """Return the exit code and message for a refusal by SBF; None if the request should be repeated. Pure."""
    if answer.slug in RETRY_SLUGS or answer.status >= FIRST_SERVER_ERROR:
        return None
    if answer.slug in UNLINKED_SLUGS:
        host = next((name for name in hosts if name in answer.detail.split()), ", ".join(hosts))
        return requeue("host %s has no switch port in SBF" % host)
    if answer.slug in REQUEUE_SLUGS:
        return requeue(answer.detail)
    return ScriptExit(EXIT_ABORT, answer.detail)
