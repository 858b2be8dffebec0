"""The data of a dialect (commands of a platform, patterns of answers), and the configuration read from a switch.

The names of the fields are the interface of plug-ins (docs/how-to/add-a-switch-platform.md).
"""

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple, Protocol

from sbf_service.drivers.switch.lldp import LldpFormat
from virtcloud.model.values import VlanId
from virtcloud.model.vlans import VlanSet

Commands = tuple[str, ...]
"""Command templates. ``{port}`` is a port in the device's spelling, ``{name}`` is the name of a VLAN, and ``{vlans}``
is a list of VLAN IDs. A template with ``{vlan}`` is repeated for each VLAN ID.
"""

ALL_VLANS = VlanSet(range(1, 4095))
DEFAULT_VLAN = VlanSet([1])
"""The VLAN of a port that was never configured."""


@dataclass(frozen=True, slots=True)
class PortReading:
    """The configuration read from one port, with all tagged and untagged VLANs, managed or not.

    - ``ready``: VLANs can be allowed on the port in its present state.
    - ``open``: the port carries all VLANs, or would if the neighbour negotiated a trunk.
    - ``access``: the VLAN ID of a port that accepts only untagged frames.
    - ``off``: the port is shut down.
    - ``dormant``: the list of allowed VLANs of the port as a trunk; None without a list (the trunk would allow every
      VLAN).
    - ``lines``: the lines of the port's configuration.
    - ``others``: the VLAN IDs that the port accepts because of configuration that SBF did not make.

    ``mode``, ``native`` and ``lines`` show an "other use" of the port, and how SBF can restore it.
    """

    tagged: VlanSet = field(default_factory=VlanSet)
    ready: bool = False
    open: bool = False
    untagged: VlanSet = field(default_factory=VlanSet)
    access: VlanId | None = None
    off: bool = False
    dormant: VlanSet | None = None
    member: bool = False
    """The port belongs to an aggregate and repeats the aggregate's configuration."""
    mode: str = field(default="", compare=False)
    native: VlanId | None = field(default=None, compare=False)
    lines: Commands = field(default=(), compare=False)
    others: VlanSet = field(default_factory=VlanSet, compare=False)

    @property
    def is_closed(self) -> bool:
        """Whether the port is not ``open``, and its list of allowed VLANs contains at most the default VLAN.

        A port without a list is not closed. Untagged VLANs are not considered.
        """
        listed = self.tagged if self.ready else self.dormant
        return not self.open and listed is not None and not listed - DEFAULT_VLAN


