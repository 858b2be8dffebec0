"""Client of the job socket of this host's agent. A request and its answer are one line of JSON each."""

import json
import socket
import time
from typing import Any, Dict, Optional

ANSWER_GRACE_S = 5.0
MAX_ANSWER_BYTES = 1 << 20
CHUNK_BYTES = 1 << 16
BUSY_SLUG = "too-many-requests"
"""The reason with which the agent refuses a request while the agent answers too many other requests.

The caller may repeat the request.
"""


class AgentUnreachable(Exception):
    """The agent did not answer in time, or its answer is invalid. The caller may repeat the request."""


class AgentRefused(Exception):
    """The agent refused the request. ``slug`` is the stable name of the reason."""

    def __init__(self, slug: str, detail: str) -> None:
        """Store the name of the reason and its description."""
        super().__init__(detail)
        self.slug = slug


def ask_agent(
    path: str, request: Dict[str, Any], wait: Optional[float] = None, grace: float = ANSWER_GRACE_S
) -> Dict[str, Any]:
    """Send a request to the agent's socket ``path`` and return the answer. Idempotent.

    ``wait`` is the longest time in seconds that the agent may take. The call ends after at most ``wait`` + ``grace``
    seconds. If ``wait`` is None, the request contains no time limit, and the call ends after at most ``grace`` seconds.
    Raise AgentUnreachable if the agent does not answer in time, or if its answer is invalid. Raise AgentRefused if the
    agent refuses the request.
    """
    message = request if wait is None else dict(request, wait=wait)
    deadline = time.monotonic() + (wait or 0) + grace
    try:
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as connection:
            _set_timeout(connection, deadline)
            connection.connect(path)
            connection.sendall(json.dumps(message).encode() + b"\n")
            answer = json.loads(_read_line(connection, deadline).decode())
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or error
        raise AgentUnreachable(
            "this host's agent does not answer at %s: %s; check it: systemctl status virtcloud-agent" % (path, reason)
        ) from error
    if not isinstance(answer, dict) or not answer.get("ok"):
        raise _build_error(answer)
    return answer


def _set_timeout(connection: socket.socket, deadline: float) -> None:
    left = deadline - time.monotonic()
    if left <= 0:
        raise OSError("no complete answer within the time limit")
    connection.settimeout(left)


def _read_line(connection: socket.socket, deadline: float) -> bytes:
    """Return a line of the agent. Raise OSError at the deadline, even if bytes still arrive one by one."""
    line = bytearray()
    while not line.endswith(b"\n"):
        _set_timeout(connection, deadline)
        piece = connection.recv(CHUNK_BYTES)
        if not piece or len(line) > MAX_ANSWER_BYTES:
            raise OSError("the answer ended after %d bytes" % len(line))
        line += piece
    return bytes(line)


def _build_error(answer: object) -> Exception:
    if not isinstance(answer, dict):
        return AgentUnreachable("this host's agent sent an invalid answer: %r" % (answer,))
    return AgentRefused(str(answer.get("error", "unknown")), str(answer.get("detail", "the agent gave no reason")))
