"""Sizes and durations in PBS's notation (pbs_resources(7)): ``4gb``, ``512mb``, ``168:00:00``."""

import re

UNITS = {"b": 1, "kb": 1 << 10, "mb": 1 << 20, "gb": 1 << 30, "tb": 1 << 40, "pb": 1 << 50}
MIB = UNITS["mb"]
WORD_BYTES = 8
SIZE = re.compile(r"([0-9]{1,15})([kmgtp]?[bw])?", re.IGNORECASE)
TIME = re.compile(r"((?:[0-9]{1,6}:){0,3}[0-9]{1,9})(?:\.[0-9]+)?")
STEPS = (24, 60, 60)
"""The factors between the units of ``days:hours:minutes:seconds``."""


def parse_bytes(text: str) -> int:
    """Parse a size, and return the number of bytes.

    A number without a unit is a number of bytes. In a unit, ``b`` means bytes, and ``w`` means words of 8 bytes. Raise
    ValueError for a text in another notation.
    """
    match = SIZE.fullmatch(text.strip())
    if match is None:
        raise ValueError(text)
    unit = (match.group(2) or "b").lower()
    factor = WORD_BYTES if unit.endswith("w") else 1
    return int(match.group(1)) * UNITS[unit.replace("w", "b")] * factor


def parse_mib(text: str) -> int:
    """Parse a size, and return the number of MiB, rounded down.

    Raise ValueError for a text in another notation, and for a size between 0 and 1 MiB, which would become 0.
    """
    size = parse_bytes(text)
    if 0 < size < MIB:
        raise ValueError(text)
    return size // MIB


def parse_seconds(text: str) -> int:
    """Parse a duration, and return the number of seconds.

    The notations are ``seconds``, ``minutes:seconds`` and so on, up to ``days:hours:minutes:seconds``. Only Torque has
    days. A fraction of a second is ignored. Raise ValueError for a text in another notation.
    """
    match = TIME.fullmatch(text.strip())
    if match is None:
        raise ValueError(text)
    total, *smaller = (int(field) for field in match.group(1).split(":"))
    for step, value in zip(STEPS[len(STEPS) - len(smaller) :], smaller):
        total = total * step + value
    return total


def format_seconds(seconds: int) -> str:
    """Return seconds in PBS's notation: ``168:00:00``."""
    return "%02d:%02d:%02d" % (seconds // 3600, seconds // 60 % 60, seconds % 60)
