"""Switches, edges and hosts in memory, with everything that they do wrong."""

from collections.abc import Iterator
from dataclasses import dataclass, field

from sbf_service.drivers.driver import Managed
from sbf_service.drivers.edge import ManagedEdge
from virtcloud.model.edge import Circuit, EdgeCarried, EdgeDifference, Part, in_order
from virtcloud.model.errors import Refused, Unreachable, Unsafe
from virtcloud.model.values import Name, PortName
from virtcloud.model.vlans import VlanSet
from virtcloud.model.wanted import HostWanted, SwitchCarried, SwitchDifference

FAULTS = ("unreachable", "refuses", "lies", "unsafe")


@dataclass
class Device:
    """What SBF configures; ``fault`` is what it does wrong.

    After a restart, or a change by a late worker, it is ``unread`` until whoever holds it has read it and said so, and
    ``doubtful`` until it was read to be right: meanwhile nobody can know, or have mended, what it carries.
    """

    name: Name
    fault: str | None = None
    doubtful: bool = False
    unread: bool = False
    surprises: int = 0

    def surprise(self) -> None:
        """Say that it is no longer as it was read, and that nobody knows."""
        self.doubtful = self.unread = True
        self.surprises += 1

    def answer(self) -> None:
        """Take a line, or do not."""
        if self.fault == "unreachable":
            raise Unreachable(f"{self.name} does not answer")

    def understand(self) -> None:
        """Answer a question, or say something that nobody understands."""
        self.answer()
        if self.fault == "unsafe":
            raise Unsafe(f"{self.name}: expected what it carries, got rubbish")

    def obeys(self) -> bool:
        """Take a line of a change; say whether it is done."""
        self.answer()
        if self.fault == "refuses":
            raise Refused(f"{self.name}: % Invalid input")
        return self.fault != "lies"


@dataclass
class Switch(Device):
    """A switch: its running and its saved configuration."""

    ports: dict[PortName, frozenset[int]] = field(default_factory=dict)
    saved: dict[PortName, frozenset[int]] = field(default_factory=dict)

    def restart(self, *, erased: bool) -> None:
        """Bring the saved configuration back, which may be an old one, or none at all."""
        if erased:
            self.saved = {}
        if self.ports != self.saved:
            self.surprise()
        self.ports = dict(self.saved)

    def read(self, managed: Managed) -> SwitchCarried:
        self.understand()
        ports = {port: VlanSet(self.ports.get(port, ())) & managed.vlans for port in managed.ports}
        return SwitchCarried(vlans=VlanSet(n for vlans in ports.values() for n in vlans), ports=ports)

    def apply(self, difference: SwitchDifference) -> Iterator[None]:
        """Take one line after the other; anything may happen between two of them."""
        lines = [(port, vlans, False) for port, vlans in difference.remove.items()]
        lines += [(port, vlans, True) for port, vlans in difference.add.items()]
        for port, vlans, adds in lines:
            if self.obeys():
                before = self.ports.get(port, frozenset())
                self.ports[port] = before | frozenset(vlans) if adds else before - frozenset(vlans)
            yield
        self.answer()
        self.saved = dict(self.ports)

    def carried(self) -> set[int]:
        return {vlan for vlans in self.ports.values() for vlan in vlans}


@dataclass
class Edge(Device):
    """A provider edge: each circuit takes two lines, and is a part between them."""

    circuits: frozenset[Circuit] = frozenset()
    parts: frozenset[Part] = frozenset()
    saved: tuple[frozenset[Circuit], frozenset[Part]] = (frozenset(), frozenset())

    def restart(self, *, erased: bool) -> None:
        """Bring the saved configuration back, which may be an old one, or none at all."""
        if erased:
            self.saved = (frozenset(), frozenset())
        if (self.circuits, self.parts) != self.saved:
            self.surprise()
        self.circuits, self.parts = self.saved

    def read(self, managed: ManagedEdge) -> EdgeCarried:
        self.understand()
        ours = {one for one in self.circuits if one.vlan in managed.vlans}
        return EdgeCarried(circuits=in_order(ours), parts=tuple(self.parts))

    def apply(self, difference: EdgeDifference) -> Iterator[None]:
        """Take one line after the other; anything may happen between two of them."""
        for part in difference.clear:
            if self.obeys():
                self.parts -= {part}
            yield
        for circuit in difference.remove:
            if self.obeys():
                self.circuits -= {circuit}
            yield
        for circuit in difference.add:
            half = Part(transport=circuit.transport, service=circuit.service)
            if self.obeys():
                self.parts |= {half}
            yield
            if self.obeys():
                self.parts, self.circuits = self.parts - {half}, self.circuits | {circuit}
            yield
        self.answer()
        self.saved = (self.circuits, self.parts)

    def carried(self) -> set[int]:
        return {int(one.vlan) for one in self.circuits}

    def services(self) -> set[int]:
        return {one.service for one in (*self.circuits, *self.parts)}


@dataclass
class Host:
    """A host: its segments by cluster; it forgets them when it restarts."""

    name: Name
    segments: dict[str, int] = field(default_factory=dict)
    fault: str | None = None
    doubtful: bool = False

    @property
    def unread(self) -> bool:
        """An agent that finds its host changed says so, and then mends it, before anything else."""
        return self.doubtful

    def restart(self, *, erased: bool) -> None:
        """Forget everything, always."""
        self.doubtful = self.doubtful or bool(self.segments)
        self.segments = {}

    def apply(self, wanted: HostWanted) -> None:
        self.segments = {one.id: int(one.vlan) for one in wanted.segments}

    def carried(self) -> set[int]:
        return set(self.segments.values())
