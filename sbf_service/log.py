"""The event log. Each line contains one event and its fields (decision 42).

A :class:`~pydantic.SecretStr` is shown as asterisks. The field ``request`` is the request ID of the current call.
"""

import logging
from dataclasses import dataclass

from virtcloud.current_call import current_request_id
from virtcloud.model.message_text import OneLineFormatter, format_event


@dataclass(frozen=True, slots=True)
class ServiceLog:
    """Writes events to a standard logger: ``log.info("port_tagged", element="sw1", port="p1", vlan=100)``."""

    logger: logging.Logger

    def info(self, event: str, **fields: object) -> None:
        """Log an event."""
        self._write(logging.INFO, event, fields)

    def warning(self, event: str, **fields: object) -> None:
        """Log an event that an administrator should investigate."""
        self._write(logging.WARNING, event, fields)

    def fault(self, event: str, error: BaseException, **fields: object) -> None:
        """Log an internal error with its traceback."""
        self._write(logging.ERROR, event, fields, error)

    def _write(self, level: int, event: str, fields: dict[str, object], error: BaseException | None = None) -> None:
        if self.logger.isEnabledFor(level):
            request = current_request_id()
            line = format_event(event, fields if request is None else fields | {"request": request})
            self.logger.log(level, "%s", line, exc_info=error)


def get_log(name: str) -> ServiceLog:
    """Return the event log of a module."""
    return ServiceLog(logging.getLogger(name))


def log_to_stderr() -> None:
    """Send the service's events, and the warnings and errors of libraries, to standard error.

    Libraries that connect to devices send only critical errors.
    """
    handler = logging.StreamHandler()
    handler.setFormatter(OneLineFormatter("%(asctime)s %(levelname)s %(name)s %(message)s"))
    logging.basicConfig(level=logging.WARNING, handlers=[handler])
    logging.getLogger("sbf_service").setLevel(logging.INFO)
    for library in ("paramiko", "ncclient", "pyeapi", "napalm"):
        logging.getLogger(library).setLevel(logging.CRITICAL)
    logging.getLogger("uvicorn.error").addFilter(_is_relevant)


def _is_relevant(record: logging.LogRecord) -> bool:
    """Return False for uvicorn's error about a WebSocket that never opened, and True for every other record.

    SBF refused such a WebSocket, or the user closed it early: neither is a fault.
    """
    return record.msg != "ASGI callable returned without completing handshake."
