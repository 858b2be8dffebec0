"""Read-only trials of a dialect on one switch, and their records: commands, answers and the parsed state."""

from collections.abc import Iterator
from typing import Annotated

from pydantic import BeforeValidator, Field

from virtcloud.model.document import Document
from virtcloud.model.values import DeviceAddress, PortName, VlanId
from virtcloud.model.vlans import VlanSet


def _split_lines(value: object) -> object:
    return tuple(value.splitlines()) if isinstance(value, str) else value


TextLines = Annotated[tuple[str, ...], BeforeValidator(_split_lines)]
"""A list of lines. A document may contain a text with line breaks instead."""


class TrialCommand(Document):
    """A command, and the answer of the switch."""

    command: str
    answer: TextLines = ()


class ParsedPort(Document):
    """The parsed state of one port.

    ``open``: the port carries all VLANs. ``member``: the port belongs to a link aggregate and repeats the aggregate's
    configuration lines.
    """

    mode: str = ""
    tagged: VlanSet = VlanSet()
    open: bool = False
    untagged: VlanSet = VlanSet()
    native: VlanId | None = None
    access: VlanId | None = None
    shut: bool = False
    member: bool = False


class ParsedNeighbour(Document):
    """The parsed entry of one LLDP neighbour."""

    local: str
    name: str = ""
    port: str = ""
    description: str = ""
    chassis: str = ""
    address: str = ""


class ParsedSwitch(Document):
    """The parsed state of a switch. ``neighbours`` is None if the dialect does not read neighbours."""

    vlans: dict[int, str] = Field(default_factory=dict)
    reserved: VlanSet = VlanSet()
    ports: dict[str, ParsedPort] = Field(default_factory=dict)
    neighbours: tuple[ParsedNeighbour, ...] | None = None


class TrialRecord(Document):
    """The record of a trial: the commands and answers, the parsed state, and the commands of an example change.

    ``source`` describes the origin of the answers (model, release). The example change adds VLAN ``vlan`` to ``ports``,
    which are access ports if ``access`` is true. ``lines`` are the commands of the example change. ``faults`` lists
    unreadable parts of the state, and the reasons why SBF would refuse the example change.
    """

    platform: str
    source: str = ""
    ports: tuple[PortName, ...] = ()
    vlan: VlanId | None = None
    access: bool = False
    asked: tuple[TrialCommand, ...] = ()
    understood: ParsedSwitch | None = None
    lines: TextLines = ()
    faults: tuple[str, ...] = ()


class TrialRequest(Document):
    """The input of a trial: a platform, and either a switch or a record to replay (``replayed``).

    ``password`` and ``enable`` are secrets. Therefore the trial's process receives the request only through a pipe.
    """

    platform: str
    address: DeviceAddress | None = None
    username: str = ""
    key_file: str | None = None
    password: str | None = None
    enable: str | None = None
    known_hosts: str | None = None
    timeout_s: float = 10
    ports: tuple[PortName, ...] = ()
    vlan: VlanId | None = None
    access: bool = False
    replayed: TrialRecord | None = None


def compare_records(before: TrialRecord, now: TrialRecord) -> Iterator[str]:
    """Yield the differences between a record (``before``) and its replay (``now``).

    The parsed states are compared if both records contain a parsed state. ``lines`` are compared if both records have
    the same example change, and ``before`` contains lines.
    """
    recorded, parsed = before.understood, now.understood
    if recorded is not None and parsed is not None:
        yield from (
            f"port {port}: parsed {parsed.ports.get(port)!r}, the record has {recorded.ports.get(port)!r}"
            for port in sorted(recorded.ports.keys() | parsed.ports.keys())
            if recorded.ports.get(port) != parsed.ports.get(port)
        )
        yield from (
            f"{part}: parsed {getattr(parsed, part)!r}, the record has {getattr(recorded, part)!r}"
            for part in ("vlans", "reserved", "neighbours")
            if getattr(recorded, part) != getattr(parsed, part)
        )
    is_same_example = (before.ports, before.vlan, before.access) == (now.ports, now.vlan, now.access)
    if is_same_example and before.lines and before.lines != now.lines:
        yield f"lines: SBF would send {list(now.lines)}, the record has {list(before.lines)}"
