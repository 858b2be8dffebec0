"""Client of SBF for hooks: every call has a deadline, and a circuit breaker blocks calls after a slow failure.

After a slow failure (:data:`COSTLY_SHARE`), the hooks do not call SBF for a minute (by default). The state of the
circuit breaker is an environment variable of pbs_server's process, because PBS restarts the Python interpreter every
hundred hooks (``python_restart_max_hooks``).
"""

import http.client
import json
import os
import socket
import time
from typing import Any, Dict, NamedTuple, Optional
from urllib.parse import quote

from pbs_hooks.kit.deadline import ChildError, Deadline, DeadlineExceeded
from pbs_hooks.kit.http_exchange import AnswerTooLong, HttpRequest, send_request
from virtcloud.jobs.request_ids import REQUEST_ID_HEADER, TRACE_HEADER, job_request_id, make_traceparent

BREAKER_VARIABLE = "VIRTCLOUD_SBF_ASK_AGAIN"
COSTLY_SHARE = 0.25
"""A failed call opens the circuit breaker only if the call took more than this share of its time limit."""


def seconds_until_retry() -> float:
    """Return the seconds until the circuit breaker allows a call to SBF; 0 if a call is allowed now."""
    try:
        return max(0.0, float(os.environ.get(BREAKER_VARIABLE, "0")) - time.monotonic())
    except ValueError:
        return 0.0


def record_failed_call(spent: float, allowed: float, pause: float) -> None:
    """Record a call that failed after ``spent`` of ``allowed`` seconds.

    If the call was slow (:data:`COSTLY_SHARE`), block all further calls for ``pause`` seconds.
    """
    if spent > allowed * COSTLY_SHARE:
        os.environ[BREAKER_VARIABLE] = "%.3f" % (time.monotonic() + pause)


PROBLEM_PREFIX = "urn:virtcloud:problem:"
FIRST_REDIRECTION_STATUS, FIRST_ERROR_STATUS = 300, 400
UNAVAILABLE_STATUSES = (502, 503, 504)


class SbfUnreachable(Exception):
    """SBF did not answer or was not available, or the call was not sent. The message contains the reason.

    A call without an answer may have reached SBF.

    ``summary`` is the beginning of a message about the error.
    """

    summary = "SBF does not answer"


class AnswerUnusable(SbfUnreachable):
    """SBF, or a proxy, sent an answer that hooks cannot use."""

    summary = "the answer of SBF cannot be used"


class SbfAddress(NamedTuple):
    """The address of SBF, the file with the caller's token, and the CA file."""

    sbf: str
    token_file: Optional[str] = None
    ca_file: Optional[str] = None


class SbfAnswer(NamedTuple):
    """The answer of SBF: status and JSON document."""

    status: int
    document: Any

    @property
    def ok(self) -> bool:
        """Return whether SBF carried out the request."""
        return self.status < FIRST_ERROR_STATUS

    @property
    def slug(self) -> str:
        """The name of the problem, such as ``quota-exceeded``."""
        return str(self._problem.get("type", "")).replace(PROBLEM_PREFIX, "")

    @property
    def detail(self) -> str:
        """The description of the problem, on one line."""
        return " ".join(str(self._problem.get("detail", "HTTP status %d" % self.status)).split())

    @property
    def _problem(self) -> Dict[str, Any]:
        return self.document if isinstance(self.document, dict) else {}


