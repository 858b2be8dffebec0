"""The format of log lines, used by the service and the agent: one event in each line, ``event key=value …``. Pure."""

import logging
from collections.abc import Mapping


def format_event(event: str, fields: Mapping[str, object]) -> str:
    """Return the line of an event, such as ``port_tagged element=sw1 port=p1 vlan=100``."""
    return " ".join([event, *(f"{key}={_format_value(value)}" for key, value in fields.items())])


def _format_value(value: object) -> str:
    """Return a field's value.

    An empty value, or a value with blanks, quotes, '=' or control characters, is returned as a Python literal.
    """
    text = str(value)
    return text if text.isprintable() and text and not any(mark in text for mark in " \"'=") else repr(text)


class OneLineFormatter(logging.Formatter):
    """A formatter that escapes control characters. Only an event with a traceback has more than one line.

    Without escapes, a path or a message from a device or library could forge lines or control a reader's terminal.
    """

    def format(self, record: logging.LogRecord) -> str:
        """Return the escaped line. If the event has a traceback, the lines of the traceback follow."""
        line = super().format(record)
        return "".join(char if char.isprintable() or char in "\n\t" else _escape(char) for char in line)


def _escape(character: str) -> str:
    return character.encode("unicode_escape").decode("ascii")
