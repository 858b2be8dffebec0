"""SBF as a hook asks it: within a deadline, and not at all for a while after it made the batch system wait."""

import http.client
import json
import socket
from typing import Any, Dict, NamedTuple, Optional
from urllib.parse import quote

from virtcloud.pbs.hooks import breaker
from virtcloud.pbs.hooks.child import ChildError
from virtcloud.pbs.hooks.deadline import Deadline, LateError
from virtcloud.pbs.hooks.wire import Call, exchange

PROBLEM = "urn:virtcloud:problem:"
FAILED = 400
ERROR = 500
UNAVAILABLE = (502, 503, 504)


class AwayError(Exception):
    """SBF did not answer, or is not asked for a while; the message says why. It may have heard the call."""


class Where(NamedTuple):
    """Where SBF is, and how it knows the caller."""

    sbf: str
    token_file: Optional[str] = None
    ca_file: Optional[str] = None


class Answer(NamedTuple):
    """What SBF said."""

    status: int
    document: Any

    @property
    def well(self) -> bool:
        """Whether it did what it was asked."""
        return self.status < FAILED

    @property
    def slug(self) -> str:
        """The name of the problem."""
        return str(self._problem.get("type", "")).replace(PROBLEM, "")

    @property
    def detail(self) -> str:
        """The words of the problem, on one line."""
        return " ".join(str(self._problem.get("detail", "HTTP status %d" % self.status)).split())

    @property
    def _problem(self) -> Dict[str, Any]:
        return self.document if isinstance(self.document, dict) else {}


class Sbf:
    """SBF for one event: all calls together end with the deadline."""

    def __init__(self, where: Where, deadline: Deadline, allowed: float, pause: float) -> None:
        """Take ``allowed``, the seconds of the deadline, and ``pause``, those without a call after a wait."""
        self._where, self._deadline, self._allowed, self._pause = where, deadline, allowed, pause

    def put(self, key: str, spec: Dict[str, Any], attempt: int) -> Answer:
        """Ask for a cluster."""
        return self._call("PUT", _cluster(key), {"spec": spec, "attempt": attempt})

    def end(self, key: str, attempt: int, owner: str) -> Answer:
        """End this attempt of this owner's cluster."""
        return self._call("DELETE", "%s?attempt=%d&owner=%s" % (_cluster(key), attempt, quote(owner, safe="")))

    def network(self, name: str) -> Answer:
        """Ask which clusters a network has, its root first."""
        return self._call("GET", "/v1/clusters?network=" + quote(name, safe=""))

    def _call(self, method: str, path: str, document: Optional[Dict[str, Any]] = None) -> Answer:
        pause = breaker.closed_for()
        if pause:
            raise AwayError("it did not answer in time and is asked again in %d s" % (pause + 1))
        before = self._deadline.spent
        try:
            return call(self._where, method, path, document, self._deadline)
        except AwayError:
            breaker.waited_in_vain(self._deadline.spent - before, self._allowed, self._pause)
            raise


def call(
    where: Where, method: str, path: str, document: Optional[Dict[str, Any]] = None, deadline: Optional[Deadline] = None
) -> Answer:
    """Call SBF once; the whole call ends with the deadline (two seconds from now if none is given).

    Raises AwayError when there is no answer of SBF's, or only that it cannot serve now.
    """
    headers = {"Accept": "application/json", "Content-Type": "application/json"}
    body = None if document is None else json.dumps(document).encode()
    try:
        if where.token_file is not None:
            headers["Authorization"] = "Bearer " + _token(where.token_file)
        sent = Call(where.sbf, method, path, headers, body, where.ca_file)
        status, text = exchange(sent, deadline or Deadline(2.0))
        answer = Answer(status, json.loads(text.decode() or "null"))
    except (LateError, socket.timeout):
        raise AwayError("it did not answer in time") from None
    except (OSError, ValueError, http.client.HTTPException, ChildError) as error:
        raise AwayError(_why(error)) from None
    if status in UNAVAILABLE:
        raise AwayError(answer.detail)
    return answer


def _cluster(key: str) -> str:
    return "/v1/clusters/" + quote(key, safe="")


def _token(path: str) -> str:
    with open(path, encoding="ascii") as file:
        words = file.read().split()
    if len(words) != 1:
        raise ValueError("expected one token in %s, got %d words" % (path, len(words)))
    return words[0]


def _why(error: Exception) -> str:
    if isinstance(error, OSError) and error.filename is not None:
        return "%s: %s" % (error.filename, error.strerror)
    if isinstance(error, OSError) and error.strerror:
        return error.strerror
    return " ".join(str(error).split()) or type(error).__name__
