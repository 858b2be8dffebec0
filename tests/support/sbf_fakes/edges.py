"""Provider edges in memory. A test can disconnect or restart an edge, or plan its faults."""

from collections.abc import Callable
from dataclasses import dataclass, field
from threading import Event

from sbf_service.drivers.contract import Backbone, DeviceLogin, EdgeCapabilities, EdgePlatform, EdgeScope
from virtcloud.model.edge import Circuit, CircuitRemnant, EdgeDifference, EdgeObserved, sort_circuits
from virtcloud.model.element import Edge
from virtcloud.model.errors import Refused, Unreachable, Unsafe
from virtcloud.model.transport import TransportKind


@dataclass
class FakeEdge:
    """An edge: its circuits, the parts of incomplete circuits, its planned faults, and the received calls.

    ``backbones`` contains the backbone with which each session was opened, in order. An edge has the faults of
    `FakeSwitch` without ``save_fails``. With ``breaks``, the edge is disconnected while it creates a circuit.
    """

    name: str
    circuits: set[Circuit] = field(default_factory=set)
    parts: set[CircuitRemnant] = field(default_factory=set)
    startup: frozenset[Circuit] = frozenset()
    cut_off: bool = False
    cut_off_after: int | None = None
    refuses: bool = False
    lies: bool = False
    unsafe: bool = False
    shut: bool = False
    """Whether the edge's ports are shut down."""
    breaks: bool = False
    checks_services: bool = False
    """Whether a reading fails if a service of SBF contains a VLAN outside the pool, as with real drivers."""
    hangs: Event | None = None
    calls: list[str] = field(default_factory=list)
    applied: list[EdgeDifference] = field(default_factory=list)
    backbones: list[Backbone] = field(default_factory=list)
    before_read: Callable[[], None] = lambda: None
    before_apply: Callable[[], None] = lambda: None

    def carried(self) -> list[tuple[str, int, int]]:
        return [(circuit.port, int(circuit.vlan), circuit.service) for circuit in sort_circuits(self.circuits)]

    def restart(self) -> None:
        """Lose the whole configuration, like a device whose configuration was never saved."""
        self.circuits, self.parts = set(), set()

    def answer(self, call: str) -> None:
        """Record a call. Wait for the event ``hangs``, if any. Raise Unreachable if the edge is disconnected."""
        self.calls.append(call)
        if self.hangs is not None:
            self.hangs.wait()
        if self.cut_off_after is not None:
            self.cut_off = self.cut_off or len(self.calls) > self.cut_off_after
        if self.cut_off:
            raise Unreachable(f"edge {self.name} (fake) does not answer: cut off; SBF tries again")


@dataclass
class FakeEdgeDriver:
    """A session with a fake edge."""

    edge: FakeEdge

    def read(self, managed: EdgeScope) -> EdgeObserved:
        self.edge.answer("read")
        self.edge.before_read()
        if self.edge.unsafe:
            raise Unsafe(f"edge {self.edge.name}: expected circuits, got an unreadable answer")
        circuits = sort_circuits({circuit for circuit in self.edge.circuits if _is_managed(circuit, managed)})
        unmanaged = {circuit.vlan for circuit in circuits} - managed.vlans
        if unmanaged and self.edge.checks_services:
            raise Unsafe(f"edge {self.edge.name}: expected only managed VLANs in a managed service, found {unmanaged}")
        circuits = tuple(circuit for circuit in circuits if circuit.vlan not in unmanaged)
        parts = sorted((part for part in self.edge.parts if _is_managed(part, managed)), key=lambda part: part.service)
        return EdgeObserved(circuits=circuits, parts=tuple(parts), down=circuits if self.edge.shut else ())

    def apply(self, difference: EdgeDifference) -> None:
        self.edge.answer("apply")
        self.edge.before_apply()
        if self.edge.refuses:
            raise Refused(f'edge {self.edge.name}: the device answered "% Invalid input"')
        self.edge.applied.append(difference)
        if not self.edge.lies:
            self._change(difference)

    def save(self) -> bool:
        self.edge.answer("save")
        self.edge.startup = frozenset(self.edge.circuits)
        return True

    def close(self) -> None:
        self.edge.calls.append("close")

    def _change(self, difference: EdgeDifference) -> None:
        self.edge.parts -= set(difference.clear)
        self.edge.circuits -= set(difference.remove)
        for circuit in difference.add:
            if self.edge.breaks:
                self.edge.parts.add(CircuitRemnant(transport=circuit.transport, service=circuit.service))
                self.edge.cut_off = True
                self.edge.answer("the next command")
            self.edge.circuits.add(circuit)


def _is_managed(part: Circuit | CircuitRemnant, managed: EdgeScope) -> bool:
    transports = managed.transports
    return any(part.transport == transport.name and part.service in transport.service_ids for transport in transports)


@dataclass
class FakeEdges:
    """All fake edges by name, and the capabilities of their platform. An edge is created on first use."""

    found: dict[str, FakeEdge] = field(default_factory=dict)
    facts: EdgeCapabilities = field(default_factory=lambda: EdgeCapabilities(kinds=frozenset(TransportKind)))

    def __getitem__(self, name: str) -> FakeEdge:
        return self.found.setdefault(name, FakeEdge(name))

    def platform_of(self, edge: Edge) -> EdgePlatform:
        return EdgePlatform(self.facts, self._driver)

    def _driver(self, login: DeviceLogin, backbone: Backbone) -> FakeEdgeDriver:
        edge = self[login.device.name]
        edge.backbones.append(backbone)
        return FakeEdgeDriver(edge)
