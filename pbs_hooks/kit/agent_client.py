"""What a hook or a script says to this host's agent: one request, one answer, each one line of JSON on its socket."""

import json
import socket
import time
from typing import Any, Dict, Optional

ANSWER_GRACE_S = 5.0
MAX_ANSWER_BYTES = 1 << 20
CHUNK_BYTES = 1 << 16


class AgentUnreachable(Exception):
    """The agent does not answer, or not in time: to be tried again. The message says what an administrator looks at."""


class AgentRefused(Exception):
    """The agent answered that it does not do this; ``slug`` is the stable name of the reason."""

    def __init__(self, slug: str, detail: str) -> None:
        """Keep the reason and its words."""
        super().__init__(detail)
        self.slug = slug


def ask_agent(
    path: str, request: Dict[str, Any], wait: Optional[float] = None, grace: float = ANSWER_GRACE_S
) -> Dict[str, Any]:
    """Ask the agent at ``path``; raises AgentAway and AgentRefused. May be repeated.

    The agent may take ``wait`` seconds for itself (it is told so), and ``grace`` for the rest: no call lasts longer.
    """
    asked = request if wait is None else dict(request, wait=wait)
    ends = time.monotonic() + (wait or 0) + grace
    try:
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as talk:
            _set_timeout(talk, ends)
            talk.connect(path)
            talk.sendall(json.dumps(asked).encode() + b"\n")
            answer = json.loads(_read_line(talk, ends).decode())
    except (OSError, ValueError) as error:
        why = getattr(error, "strerror", None) or error
        raise AgentUnreachable(
            "this host's agent does not answer at %s: %s; systemctl status virtcloud-agent" % (path, why)
        ) from error
    if not isinstance(answer, dict) or not answer.get("ok"):
        raise _build_error(answer)
    return answer


def _set_timeout(talk: socket.socket, ends: float) -> None:
    left = ends - time.monotonic()
    if left <= 0:
        raise OSError("it took too long")
    talk.settimeout(left)


def _read_line(talk: socket.socket, ends: float) -> bytes:
    """Read to the end of the line, never past ``ends``: an answer that drips is too late, too."""
    read = bytearray()
    while not read.endswith(b"\n"):
        _set_timeout(talk, ends)
        piece = talk.recv(CHUNK_BYTES)
        if not piece or len(read) > MAX_ANSWER_BYTES:
            raise OSError("its answer broke off after %d bytes" % len(read))
        read += piece
    return bytes(read)


def _build_error(answer: object) -> Exception:
    if not isinstance(answer, dict):
        return AgentUnreachable("this host's agent gave no answer of its kind: %r" % (answer,))
    return AgentRefused(str(answer.get("error", "unknown")), str(answer.get("detail", "it gives no reason")))
