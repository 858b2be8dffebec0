"""Log lines: one event with its fields, no prose; a secret is never among them because its repr is ``***``."""

import logging
import traceback
from dataclasses import dataclass

from virtcloud.model.errors import printable


@dataclass(frozen=True, slots=True)
class ServiceLog:
    """Writes events to a standard logger: ``log.info("port_tagged", element="sw1", port="p1", vlan=100)``."""

    logger: logging.Logger

    def info(self, event: str, **fields: object) -> None:
        """Say what happened."""
        self._write(logging.INFO, event, fields)

    def warning(self, event: str, **fields: object) -> None:
        """Say what somebody should look at."""
        self._write(logging.WARNING, event, fields)

    def fault(self, event: str, error: BaseException, **fields: object) -> None:
        """Say what must not happen, and where in the code it did."""
        self._write(logging.ERROR, event, fields, error)

    def _write(self, level: int, event: str, fields: dict[str, object], error: BaseException | None = None) -> None:
        if self.logger.isEnabledFor(level):
            words = " ".join([event, *(f"{key}={_format_value(value)}" for key, value in fields.items())])
            self.logger.log(level, "%s", words if error is None else f"{words}\n{_traceback(error)}")


def _traceback(error: BaseException) -> str:
    """Return a traceback that every handler can write: an error may quote what a device sent, in whatever bytes."""
    return printable("".join(traceback.format_exception(error)).rstrip())


def get_log(name: str) -> ServiceLog:
    """Give the event log of a module."""
    return ServiceLog(logging.getLogger(name))


def log_to_stderr(level: int = logging.INFO) -> None:
    """Send the service's events to standard error, and other libraries' warnings."""
    handler = logging.StreamHandler()
    handler.setFormatter(OneLineFormatter("%(asctime)s %(levelname)s %(name)s %(message)s"))
    logging.basicConfig(level=logging.WARNING, handlers=[handler])
    logging.getLogger("sbf_service").setLevel(level)
    for library in ("paramiko", "ncclient", "pyeapi", "napalm"):
        logging.getLogger(library).setLevel(logging.CRITICAL)


class OneLineFormatter(logging.Formatter):
    """A formatter that writes control characters as escapes; only a traceback has more than one line.

    A path, a device's words or a library's message could otherwise forge lines, or move a reader's cursor.
    """

    def format(self, record: logging.LogRecord) -> str:
        """Return the line, and a traceback's lines."""
        return "".join(one if one.isprintable() or one in "\n\t" else _escape(one) for one in super().format(record))


def _escape(character: str) -> str:
    return character.encode("unicode_escape").decode("ascii")


def _format_value(value: object) -> str:
    """Return a field's value; one that is empty, or has blanks, quotes, '=' or a control character, as a literal."""
    text = str(value)
    return text if text.isprintable() and text and not any(mark in text for mark in " \"'=") else repr(text)