@dataclass(frozen=True, slots=True)
class SwitchReading:
    """The configuration read from a switch, with ports by canonical name.

    ``reserved``: the VLAN IDs that this switch uses internally. ``names``: the names of VLANs, on platforms that show
    names.
    """

    vlans: VlanSet
    ports: Mapping[str, PortReading]
    reserved: VlanSet = field(default_factory=VlanSet)
    names: Mapping[int, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class PortNames:
    """The kinds of ports of a platform: the long name of each kind, with its short forms.

    Any prefix of a long name or short form is accepted. ``gap`` is the text between the kind and the number in
    commands.
    """

    kinds: Mapping[str, Commands]
    gap: str = ""

    def canonical(self, name: str) -> str:
        """Return the canonical name: ``Gi1/0/1`` is ``GigabitEthernet1/0/1``.

        A name of an unknown kind only loses the spaces around the number.
        """
        kind, number = _split_port_name(name)
        for long, short_forms in self.kinds.items():
            if any(form.lower().startswith(kind.lower()) for form in (long, *short_forms)) and kind:
                return long + number
        return kind + number

    def spelt(self, canonical: str) -> str:
        """Return a canonical name in the spelling of the device's commands."""
        kind, number = _split_port_name(canonical)
        return kind + (self.gap if kind else "") + number


class RestorableLine(NamedTuple):
    """A kind of configuration line that SBF may change on a port, and restores when SBF no longer manages the port.

    A ``start`` that ends with a space is the beginning of the line; any other is the whole line. SBF sends ``undo`` if
    the port had no such line before; it is empty if restoring another line has the same effect. If ``mode`` is set, the
    line is restored only on ports of this mode.
    """

    start: str
    undo: str = ""
    mode: str = ""

    def select(self, lines: Commands) -> Commands:
        """Return the lines of this kind."""
        is_prefix = self.start[-1] == " "
        return tuple(line for line in lines if line == self.start or (is_prefix and line.startswith(self.start)))


class PortConventions(Protocol):
    """The names, modes and configuration lines of ports on a platform."""

    @property
    def unused(self) -> frozenset[str]:
        """The modes of ports that were never configured."""

    @property
    def kept(self) -> tuple[RestorableLine, ...]:
        """The kinds of lines that SBF may change on a port and restores later."""

    @property
    def ports(self) -> PortNames:
        """The forms of port names."""

    @property
    def shows_every_port(self) -> bool:
        """Whether the answers show every existing port."""

    @property
    def vlans_are_local(self) -> bool:
        """Whether the same VLAN ID denotes a different VLAN on each port, as on routers."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Dialect:
    """The commands and answers of a platform.

    ``see`` parses the answers to ``show``, in the order of the commands, and raises ValueError for an unknown answer.
    """

    title: str
    netmiko: str
    show: Commands
    see: Callable[[Sequence[str]], SwitchReading]
    create: Commands
    delete: Commands
    prepare: Commands
    """Commands that set an empty list of allowed VLANs, which the driver reads back before any other change.

    Empty on platforms whose trunks allow no VLAN by default.
    """
    allow: Commands
    remove: Commands
    save: Commands
    saved: re.Pattern[str]
    """The output of the last command of ``save`` after a successful save."""
    errors: re.Pattern[str]
    trunk: Commands = ()
    """Commands that make a port with an empty list of allowed VLANs a trunk.

    Empty on platforms where the commands of ``prepare`` also make the port a trunk.
    """
    empty: Commands = ()
    """Commands to send instead of ``remove`` when no VLAN would remain on the port."""
    access: Commands = ()
    """Commands that make a port an untagged member of VLAN ``{vlan}``, then enable the port."""
    vacate: tuple[Commands, ...] = ()
    """Commands that remove an access port from all VLANs.

    They shut the port down on platforms where a port must be in a VLAN. A template with ``{vlan}`` is repeated for each
    untagged VLAN ID.
    """
    unused: frozenset[str] = frozenset({"", "access"})
    """The modes of ports that were never configured.

    A port in one of these modes is unused if its untagged VLAN is the default VLAN.
    """
    kept: tuple[RestorableLine, ...] = ()
    """The lines that SBF may change on a port and restores later, in the order of restoration.

    SBF restores the lines of a trunk in reverse order if the dialect has ``trunk``, so that a port never carries every
    VLAN. Empty on platforms where the configuration of a VLAN lists the VLAN's ports: there, ``access`` restores the
    VLAN.
    """
    leave_vlans: Commands = ()
    """Commands that restore a port that was in no VLAN, on platforms whose VLAN configuration lists the ports."""
    enable: str = "no shutdown"
    """The command that enables a port. SBF does not send it after a refused command on the port."""
    disable: str = "shutdown"
    configure: Commands = ("configure terminal",)
    leave: Commands = ("end",)
    instead: Mapping[str, Commands] = field(default_factory=dict)
    """Alternatives to commands of ``show``, by command.

    If the device refuses the command or the answer is empty, the driver sends the alternatives until an answer is not
    empty. ``see`` parses this answer.
    """
    may_fail: frozenset[str] = frozenset()
    """Templates that some models refuse. The driver ignores the refusal.

    The read-back detects a change that failed. A refused command of ``show`` has an empty answer.
    """
    answers: Mapping[str, str] = field(default_factory=dict)
    """Questions of the device (patterns that match the end of the output), each with the reply."""
    ports: PortNames = field(default_factory=lambda: PortNames({}))
    shows_every_port: bool = True
    vlans_are_local: bool = False
    reserved: VlanSet = field(default_factory=lambda: VlanSet([1]))
    to: str = "-"
    comma: str = ","
    most_ranges: int = 20
    runs_only: bool = False
    """Whether ``delete`` accepts only one range in one command."""
    at_once: int = 1
    """The number of lines to send before the answer to the first line."""
    privileged: bool = False
    """Whether some accounts need the command ``enable`` and its password after the login."""
    lldp: LldpFormat | None = None
    """The command that shows neighbours, and the form of the answer. None if SBF cannot read neighbours."""

    def format_ranges(self, ranges: Sequence[tuple[int, int]]) -> str:
        """Return ranges in the spelling of the device's commands."""
        return self.comma.join(str(a) if a == b else f"{a}{self.to}{b}" for a, b in ranges)


def find_port(conventions: PortConventions, reading: SwitchReading, port: str) -> PortReading | None:
    """Return the reading of a port by any form of its name.

    For a port that the answers do not show, return None if the platform shows every port, otherwise an empty reading.
    """
    port_reading = reading.ports.get(conventions.ports.canonical(port))
    return PortReading() if port_reading is None and not conventions.shows_every_port else port_reading


def select_restorable_lines(conventions: PortConventions, lines: Commands) -> Commands:
    """Return the lines of a port's configuration that SBF may change; all lines if the platform's ``kept`` is empty."""
    if not conventions.kept:
        return lines
    return tuple(line for line in lines if any(kept.select((line,)) for kept in conventions.kept))


def _split_port_name(name: str) -> tuple[str, str]:
    """Return the kind and the number of a port: ``Gi1/0/1`` is ``("Gi", "1/0/1")``."""
    number = re.search(r"\s*\d.*", name)
    return (name[: number.start()], number[0].strip()) if number else (name, "")


def render_section(heading: str, column: str, rows: Mapping[str, Sequence[str]]) -> str:
    """Return a Markdown section: a heading, and a table of all actions that have commands."""
    lines = "".join(f"| {action} | {_format_code(commands)} |\n" for action, commands in rows.items() if commands)
    return f"{heading}\n\n| action | {column} |\n|---|---|\n{lines}"


def _format_code(commands: Sequence[str]) -> str:
    return " / ".join(f"`{command}`".replace("|", "\\|") for command in commands)
