"""Single faults of one change, and the error that lists them: whole for administrators, by VLAN ID for owners. Pure."""

from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

from virtcloud.model.errors import Refused
from virtcloud.model.vlans import VlanSet

MOST_CHARACTERS = 1500
"""Of a list of faults; the store keeps 2000 characters of an element's trouble."""


class Fault(NamedTuple):
    """Something that was refused or is missing, and the VLAN IDs that it is about; none: it is about all of them."""

    text: str
    vlans: VlanSet = VlanSet()

    def __str__(self) -> str:
        """Return the text."""
        return self.text


def refused(whom: str, faults: Sequence[Fault], cure: str = "") -> Refused:
    """Return the error for faults of a device; each VLAN ID's part of it, where every fault is about some."""
    about: dict[int, str] = {}
    if all(fault.vlans for fault in faults):
        for number in sorted({number for fault in faults for number in fault.vlans}):
            about[number] = f"{whom}{listed(one.text for one in faults if number in one.vlans)}{cure}"
    return Refused(f"{whom}{listed(one.text for one in faults)}{cure}", about)


def listed(texts: Iterable[str]) -> str:
    """Join texts; where that is too long, say how many are left out."""
    every = list(dict.fromkeys(texts))
    shown = list(_fitting(every))
    left = len(every) - len(shown)
    return "; ".join([*shown, f"and {left} more"] if left else shown)


def _fitting(texts: Sequence[str]) -> Iterator[str]:
    length = 0
    for number, text in enumerate(texts):
        length += len(text) + 2
        if number and length > MOST_CHARACTERS:
            return
        yield text
