"""Errors about devices: rejected logins, quotations of output, and lists of faults. Pure.

The owner of a cluster reads only the faults of the cluster's VLAN; administrators read every fault.
"""

from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

from virtcloud.model.errors import Refused, Unsafe
from virtcloud.model.vlans import VlanSet

QUOTED_CHARACTERS = 300
FOREIGN_SERVICE_REMEDY = (
    "this configuration was left unchanged; move it to other VLANs and services, or remove these VLANs from the pool "
    "and these services from the transport"
)
"""The remedy for configuration that SBF did not create on managed VLANs or services of a provider edge."""
MAX_FAULT_CHARACTERS = 1500
"""The maximum length of a list of faults. The store truncates an element's error report to 2000 characters."""


class LoginRefused(Refused):
    """The device rejected the account or its secrets."""


class UnknownHostKey(Unsafe):
    """The device showed a host key or certificate that is not accepted, and received no secret."""


class ChangeFault(NamedTuple):
    """A fault, such as a refused command, with the VLAN IDs that it concerns (empty: every VLAN)."""

    text: str
    vlans: VlanSet = VlanSet()

    def __str__(self) -> str:
        """Return the text."""
        return self.text


def quote_start(answer: str) -> str:
    """Return the beginning of an answer as one line. On a device's command line, an error is at the beginning."""
    return " ".join(answer.split())[:QUOTED_CHARACTERS]


def quote_end(answer: str) -> str:
    """Return the end of an answer as one line. Programs in a shell print an error at the end."""
    return " ".join(answer.split())[-QUOTED_CHARACTERS:]


def join_texts(texts: Iterable[str]) -> str:
    """Join distinct texts. A list longer than :data:`MAX_FAULT_CHARACTERS` ends with the number of omitted texts.

    The first text is never omitted or truncated.
    """
    distinct = list(dict.fromkeys(texts))
    shown = list(_select_fitting(distinct))
    omitted = len(distinct) - len(shown)
    return "; ".join([*shown, f"and {omitted} more"] if omitted else shown)


def build_refusal(device: str, faults: Sequence[ChangeFault], remedy: str = "") -> Refused:
    """Return the error for a device's faults, with a separate text for each VLAN ID if no fault concerns every VLAN."""
    by_vlan: dict[int, str] = {}
    if all(fault.vlans for fault in faults):
        for vlan in sorted({vlan for fault in faults for vlan in fault.vlans}):
            by_vlan[vlan] = f"{device}{join_texts(fault.text for fault in faults if vlan in fault.vlans)}{remedy}"
    return Refused(f"{device}{join_texts(fault.text for fault in faults)}{remedy}", by_vlan)


def build_save_error(device: str, command: str, answer: str) -> Refused:
    """Return the error for a device that did not confirm a save. ``answer`` is the device's output."""
    found = f"{describe_refusal(command, quote_start(answer))}, which does not confirm the save"
    return Refused(f"{device}: {found}: a restart would load the old configuration; SBF saves again later")


def build_parse_error(device: str, what: str, error: ValueError) -> Unsafe:
    """Return the error for text that a parser rejected. ``what`` names the text."""
    return Unsafe(f"{device}: cannot parse the {what}: {quote_start(str(error))}; the device was left unchanged")


def describe_refusal(command: str, answer: str) -> str:
    """Return a command and the device's answer, for an error message."""
    return f"sent {command!r}, the device answered {answer!r}" if answer else f"sent {command!r}, got an empty answer"


def _select_fitting(texts: Sequence[str]) -> Iterator[str]:
    length = 0
    for index, text in enumerate(texts):
        length += len(text) + 2
        if index and length > MAX_FAULT_CHARACTERS:
            return
        yield text
