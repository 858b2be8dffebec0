"""Switches that are Linux: VLAN-aware bridges, driven by iproute2's ``bridge`` (bridge(8)).

Numbers that are not managed are left alone, tagged or not. A managed number that is found untagged or as a port's
default (PVID) is *unsafe*: somebody uses a number of the pool for something else, and what SBF would take away or
join to a cluster there is theirs. Nothing on the switch is changed until they have moved it.
"""

import re
from collections.abc import Iterable, Iterator
from shlex import quote
from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field, TypeAdapter, ValidationError

from sbf_service.drivers.driver import DriverFacts, Managed
from sbf_service.drivers.line import CommandLine
from virtcloud.model.errors import Refused, Unsafe
from virtcloud.model.values import Name, PortName, VlanId
from virtcloud.model.vlans import VlanSet
from virtcloud.model.wanted import PortVlans, SwitchCarried, SwitchDifference

FACTS = DriverFacts(reserved=VlanSet([1]))
"""1 is ``vlan_default_pvid`` unless told otherwise."""

SHOW = "bridge -compressvlans -json vlan show"
BATCH = "bridge -force -batch -"
"""``-force``: a line that is refused keeps none of the others from being done."""
PATH = "PATH=$PATH:/usr/sbin:/sbin"
BEGIN, END = "begin-of-answer", "end-of-answer:"
MOST_CHARACTERS = 3500
"""A terminal line holds 4096 characters (termios(3), canonical mode)."""
FAILED_LINE = re.compile(r"(?P<words>.*?)\s*Command failed -:(?P<line>\d+)\s*", re.DOTALL)
QUOTED_CHARACTERS = 300


class _Entry(BaseModel):
    """One number, or a range of them, of one port."""

    model_config = ConfigDict(strict=True)

    vlan: Annotated[int, Field(ge=1, le=4094)]
    last: Annotated[int | None, Field(ge=1, le=4094, alias="vlanEnd")] = None
    flags: list[str] = []

    @property
    def numbers(self) -> VlanSet:
        return VlanSet(range(self.vlan, (self.last or self.vlan) + 1))


class _Port(BaseModel):
    """One port as ``bridge`` shows it."""

    model_config = ConfigDict(strict=True)

    ifname: str
    vlans: list[_Entry] = []


_ANSWER = TypeAdapter(list[_Port])


class LinuxBridge:
    """One Linux switch."""

    def __init__(self, name: Name, line: CommandLine) -> None:
        """Drive the switch called ``name`` over ``line``."""
        self._name = name
        self._line = line

    def read(self, managed: Managed) -> SwitchCarried:
        """Read what managed ports carry of managed numbers; one round trip."""
        code, said = self._run(SHOW)
        if code:
            raise Refused(f"switch {self._name}: {SHOW!r} failed: the switch said {_quote(said)!r}")
        return carried_from(self._name, said, managed)

    def apply(self, difference: SwitchDifference) -> None:
        """Make the change; all of it in as few round trips as a terminal line allows."""
        faults = [fault for lines in batches(commands(difference)) for fault in self._batch(lines)]
        if faults:
            raise Refused(f"switch {self._name}: {'; '.join(faults)}: look at its ports and at the account's rights")

    def lines(self, difference: SwitchDifference) -> tuple[str, ...]:
        """Give the lines of the batch."""
        return tuple(f"bridge {line}" for line in commands(difference))

    def close(self) -> None:
        """End the session."""
        self._line.close()

    def _batch(self, lines: list[str]) -> list[str]:
        """Send lines; give what was refused of them, in the switch's words."""
        code, said = self._run(f"printf '%s\\n' {' '.join(quote(line) for line in lines)} | {BATCH} 2>&1")
        found = [(lines[int(one["line"]) - 1], one["words"]) for one in FAILED_LINE.finditer(said)]
        if not found and (code or said):
            found = [(BATCH, f"{said} (exit code {code})")]
        return [f"{line!r} was refused: the switch said {_quote(words)!r}" for line, words in found]

    def _run(self, command: str) -> tuple[int, str]:
        """Run a command; give its exit code and what it printed.

        The marks are sent in two pieces, so that the terminal's echo of the command does not look like an answer.
        """
        sent = f"{PATH}; echo '{BEGIN[0]}''{BEGIN[1:]}'; {command}; echo '{END[0]}''{END[1:]}'$?"
        said = self._line.ask(sent, until=rf"{END}\d+")
        found = re.search(rf"{BEGIN}\s*\n(.*?){END}(\d+)", said, re.DOTALL)
        if found is None:
            raise Unsafe(f"switch {self._name}: expected an answer between marks, got {_quote(said)!r}")
        return int(found[2]), found[1].strip()


def carried_from(name: Name, said: str, managed: Managed) -> SwitchCarried:
    """Understand the answer to :data:`SHOW`; raises Unsafe when it cannot be understood or touched."""
    try:
        shown = _ANSWER.validate_json(said)
    except ValidationError as error:
        what = "; ".join(fault["msg"] for fault in error.errors())
        raise Unsafe(f"switch {name}: expected JSON from {SHOW!r}, got {_quote(said)!r} ({what})") from error
    entries = {port.ifname: port.vlans for port in shown}
    ports = {port: _tagged(name, port, entries.get(port, []), managed.vlans) for port in managed.ports}
    return SwitchCarried(vlans=VlanSet(number for vlans in ports.values() for number in vlans), ports=ports)


def commands(difference: SwitchDifference) -> Iterator[str]:
    """Give the lines for ``bridge -batch``: removals first."""
    for verb, ports in (("del", difference.remove), ("add", difference.add)):
        yield from (f"vlan {verb} dev {port} vid {_range(pair)}" for port, pair in _pairs(ports))


def batches(lines: Iterable[str]) -> Iterator[list[str]]:
    """Split lines so that each part fits on a terminal line."""
    part: list[str] = []
    for line in lines:
        if part and sum(len(one) + 3 for one in part) + len(line) > MOST_CHARACTERS:
            yield part
            part = []
        part.append(line)
    if part:
        yield part


def _tagged(name: Name, port: PortName, entries: list[_Entry], managed: VlanSet) -> VlanSet:
    for entry in entries:
        misused = entry.numbers & managed
        if entry.flags and misused:
            raise Unsafe(
                f"switch {name}, port {port}: expected VLAN {misused} tagged or absent, "
                f"found {', '.join(entry.flags)}: "
                f"move what uses it to a number outside the pool, or take that number out of the pool"
            )
    return VlanSet(number for entry in entries for number in entry.numbers) & managed


def _pairs(ports: PortVlans) -> Iterator[tuple[PortName, tuple[VlanId, VlanId]]]:
    for port, vlans in ports.items():
        yield from ((port, pair) for pair in vlans.ranges())


def _range(pair: tuple[VlanId, VlanId]) -> str:
    first, last = pair
    return str(first) if first == last else f"{first}-{last}"


def _quote(said: str) -> str:
    """Give the end of what a device said on one line: that is where errors stand."""
    return " ".join(said.split())[-QUOTED_CHARACTERS:]
