"""The text of messages and log lines: counts with their nouns, unprintable characters, and log events. Pure."""

import logging
import re
from bisect import bisect
from collections.abc import Iterable, Mapping
from typing import Final

CONTROL_CHARACTERS = r"\x00-\x08\x0b-\x1f\x7f-\x9f"
"""Control characters except tab and line feed, as part of a regular expression."""
MAX_KNOWN_NAMES: Final = 20
_UNPRINTABLE = re.compile(rf"[{CONTROL_CHARACTERS}\ud800-\udfff]")


def format_event(event: str, fields: Mapping[str, object]) -> str:
    """Return the line of an event, such as ``port_tagged element=sw1 port=p1 vlan=100``."""
    return " ".join([event, *(f"{key}={_format_value(value)}" for key, value in fields.items())])


def _format_value(value: object) -> str:
    """Quote a text that is empty, or has blanks, quotes, '=' or control characters, as a Python literal."""
    text = str(value)
    return text if text.isprintable() and text and not any(mark in text for mark in " \"'=") else repr(text)


class OneLineFormatter(logging.Formatter):
    """A formatter that escapes control characters. Only an event with a traceback has more than one line.

    Without escapes, a path or a message could forge lines or control a reader's terminal. The lines of a traceback are
    indented, so that a message in the traceback cannot forge an event.
    """

    def format(self, record: logging.LogRecord) -> str:
        """Return the escaped line, followed by the indented lines of a traceback."""
        return "\n  ".join(_escape(line) for line in super().format(record).split("\n"))

    def formatMessage(self, record: logging.LogRecord) -> str:  # noqa: N802 - a method of logging.Formatter
        """Return the event as one line, without the traceback."""
        return super().formatMessage(record).rstrip("\n").replace("\n", "\\n")


def _escape(line: str) -> str:
    return "".join(char if char.isprintable() or char == "\t" else _escape_character(char) for char in line)


def _escape_character(character: str) -> str:
    return character.encode("unicode_escape").decode("ascii")


def printable(text: str) -> str:
    """Return ``text`` with U+FFFD in place of each character that a database, JSON or a terminal cannot represent.

    These characters are lone surrogates (bytes that are not UTF-8), and control characters except tab and line feed.
    PostgreSQL stores no NUL, and a terminal interprets ESC.
    """
    return _UNPRINTABLE.sub("\ufffd", text)


def to_mib(size: int) -> int:
    """Return a size in MiB, rounded up. ``size`` is in bytes."""
    return -(-size // (1 << 20))


def count_of(count: int, noun: str, plural: str = "") -> str:
    """Return a count with its noun for a message: ``1 VLAN ID``, ``2 VLAN IDs``, ``2 addresses``."""
    regular = f"{noun}es" if noun.endswith("s") else f"{noun}s"
    return f"{count} {noun if count == 1 else plural or regular}"


def list_known(name: str, known: Iterable[str]) -> str:
    """Return the known names for a message about an unknown ``name``, in alphabetical order, or "none".

    Of more than :data:`MAX_KNOWN_NAMES` names, return the alphabetically nearest to ``name``, and the number of omitted
    names.
    """
    names = sorted(known)
    first = max(0, min(bisect(names, name) - MAX_KNOWN_NAMES // 2, len(names) - MAX_KNOWN_NAMES))
    shown = names[first : first + MAX_KNOWN_NAMES]
    omitted = len(names) - len(shown)
    return (", ".join(shown) or "none") + (f" and {omitted} more" if omitted else "")
