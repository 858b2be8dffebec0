import textwrap
from collections.abc import Collection, Iterable
from itertools import groupby


def parse(text: str, to: str = "-") -> set[int]:
    """Parse a list such as ``100-110,200``. With ``to=" to "``, parse Comware's form ``100 to 110 200``.

    Raise ValueError for an empty or malformed list, and for a VLAN ID that is not in 1 to 4094.
    """
    text = text.replace(to, "-").replace(",", " ") if to != "-" else text.replace(",", " ")
    vlans: set[int] = set()
    for part in text.split():
        first, _, last = part.partition("-")
        vlans |= set(range(int(first), int(last or first) + 1))
    if not vlans or not vlans <= set(range(1, 4095)):
        raise ValueError(text)
    return vlans


def ranges(vlans: Iterable[int], to: str = "-", shortest: int = 2) -> list[str]:
    """Return ranges of consecutive VLAN IDs, or single IDs for ranges shorter than ``shortest``."""
    parts = []
    for _, group in groupby(enumerate(sorted(vlans)), key=lambda pair: pair[1] - pair[0]):
        run = [vlan for _, vlan in group]
        parts += [f"{run[0]}{to}{run[-1]}"] if len(run) >= shortest else [str(vlan) for vlan in run]
    return parts


def format_list(vlans: Iterable[int]) -> str:
    return ",".join(ranges(vlans))


def wrap_list(vlans: Iterable[int], first: str, further: str, width: int = 79) -> list[str]:
    parts = textwrap.wrap(format_list(vlans).replace(",", ", "), width - len(further)) or [""]
    lists = [part.replace(", ", ",").rstrip(",") for part in parts]
    return [f"{first if index == 0 else further}{part}" for index, part in enumerate(lists)]


def columns(names: Collection[str], indent: int, width: int = 80) -> str:
    wrapped_lines = textwrap.wrap(", ".join(names), width - indent) or [""]
    return f"\n{' ' * indent}".join(line.rstrip(",") for line in wrapped_lines)
