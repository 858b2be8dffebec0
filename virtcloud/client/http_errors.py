"""Errors of calls to SBF: failed connections and problem documents (RFC 9457) become exceptions of the model.

Callers add a random time to ``Retry-After``, so that their calls do not coincide after a restart of SBF.
"""

import json
import random
import re
from collections.abc import Callable, Mapping

import httpx

from virtcloud import __version__
from virtcloud.model.call_context import REQUEST_ID_HEADER
from virtcloud.model.errors import (
    BadInput,
    Conflict,
    ElementError,
    Forbidden,
    Gone,
    NoSuchCall,
    NotFound,
    ServiceBusy,
    ServiceUnreachable,
    StorageFull,
    TooManyRequests,
    Unauthenticated,
    Unreachable,
    VirtcloudError,
)

PROBLEM = "urn:virtcloud:problem:"
ERRORS_BY_STATUS: Mapping[int, type[VirtcloudError]] = {
    401: Unauthenticated,
    403: Forbidden,
    404: NotFound,
    409: Conflict,
    410: Gone,
    413: BadInput,
    422: BadInput,
    429: TooManyRequests,
    502: ElementError,
    503: ServiceUnreachable,
    504: Unreachable,
    507: StorageFull,
}
"""The exception for each HTTP status, used only if this version of the client does not know the problem type."""
NO_SUCH_CALL = ("no-such-route", "no-such-method")
FIRST_SERVER_ERROR = 500
UNTRUSTED_CERTIFICATE = "CERTIFICATE_VERIFY_FAILED"
NO_TLS = ("WRONG_VERSION_NUMBER", "RECORD_LAYER_FAILURE")
"""OpenSSL's error reasons if the peer does not use TLS. OpenSSL 3.2 and later report the second reason."""
SPREAD = 0.5
"""Maximum random addition to a pause, as a fraction of the pause."""
MAX_RETRY_AFTER_S = 100
"""Maximum time in seconds that a caller waits because of ``Retry-After``, without the random addition.

The ``Retry-After`` of a busy SBF is at most this time. If a rate limit per hour is exceeded, ``Retry-After`` can be an
hour. An agent's pause, including the random addition, must be shorter than the time of systemd's watchdog (180 s).
"""


def explain_request_error(url: str, error: httpx.RequestError) -> str:
    """Return why a call to SBF at ``url`` failed without an answer, and what to do."""
    reason = (
        "it timed out"
        if isinstance(error, httpx.TimeoutException)
        else re.sub(r"^\[Errno \d+\] ", "", str(error)) or type(error).__name__
    )
    if isinstance(error, httpx.RemoteProtocolError) and url.startswith("http:"):
        return (
            f"the server at {url} closed the connection without an answer: the service stopped during the "
            f"call, or the server expects TLS (--url https{url.removeprefix('http')} or VIRTCLOUD_URL)"
        )
    if _is_denied(error):
        return (
            f"no permission to open SBF's socket at {url}: {reason}; SBF itself may be running. Become a member of the "
            "socket's group, or use SBF's TCP address with a token (--url or VIRTCLOUD_URL)"
        )
    if UNTRUSTED_CERTIFICATE in reason:
        return (
            f"the certificate of SBF at {url} is not trusted: {reason.rpartition(': ')[2]}; nothing was sent. Set the "
            "file of SBF's certificate authority with --ca-file or VIRTCLOUD_CA_FILE; for an agent, set ca_file in "
            "agent.toml"
        )
    if any(tls_error in reason for tls_error in NO_TLS):
        return (
            f"the server at {url} does not use TLS: if this SBF listens without TLS, use --url "
            f"http{url.removeprefix('https')} or VIRTCLOUD_URL, and send no token over a network without TLS"
        )
    return (
        f"SBF does not answer at {url}: {reason}; check that SBF runs (systemctl status virtcloud-sbf) and that the "
        "address is correct (--url or VIRTCLOUD_URL). Running clusters are not affected"
    )


def _is_denied(error: BaseException) -> bool:
    causes = (error.__cause__, error.__context__)
    return isinstance(error, PermissionError) or any(_is_denied(cause) for cause in causes if cause is not None)


def error_of_response(url: str, answer: httpx.Response) -> VirtcloudError:
    """Return the exception for an answer with an error status; see `error_of_answer`.

    For an error in SBF or in a device, the message contains the request ID for a search in the logs.
    """
    error = error_of_answer(url, answer.status_code, answer.content, answer.request.url.path)
    request_id = answer.headers.get(REQUEST_ID_HEADER)
    if answer.status_code >= FIRST_SERVER_ERROR and request_id is not None:
        error = type(error)(f"{error} (request ID {request_id})")
    if isinstance(error, TooManyRequests | ServiceBusy):
        error.retry_after_s = _parse_retry_after(answer) or error.retry_after_s
    return error


def _parse_retry_after(answer: httpx.Response) -> int | None:
    text = answer.headers.get("retry-after", "")
    return int(text) if re.fullmatch(r"\d{1,5}", text, re.ASCII) else None


def error_of_answer(url: str, status: int, content: bytes, path: str) -> VirtcloudError:
    """Return the exception for the problem document in SBF's answer.

    Return ServiceUnreachable for other content, because a server without problem documents is not SBF.
    """
    try:
        problem = json.loads(content)
        slug, detail = str(problem["type"]).removeprefix(PROBLEM), str(problem["detail"])
    except (ValueError, KeyError, TypeError):
        return ServiceUnreachable(
            f"the server at {url} is not SBF: HTTP {status} for {path}; check the address (--url or VIRTCLOUD_URL)"
        )
    if slug in NO_SUCH_CALL and url.rstrip("/").endswith("/v1"):
        return BadInput(
            f"{url!r} is not an address of SBF: expected an address without /v1, because a call's path already begins "
            "with /v1; correct the address (--url or VIRTCLOUD_URL)"
        )
    if slug in NO_SUCH_CALL:
        return NoSuchCall(
            f"SBF at {url} does not have this call ({detail}): it is older than this client, virtcloud {__version__}; "
            "upgrade SBF first"
        )
    return _errors_by_slug(VirtcloudError).get(slug, ERRORS_BY_STATUS.get(status, VirtcloudError))(detail)


def _errors_by_slug(root: type[VirtcloudError]) -> dict[str, type[VirtcloudError]]:
    """Return ``root`` and its subclasses, by slug. Omit a subclass with the slug of its base class."""
    errors: dict[str, type[VirtcloudError]] = {}
    for kind in root.__subclasses__():
        errors |= _errors_by_slug(kind)
    return errors | {root.slug: root}


def compute_retry_pause(error: VirtcloudError, pause_s: float, jitter: Callable[[], float] = random.random) -> float:
    """Return the seconds to wait before a call is repeated.

    The base is the longer of ``pause_s`` and SBF's ``Retry-After`` (at most `MAX_RETRY_AFTER_S`). The result is the
    base plus a random time of at most `SPREAD` times the base. ``jitter`` returns a random number from 0 to 1.
    """
    wanted_s = error.retry_after_s if isinstance(error, TooManyRequests | ServiceBusy) else 0
    return max(pause_s, min(wanted_s, MAX_RETRY_AFTER_S)) * (1 + SPREAD * jitter())
