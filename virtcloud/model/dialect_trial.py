"""A trial of a dialect against one switch, read-only, and its record: a conversation with what was understood of it."""

from collections.abc import Iterator
from typing import Annotated

from pydantic import BeforeValidator, Field

from virtcloud.model.document import Document
from virtcloud.model.values import DeviceAddress, PortName, VlanId
from virtcloud.model.vlans import VlanSet


def _split_lines(value: object) -> object:
    return tuple(value.splitlines()) if isinstance(value, str) else value


TextLines = Annotated[tuple[str, ...], BeforeValidator(_split_lines)]
"""Lines of text; in a document also one text with line breaks."""


class TrialCommand(Document):
    """A command, and what the switch answered."""

    command: str
    answer: TextLines = ()


class ParsedPort(Document):
    """What was understood of one port; ``open``: it carries all VLANs, ``member``: it repeats an aggregate's lines."""

    mode: str = ""
    tagged: VlanSet = VlanSet()
    open: bool = False
    untagged: VlanSet = VlanSet()
    native: VlanId | None = None
    access: VlanId | None = None
    shut: bool = False
    member: bool = False


class ParsedNeighbour(Document):
    """What was understood of one LLDP neighbour."""

    local: str
    name: str = ""
    port: str = ""
    description: str = ""
    chassis: str = ""
    address: str = ""


class ParsedSwitch(Document):
    """What was understood of a switch. ``neighbours`` is None where the dialect does not ask for them."""

    vlans: dict[int, str] = Field(default_factory=dict)
    reserved: VlanSet = VlanSet()
    ports: dict[str, ParsedPort] = Field(default_factory=dict)
    neighbours: tuple[ParsedNeighbour, ...] | None = None


class TrialRecord(Document):
    """The record of a trial: what was asked and answered, understood, and what SBF would send for an example.

    ``source`` is where the answers are from (model, release), for readers. The example is VLAN ``vlan`` on ``ports``,
    which are access ports with ``access``; ``lines`` are those that SBF would send. ``faults`` are what could not be
    read or understood, and why SBF would refuse the example.
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
    """What is tried: a platform's dialect with a switch, or with the answers of a record (``replayed``).

    ``password`` and ``enable`` are secrets: a trial is passed on through a pipe only.
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
    """Yield what a replay understood otherwise than the record has it; what the record lacks is not compared."""
    was, found = before.understood, now.understood
    if was is not None and found is not None:
        yield from (
            f"port {port}: understood {found.ports.get(port)!r}, the record has {was.ports.get(port)!r}"
            for port in sorted(was.ports.keys() | found.ports.keys())
            if was.ports.get(port) != found.ports.get(port)
        )
        yield from (
            f"{what}: understood {getattr(found, what)!r}, the record has {getattr(was, what)!r}"
            for what in ("vlans", "reserved", "neighbours")
            if getattr(was, what) != getattr(found, what)
        )
    example = (before.ports, before.vlan, before.access) == (now.ports, now.vlan, now.access)
    if example and before.lines and before.lines != now.lines:
        yield f"lines: SBF would send {list(now.lines)}, the record has {list(before.lines)}"
