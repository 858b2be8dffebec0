"""What a dialect is: a vendor's words as data (DESIGN.md §8)."""

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple, Protocol

from sbf_service.drivers.switch.lldp import LldpFormat
from virtcloud.model.values import VlanId
from virtcloud.model.vlans import VlanSet

Commands = tuple[str, ...]
"""Commands. ``{port}`` is a port as the device wants it spelt, ``{name}`` the name of a VLAN, ``{vlans}`` a list of
numbers. A template that says ``{vlan}`` is repeated for each number."""

ALL_VLANS = VlanSet(range(1, 4095))
DEFAULT_VLAN = VlanSet([1])
"""What a port is in that nobody configured."""


@dataclass(frozen=True, slots=True)
class PortReading:
    """A port as it was read: the VLANs tagged on it, whoever they belong to, and those that are on it untagged.

    ``ready`` says that VLANs may be allowed on it as it is, ``open`` that it carries all VLANs, or would if its
    neighbour asked for it. ``access`` is the number of one that takes untagged frames only, ``off`` says that it was
    shut down. ``dormant`` is the list of allowed VLANs that a port without trunk mode will have as a trunk; None: no
    list, so that such a trunk would allow every VLAN. ``mode``, ``native`` and ``lines`` (the port's configuration)
    tell whether the port is in other use, and restore it; ``others`` are VLANs that others have on the port beside it.
    """

    tagged: VlanSet = field(default_factory=VlanSet)
    ready: bool = False
    open: bool = False
    untagged: VlanSet = field(default_factory=VlanSet)
    access: VlanId | None = None
    off: bool = False
    dormant: VlanSet | None = None
    member: bool = False
    """It is part of an aggregate, whose configuration it repeats."""
    mode: str = field(default="", compare=False)
    native: VlanId | None = field(default=None, compare=False)
    lines: Commands = field(default=(), compare=False)
    others: VlanSet = field(default_factory=VlanSet, compare=False)

    @property
    def is_closed(self) -> bool:
        """Whether the port, now and as a trunk, allows no VLAN but the default one."""
        listed = self.tagged if self.ready else self.dormant
        return not self.open and listed is not None and not listed - DEFAULT_VLAN


