"""Events, not prose: one line each, ``event key=value …``."""

import logging
import sys

_LOG = logging.getLogger("virtcloud.agent")


def to_stderr() -> None:
    """Write events to stderr, where systemd's journal takes them up and puts the time before them."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(logging.Formatter("%(levelname)s %(message)s"))
    _LOG.handlers = [handler]
    _LOG.setLevel(logging.INFO)
    _LOG.propagate = False


def info(event: str, **fields: object) -> None:
    """Log what went as it should."""
    _LOG.info("%s", _line(event, fields))


def warning(event: str, **fields: object) -> None:
    """Log what did not."""
    _LOG.warning("%s", _line(event, fields))


def exception(event: str, **fields: object) -> None:
    """Log what should never have been, with its traceback."""
    _LOG.exception("%s", _line(event, fields))


def _line(event: str, fields: dict[str, object]) -> str:
    return " ".join([event, *(f"{key}={_value(value)}" for key, value in fields.items())])


def _value(value: object) -> str:
    text = str(value)
    return text if text.isprintable() and text and not any(one in " \"'=" for one in text) else repr(text)
