"""Lists of VLAN IDs in the forms that devices print and accept."""

import textwrap
from collections.abc import Collection, Iterable
from itertools import groupby


def parse(text: str, to: str = "-") -> set[int]:
    """Parse ``100-110,200``, or with ``to=" to "`` Comware's ``100 to 110 200``.

    Raise ValueError for any other form.
    """
    text = text.replace(to, "-").replace(",", " ") if to != "-" else text.replace(",", " ")
    numbers: set[int] = set()
    for part in text.split():
        first, _, last = part.partition("-")
        numbers |= set(range(int(first), int(last or first) + 1))
    if not numbers or not numbers <= set(range(1, 4095)):
        raise ValueError(text)
    return numbers


def ranges(numbers: Iterable[int], to: str = "-", shortest: int = 2) -> list[str]:
    """Return ranges of consecutive VLAN IDs.

    Ranges with fewer than ``shortest`` VLAN IDs are returned as single IDs.
    """
    runs = []
    for _, group in groupby(enumerate(sorted(numbers)), key=lambda pair: pair[1] - pair[0]):
        run = [number for _, number in group]
        runs += [f"{run[0]}{to}{run[-1]}"] if len(run) >= shortest else [str(number) for number in run]
    return runs


def written(numbers: Iterable[int]) -> str:
    """Return a list with commas."""
    return ",".join(ranges(numbers))


def wrapped(numbers: Iterable[int], first: str, further: str, width: int = 79) -> list[str]:
    """Return a long list over several lines, each with its own beginning, as in a configuration."""
    parts = textwrap.wrap(written(numbers).replace(",", ", "), width - len(further)) or [""]
    tidy = [part.replace(", ", ",").rstrip(",") for part in parts]
    return [f"{first if index == 0 else further}{part}" for index, part in enumerate(tidy)]


def columns(names: Collection[str], indent: int, width: int = 80) -> str:
    """Return names with commas, wrapped for the last column of a table."""
    wrapped_lines = textwrap.wrap(", ".join(names), width - indent) or [""]
    return f"\n{' ' * indent}".join(line.rstrip(",") for line in wrapped_lines)