class HookSbfClient:
    """Client for one hook event: one deadline covers all its calls.

    Each call raises the errors of :func:`call_sbf`, and raises SbfUnreachable if the circuit breaker blocks the call.
    """

    def __init__(self, where: SbfAddress, deadline: Deadline, allowed: float, pause: float) -> None:
        """Store SBF's address, the deadline, and two durations in seconds.

        ``allowed`` is the duration from which the deadline was computed. ``pause`` is the duration for which the
        circuit breaker blocks calls after a slow failure.
        """
        self._where, self._deadline, self._allowed, self._pause = where, deadline, allowed, pause

    def put(self, key: str, spec: Dict[str, Any], attempt: int) -> SbfAnswer:
        """Request a cluster. Idempotent."""
        request_id = job_request_id(key, attempt)
        return self._call("PUT", _cluster_path(key), {"spec": spec, "attempt": attempt}, request_id)

    def end(self, key: str, attempt: int, owner: str) -> SbfAnswer:
        """End one attempt of a cluster, if the cluster belongs to ``owner``. Idempotent."""
        path = "%s?attempt=%d&owner=%s" % (_cluster_path(key), attempt, quote(owner, safe=""))
        return self._call("DELETE", path, None, job_request_id(key, attempt))

    def network(self, name: str) -> SbfAnswer:
        """Return SBF's answer with the clusters of a network. If the network has ended, the list is empty."""
        return self._call("GET", "/v1/clusters?network=" + quote(name, safe=""))

    def _call(
        self,
        method: str,
        path: str,
        document: Optional[Dict[str, Any]] = None,
        request_id: Optional[str] = None,
    ) -> SbfAnswer:
        pause = seconds_until_retry()
        if pause:
            raise SbfUnreachable(
                "not called, because SBF did not answer an earlier call in time; next call in %d s" % (pause + 1)
            )
        before = self._deadline.spent
        try:
            return call_sbf(self._where, method, path, document, self._deadline, request_id)
        except SbfUnreachable:
            record_failed_call(self._deadline.spent - before, self._allowed, self._pause)
            raise


def call_sbf(  # noqa: PLR0913, PLR0917 - the parts of a request
    where: SbfAddress,
    method: str,
    path: str,
    document: Optional[Dict[str, Any]] = None,
    deadline: Optional[Deadline] = None,
    request_id: Optional[str] = None,
) -> SbfAnswer:
    """Call SBF once and return the answer. The default deadline is two seconds from now.

    ``request_id`` is the request ID in SBF's logs, and the ID of the call's trace.

    Raise SbfUnreachable if SBF did not answer, if the answer has status 502, 503 or 504, or if the token file cannot be
    read or does not contain exactly one token. Raise AnswerUnusable if the answer is too long, is not JSON, or is a
    redirection (of a proxy).
    """
    headers = {"Accept": "application/json", "Content-Type": "application/json"}
    if request_id is not None:
        headers[REQUEST_ID_HEADER] = request_id
        headers[TRACE_HEADER] = make_traceparent(request_id)
    body = None if document is None else json.dumps(document).encode()
    try:
        if where.token_file is not None:
            headers["Authorization"] = "Bearer " + _read_token(where.token_file)
        sent = HttpRequest(where.sbf, method, path, headers, body, where.ca_file)
        status, text = send_request(sent, deadline or Deadline(2.0))
    except (DeadlineExceeded, socket.timeout):
        raise SbfUnreachable("no answer in time") from None
    except AnswerTooLong as error:
        raise AnswerUnusable(str(error)) from None
    except (OSError, ValueError, http.client.HTTPException, ChildError) as error:
        raise SbfUnreachable(_describe_error(error)) from None
    _refuse_redirection(where.sbf, status)
    answer = SbfAnswer(status, _parse_document(text, status))
    if status in UNAVAILABLE_STATUSES:
        raise SbfUnreachable(answer.detail)
    return answer


def _parse_document(text: bytes, status: int) -> Any:
    try:
        return json.loads(text.decode() or "null")
    except ValueError as error:
        if status in UNAVAILABLE_STATUSES:  # a proxy's page, because SBF does not run
            return None
        raise AnswerUnusable("expected JSON, got HTTP status %d and other data: %s" % (status, error)) from None


def _refuse_redirection(address: str, status: int) -> None:
    if FIRST_REDIRECTION_STATUS <= status < FIRST_ERROR_STATUS:
        text = "%s: expected an answer of SBF, got a redirection (HTTP status %d); set sbf to the address of SBF itself"
        raise AnswerUnusable(text % (address, status))


def _cluster_path(key: str) -> str:
    return "/v1/clusters/" + quote(key, safe="")


def _read_token(path: str) -> str:
    with open(path, encoding="ascii") as file:
        words = file.read().split()
    if len(words) != 1:
        raise ValueError("expected one token in %s, got %d words" % (path, len(words)))
    return words[0]


def _describe_error(error: Exception) -> str:
    if isinstance(error, OSError) and error.filename is not None:
        return "%s: %s" % (error.filename, error.strerror)
    if isinstance(error, OSError) and error.strerror:
        return error.strerror
    return " ".join(str(error).split()) or type(error).__name__