@dataclass(frozen=True, slots=True)
class SwitchReading:
    """A whole switch as it was read; ports by their canonical names. ``reserved`` is what it keeps for itself.

    ``names`` are the names of VLANs, where the platform shows them.
    """

    vlans: VlanSet
    ports: Mapping[str, PortReading]
    reserved: VlanSet = field(default_factory=VlanSet)
    names: Mapping[int, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class PortNames:
    """The long names of a platform's kinds of port, each with other forms of it; any beginning of them will do."""

    kinds: Mapping[str, Commands]
    gap: str = ""

    def canonical(self, name: str) -> str:
        """Give the one form of a port's name: ``Gi1/0/1`` is ``GigabitEthernet1/0/1``; unknown kinds stay."""
        letters, numbers = _split_port_name(name)
        for long, others in self.kinds.items():
            if any(form.lower().startswith(letters.lower()) for form in (long, *others)) and letters:
                return long + numbers
        return letters + numbers

    def spelt(self, canonical: str) -> str:
        """Write a canonical name as the device wants it in commands."""
        letters, numbers = _split_port_name(canonical)
        return letters + (self.gap if letters else "") + numbers


class RestorableLine(NamedTuple):
    """A kind of line of a port's configuration: its beginning, or without a space at the end the whole line.

    ``undo`` is sent when the port had no such line before; empty: another line undoes it. Where ``mode`` is given, the
    lines are only for ports that are put back into this mode.
    """

    start: str
    undo: str = ""
    mode: str = ""

    def of(self, lines: Commands) -> Commands:
        """Return the lines of this kind."""
        return tuple(
            one for one in lines if one == self.start or (self.start[-1] == " " and one.startswith(self.start))
        )


class PortConventions(Protocol):
    """What is needed to find a port among those that were seen, and to know its use."""

    @property
    def unused(self) -> frozenset[str]:
        """Return the modes of ports that nobody configured."""

    @property
    def kept(self) -> tuple[RestorableLine, ...]:
        """Return what of a port's configuration SBF may change and puts back."""

    @property
    def ports(self) -> PortNames:
        """Give the forms of ports' names."""

    @property
    def shows_every_port(self) -> bool:
        """Say whether a port that is not shown is not there."""

    @property
    def vlans_are_local(self) -> bool:
        """Return whether a VLAN ID means another VLAN on each port, as on routers."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Dialect:
    """A platform's words. ``see`` understands the answers to ``show``, in their order; it raises ValueError."""

    title: str
    netmiko: str
    show: Commands
    see: Callable[[Sequence[str]], SwitchReading]
    create: Commands
    delete: Commands
    prepare: Commands
    """Sets an empty list of allowed VLANs; the list is read back before anything else is changed. Empty on platforms
    whose trunks allow no VLAN until told otherwise."""
    allow: Commands
    remove: Commands
    save: Commands
    saved: re.Pattern[str]
    """What the last line of ``save`` prints when the startup configuration was written; anything else is a failure."""
    errors: re.Pattern[str]
    trunk: Commands = ()
    """Makes a port with an empty list a trunk. Empty where ``prepare`` does both in one command, or in an order that
    never allows every VLAN."""
    empty: Commands = ()
    """Instead of ``remove`` where nothing at all would be left on the port."""
    access: Commands = ()
    """Puts a port into ``{vlan}`` untagged; it is in its VLAN before it is enabled."""
    vacate: tuple[Commands, ...] = ()
    """Take an access port out of all VLANs: it is shut down where a port cannot be in none. A template that says
    ``{vlan}`` is for each number that is untagged there."""
    unused: frozenset[str] = frozenset({"", "access"})
    """The modes of ports that nobody configured; such a port is unused while its untagged VLAN is the default one."""
    kept: tuple[RestorableLine, ...] = ()
    """What of a port's configuration SBF may change and puts back, in an order that never opens a port that is to be no
    trunk; for a trunk backwards. Empty on platforms that put ports into VLANs: there ``access`` puts an untagged VLAN
    back."""
    leave_vlans: Commands = ()
    """Puts a port back that was in no VLAN at all, where the platform puts ports into VLANs."""
    enable: str = "no shutdown"
    disable: str = "shutdown"
    configure: Commands = ("configure terminal",)
    leave: Commands = ("end",)
    instead: Mapping[str, Commands] = field(default_factory=dict)
    """What is asked, in order, where a command of ``show`` is refused or answered with nothing: an account may lack the
    right, a release the filter. ``see`` understands these answers too."""
    may_fail: frozenset[str] = frozenset()
    """Templates that some models know and others do not; what matters shows in the commands after them."""
    answers: Mapping[str, str] = field(default_factory=dict)
    """Questions (patterns at the end of what was said) and what is answered."""
    ports: PortNames = field(default_factory=lambda: PortNames({}))
    shows_every_port: bool = True
    vlans_are_local: bool = False
    reserved: VlanSet = field(default_factory=lambda: VlanSet([1]))
    to: str = "-"
    comma: str = ","
    most_ranges: int = 20
    """How many ranges a command takes."""
    runs_only: bool = False
    """``delete`` takes one range."""
    at_once: int = 1
    """How many lines may be sent before the first is answered."""
    privileged: bool = False
    """A login may need ``enable`` and its password."""
    lldp: LldpFormat | None = None
    """How neighbours are asked for; nothing where SBF does not know."""

    def listed(self, ranges: Sequence[tuple[int, int]]) -> str:
        """Write ranges as the device wants them."""
        return self.comma.join(str(a) if a == b else f"{a}{self.to}{b}" for a, b in ranges)


def _split_port_name(name: str) -> tuple[str, str]:
    numbers = re.search(r"\s*\d.*", name)
    return (name[: numbers.start()], numbers[0].strip()) if numbers else (name, "")
