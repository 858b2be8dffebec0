"""The agent's event log: one line for each event, ``event key=value …``."""

import logging
import sys

from virtcloud.model.errors import VirtcloudError

_LOG = logging.getLogger("virtcloud.agent")


def to_stderr() -> None:
    """Write events to stderr; systemd's journal adds the time."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(logging.Formatter("%(levelname)s %(message)s"))
    _LOG.handlers = [handler]
    _LOG.setLevel(logging.INFO)
    _LOG.propagate = False


def info(event: str, **fields: object) -> None:
    """Log an expected event."""
    _LOG.info("%s", _format_event(event, fields))


def warning(event: str, **fields: object) -> None:
    """Log an event that may need an administrator."""
    _LOG.warning("%s", _format_event(event, fields))


def exception(event: str, **fields: object) -> None:
    """Log the exception that is being handled, with its traceback."""
    _LOG.exception("%s", _format_event(event, fields))


def internal_error(error: Exception, **fields: object) -> VirtcloudError:
    """Log the unexpected exception that is being handled, with its traceback. Return the error for the caller."""
    exception("internal_error", **fields)
    return VirtcloudError(f"internal error in the agent: {type(error).__name__}: {error}; see the agent's log")


def _format_event(event: str, fields: dict[str, object]) -> str:
    return " ".join([event, *(f"{key}={_format_value(value)}" for key, value in fields.items())])


def _format_value(value: object) -> str:
    """Format a field's value. Quote an empty value and a value with spaces, quotes, '=' or control characters."""
    text = str(value)
    return text if text.isprintable() and text and not any(character in text for character in " \"'=") else repr(text)
