"""Errors about devices: quotations of what a device printed, and lists of the faults of one change. Pure.

A fault names the VLAN IDs that it concerns. Administrators read every fault; the owner of a cluster reads only the
faults of the cluster's VLAN.
"""

from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

from virtcloud.model.errors import Refused, Unsafe
from virtcloud.model.vlans import VlanSet

QUOTED_CHARACTERS = 300
"""The maximum length of a quotation in a message."""
FOREIGN_SERVICE_REMEDY = (
    "it was left unchanged; move it to other VLANs and services, or remove these from the pool or the transport"
)
"""The remedy in a message about other configuration on managed VLANs or services of a provider edge."""
MAX_FAULT_CHARACTERS = 1500
"""The maximum length of a list of faults; the store truncates an element's error report to 2000 characters."""


class ChangeFault(NamedTuple):
    """A command that a device refused, or a missing precondition, with the VLAN IDs concerned.

    An empty ``vlans`` means that the fault concerns every VLAN.
    """

    text: str
    vlans: VlanSet = VlanSet()

    def __str__(self) -> str:
        """Return the text."""
        return self.text


def quote_start(answer: str) -> str:
    """Return the beginning of an answer as a single line. For command lines, which print errors first."""
    return " ".join(answer.split())[:QUOTED_CHARACTERS]


def quote_end(answer: str) -> str:
    """Return the end of an answer as a single line. For programs in a shell, which print errors last."""
    return " ".join(answer.split())[-QUOTED_CHARACTERS:]


def join_texts(texts: Iterable[str]) -> str:
    """Join distinct texts. A list over the limit ends with the number of omitted texts."""
    distinct = list(dict.fromkeys(texts))
    shown = list(_take_fitting(distinct))
    left = len(distinct) - len(shown)
    return "; ".join([*shown, f"and {left} more"] if left else shown)


def build_refusal(device: str, faults: Sequence[ChangeFault], remedy: str = "") -> Refused:
    """Return the error for the faults of a device.

    Unless a fault concerns all VLANs, the error also has a text for each VLAN ID.
    """
    by_vlan: dict[int, str] = {}
    if all(fault.vlans for fault in faults):
        for vlan in sorted({vlan for fault in faults for vlan in fault.vlans}):
            by_vlan[vlan] = f"{device}{join_texts(fault.text for fault in faults if vlan in fault.vlans)}{remedy}"
    return Refused(f"{device}{join_texts(fault.text for fault in faults)}{remedy}", by_vlan)


def build_save_error(device: str, command: str, answer: str) -> Refused:
    """Return the error for a device that did not print that its startup configuration was written."""
    printed = f"told {command!r}, it said {quote_start(answer) or 'nothing'!r}, which does not mean that it saved"
    return Refused(f"{device}: {printed}: a restart would bring back its old configuration; it is saved again later")


def build_parse_error(device: str, what: str, error: ValueError) -> Unsafe:
    """Return the error for answers that a parser rejected. ``what`` is the subject of the message with its verb."""
    return Unsafe(f"{device}: the {what} not understood: {quote_start(str(error))}; it was left unchanged")


def _take_fitting(texts: Sequence[str]) -> Iterator[str]:
    length = 0
    for index, text in enumerate(texts):
        length += len(text) + 2
        if index and length > MAX_FAULT_CHARACTERS:
            return
        yield text
