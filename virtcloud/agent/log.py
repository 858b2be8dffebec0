"""The agent's event log: one line for each event, ``event key=value …``."""

import logging
import sys

from virtcloud.current_call import current_request_id
from virtcloud.model.errors import VirtcloudError
from virtcloud.model.message_text import OneLineFormatter, format_event

_LOG = logging.getLogger("virtcloud.agent")


def to_stderr() -> None:
    """Write events to stderr, with indented tracebacks. systemd's journal adds the time."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(OneLineFormatter("%(levelname)s %(message)s"))
    _LOG.handlers = [handler]
    _LOG.setLevel(logging.INFO)
    _LOG.propagate = False


def info(event: str, **fields: object) -> None:
    """Log an expected event."""
    _LOG.info("%s", _format(event, fields))


def warning(event: str, **fields: object) -> None:
    """Log an event that may need an administrator."""
    _LOG.warning("%s", _format(event, fields))


def exception(event: str, **fields: object) -> None:
    """Log the exception that is being handled, with its traceback."""
    _LOG.exception("%s", _format(event, fields))


def _format(event: str, fields: dict[str, object]) -> str:
    """Return the line of an event, with the request IDs of the API calls that caused the agent's work."""
    request = current_request_id()
    return format_event(event, fields if request is None else {**fields, "request": request})


def internal_error(error: Exception, **fields: object) -> VirtcloudError:
    """Log the unexpected exception that is being handled, with its traceback. Return an error that can be reported."""
    exception("internal_error", **fields)
    return VirtcloudError(f"internal error in the agent: {type(error).__name__}: {error}; see the agent's log")
