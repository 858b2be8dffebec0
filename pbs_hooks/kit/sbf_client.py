"""SBF as a hook asks it: within a deadline, and not at all for a while after it made the batch system wait.

After a wait in vain SBF is not asked for a while: a service that is down costs the batch system one wait a minute.

It is kept in the environment of the server's process: that outlives its Python interpreter, which PBS starts anew
every hundred hooks (``python_restart_max_hooks``). When the server itself starts anew, one more wait is paid.
"""

import http.client
import json
import os
import socket
import time
from typing import Any, Dict, NamedTuple, Optional
from urllib.parse import quote

from pbs_hooks.kit.deadline import ChildError, Deadline, DeadlineExceeded
from pbs_hooks.kit.http_exchange import HttpRequest, send_request

BREAKER_VARIABLE = "VIRTCLOUD_SBF_ASK_AGAIN"
COSTLY_SHARE = 0.25
"""What takes more than this part of the time allowed was a wait; a connection refused at once costs nothing."""


def seconds_until_retry() -> float:
    """Give the seconds for which SBF is not to be asked, 0 when it may be."""
    try:
        return max(0.0, float(os.environ.get(BREAKER_VARIABLE, "0")) - time.monotonic())
    except ValueError:
        return 0.0


def record_failed_call(spent: float, allowed: float, pause: float) -> None:
    """Note a call that got no answer; after a costly one SBF is left alone for ``pause`` seconds."""
    if spent > allowed * COSTLY_SHARE:
        os.environ[BREAKER_VARIABLE] = "%.3f" % (time.monotonic() + pause)


PROBLEM_PREFIX = "urn:virtcloud:problem:"
FIRST_ERROR_STATUS = 400
FIRST_SERVER_ERROR = 500
UNAVAILABLE_STATUSES = (502, 503, 504)


class SbfUnreachable(Exception):
    """SBF did not answer, or is not asked for a while; the message says why. It may have heard the call."""


class SbfAddress(NamedTuple):
    """Where SBF is, and how it knows the caller."""

    sbf: str
    token_file: Optional[str] = None
    ca_file: Optional[str] = None


class SbfAnswer(NamedTuple):
    """What SBF said."""

    status: int
    document: Any

    @property
    def well(self) -> bool:
        """Whether it did what it was asked."""
        return self.status < FIRST_ERROR_STATUS

    @property
    def slug(self) -> str:
        """The name of the problem."""
        return str(self._problem.get("type", "")).replace(PROBLEM_PREFIX, "")

    @property
    def detail(self) -> str:
        """The words of the problem, on one line."""
        return " ".join(str(self._problem.get("detail", "HTTP status %d" % self.status)).split())

    @property
    def _problem(self) -> Dict[str, Any]:
        return self.document if isinstance(self.document, dict) else {}


class HookSbfClient:
    """SBF for one event: all calls together end with the deadline."""

    def __init__(self, where: SbfAddress, deadline: Deadline, allowed: float, pause: float) -> None:
        """Take ``allowed``, the seconds of the deadline, and ``pause``, those without a call after a wait."""
        self._where, self._deadline, self._allowed, self._pause = where, deadline, allowed, pause

    def put(self, key: str, spec: Dict[str, Any], attempt: int) -> SbfAnswer:
        """Ask for a cluster."""
        return self._call("PUT", _cluster_path(key), {"spec": spec, "attempt": attempt})

    def end(self, key: str, attempt: int, owner: str) -> SbfAnswer:
        """End this attempt of this owner's cluster."""
        return self._call("DELETE", "%s?attempt=%d&owner=%s" % (_cluster_path(key), attempt, quote(owner, safe="")))

    def network(self, name: str) -> SbfAnswer:
        """Ask which clusters a network has, its root first."""
        return self._call("GET", "/v1/clusters?network=" + quote(name, safe=""))

    def _call(self, method: str, path: str, document: Optional[Dict[str, Any]] = None) -> SbfAnswer:
        pause = seconds_until_retry()
        if pause:
            raise SbfUnreachable("it did not answer in time and is asked again in %d s" % (pause + 1))
        before = self._deadline.spent
        try:
            return call_sbf(self._where, method, path, document, self._deadline)
        except SbfUnreachable:
            record_failed_call(self._deadline.spent - before, self._allowed, self._pause)
            raise


def call_sbf(
    where: SbfAddress,
    method: str,
    path: str,
    document: Optional[Dict[str, Any]] = None,
    deadline: Optional[Deadline] = None,
) -> SbfAnswer:
    """Call SBF once; the whole call ends with the deadline (two seconds from now if none is given).

    Raises AwayError when there is no answer of SBF's, or only that it cannot serve now.
    """
    headers = {"Accept": "application/json", "Content-Type": "application/json"}
    body = None if document is None else json.dumps(document).encode()
    try:
        if where.token_file is not None:
            headers["Authorization"] = "Bearer " + _read_token(where.token_file)
        sent = HttpRequest(where.sbf, method, path, headers, body, where.ca_file)
        status, text = send_request(sent, deadline or Deadline(2.0))
        answer = SbfAnswer(status, json.loads(text.decode() or "null"))
    except (DeadlineExceeded, socket.timeout):
        raise SbfUnreachable("it did not answer in time") from None
    except (OSError, ValueError, http.client.HTTPException, ChildError) as error:
        raise SbfUnreachable(_describe_error(error)) from None
    if status in UNAVAILABLE_STATUSES:
        raise SbfUnreachable(answer.detail)
    return answer


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
