"""What a command line understands: words, each of which may be cut short, and values between angle brackets.

``vlan <list>`` takes one word, ``name <text...>`` all that follow. Of two patterns that fit, the one with more words of
its own wins, as on the devices.
"""

from collections.abc import Callable
from typing import Any, TypeVar

F = TypeVar("F", bound=Callable[..., Any])
Grammar = dict[str, list[tuple[str, str]]]


def says(mode: str, *patterns: str) -> Callable[[F], F]:
    """Let a method answer to ``patterns`` in ``mode``."""

    def mark(function: F) -> F:
        function.__dict__.setdefault("_says", []).extend((mode, pattern) for pattern in patterns)
        return function

    return mark


def grammar_of(kind: type) -> Grammar:
    """Collect what the methods of a class answer to, the most particular first."""
    found: Grammar = {}
    for name in dir(kind):
        for mode, pattern in getattr(getattr(kind, name), "_says", ()):
            found.setdefault(mode, []).append((pattern, name))
    for patterns in found.values():
        patterns.sort(key=lambda entry: (-_own_words(entry[0]), entry[0]))
    return found


def match(pattern: str, line: str) -> tuple[str, ...] | None:
    """Give the values that ``line`` has for ``pattern``, or None where it does not fit."""
    typed, values = line.split(), []
    words = pattern.split()
    for index, word in enumerate(words):
        if index >= len(typed):
            return None
        if word.endswith("...>"):
            return (*values, " ".join(typed[index:]))
        if word.startswith("<"):
            values.append(typed[index])
        elif not word.lower().startswith(typed[index].lower()):
            return None
    return tuple(values) if len(typed) == len(words) else None


def _own_words(pattern: str) -> int:
    return sum(not word.startswith("<") for word in pattern.split())
