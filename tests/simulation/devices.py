"""Switches, edges and hosts in memory, with their faults, and the workers' sessions with switches and edges.

A switch and an edge have a running and a startup configuration. A restart loads the startup configuration, which is
empty if the device was erased.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Generic, TypeVar

from sbf_service.domain.ownership import make_vlan_name
from sbf_service.drivers.contract import EdgeScope, SwitchScope
from simulation.stage import Stage, Watched
from simulation.store import Element
from virtcloud.model.edge import Circuit, CircuitRemnant, EdgeDifference, EdgeObserved, sort_circuits
from virtcloud.model.errors import Refused, Unreachable, Unsafe
from virtcloud.model.switch_state import SwitchDifference, SwitchObserved
from virtcloud.model.values import Name, PortName
from virtcloud.model.vlans import VlanSet
from virtcloud.model.wanted import HostWanted

NONE = VlanSet()
FAULTS = ("unreachable", "refuses", "lies", "unsafe", "cannot save")
OTHERS_PORT = PortName("others")
OTHERS_VLAN, OTHERS_SERVICE = 10, 10999
"""A VLAN ID and a service ID in other use: SBF did not configure them. The VLAN ID is outside the site's pool, and the
service ID is outside the transport's range.
"""
OTHERS_IN_POOL = 102
"""A VLAN ID in the pool. At the site praha, this VLAN ID is in other use, and the store records it as foreign."""


@dataclass(frozen=True, slots=True)
class SwitchConfig:
    """The existing VLANs, and the list of allowed VLANs of each port.

    None instead of a list means that the port carries all VLANs.
    """

    vlans: frozenset[int] = frozenset()
    ports: dict[PortName, frozenset[int] | None] = field(default_factory=dict)

    def carried(self, port: PortName) -> frozenset[int]:
        allowed = self.ports.get(port)
        return self.vlans if allowed is None else self.vlans & allowed

    def put(self, port: PortName, allowed: frozenset[int]) -> "SwitchConfig":
        return replace(self, ports=self.ports | {port: allowed})


@dataclass(frozen=True, slots=True)
class EdgeConfig:
    """Circuits, and the remaining parts of incomplete circuits."""

    circuits: frozenset[Circuit] = frozenset()
    parts: frozenset[CircuitRemnant] = frozenset()


@dataclass
class Device(Watched):
    """A device that SBF configures. ``fault`` is its present fault, ``row`` its row in the store.

    A late worker, which no longer holds the element's lease, can still change the device, because a device does not
    check fencing tokens. Two fields become true when the configuration changes without SBF's knowledge:

    - ``unread``: after a restart or a change by a late worker, until a holder of the lease records a reading. Before
      this reading, SBF cannot know what the device carries.
    - ``doubtful``: after a change by a late worker, until a reading shows the wanted state.

    ``surprises`` counts unexpected changes. Three fields map each replica to a value:

    - ``fences``: its fencing token
    - ``announced``: the fencing token of its last announced change
    - ``seen``: the value of ``surprises`` at its last reading
    """

    name: Name
    row: Element
    stage: Stage
    coin: Callable[[], bool]
    fault: str | None = None
    doubtful: bool = False
    unread: bool = False
    surprises: int = 0
    boots: int = 0
    fences: dict[str, int] = field(default_factory=dict)
    announced: dict[str, int] = field(default_factory=dict)
    seen: dict[str, int] = field(default_factory=dict)

    def is_current(self, holder: str) -> bool:
        return self.fences.get(holder) == self.row.fence

    def is_known(self, holder: str) -> bool:
        """Return whether the last reading of ``holder`` is still correct.

        A reading is correct until another holder acquires the lease or an unexpected change happens.
        """
        return self.is_current(holder) and self.seen.get(holder) == self.surprises


@dataclass
class Switch(Device):
    """A switch. ``managed`` are its managed ports, ``foreign_vlans`` its VLANs in other use."""

    managed: tuple[PortName, ...] = ()
    foreign_vlans: frozenset[int] = frozenset({OTHERS_VLAN})
    running: SwitchConfig = field(default_factory=SwitchConfig)
    startup: SwitchConfig = field(default_factory=SwitchConfig)

    def furnish(self, *, factory: bool) -> None:
        """Set the first configuration: a VLAN in other use on an unmanaged port, and managed ports without VLANs.

        With ``factory``, the managed ports have no list and carry all VLANs.
        """
        allowed: frozenset[int] | None = None if factory else frozenset()
        managed: dict[PortName, frozenset[int] | None] = dict.fromkeys(self.managed, allowed)
        self.running = self.startup = SwitchConfig(self.foreign_vlans, managed | {OTHERS_PORT: self.foreign_vlans})

    def restart(self, *, erased: bool) -> None:
        if erased:
            self.foreign_vlans, self.startup = frozenset(), SwitchConfig(ports=dict.fromkeys(self.managed))
        _restart(self)

    def read_foreign(self) -> object:
        return self.running.vlans & self.foreign_vlans, self.running.ports.get(OTHERS_PORT)


@dataclass
class Edge(Device):
    """A provider edge. Two commands create a circuit. Between these commands, the circuit is incomplete."""

    running: EdgeConfig = field(default_factory=EdgeConfig)
    startup: EdgeConfig = field(default_factory=EdgeConfig)

    def furnish(self, *, factory: bool) -> None:
        """Set the first configuration: one circuit in other use. With ``factory``, set an empty configuration."""
        foreign = Circuit(transport="evpn", port="ac", vlan=OTHERS_VLAN, service=OTHERS_SERVICE)
        self.running = self.startup = EdgeConfig(frozenset() if factory else frozenset({foreign}))

    def restart(self, *, erased: bool) -> None:
        if erased:
            self.startup = EdgeConfig()
        _restart(self)

    def read_foreign(self) -> object:
        return {circuit for circuit in self.running.circuits if circuit.service == OTHERS_SERVICE}


D = TypeVar("D", Switch, Edge)


def _restart(device: Switch | Edge) -> None:
    device.boots += 1
    if device.running != device.startup:
        device.unread = True
        device.surprises += 1
    device.running = device.startup


@dataclass
class Session(Generic[D]):
    """A session of one replica with a device.

    A reading opens a session. A command also opens a session if none is open. A command fails if the device has
    restarted since the session was opened.
    """

    device: D
    holder: str
    boot: int | None = None

    def is_lost(self) -> bool:
        return self.boot is not None and self.boot != self.device.boots

    def close(self) -> None:
        self.boot = None

    def _begin_reading(self) -> None:
        """Wait until the schedule resumes the actor, then connect. The reading shows the state after the wait."""
        self.device.stage.gate(f"{self.device.name} is read")
        self._reach()
        self.boot = self.device.boots
        self.device.seen[self.holder] = self.device.surprises
        if self.device.fault == "unsafe":
            raise Unsafe(f"{self.device.name}: expected a readable configuration, got an unreadable one")

    def save(self) -> bool:
        """Save the running configuration.

        At random (``coin``), begin a new session first. A new session does not detect an earlier restart.
        """
        if self.device.coin():
            self.boot = None
        self._send("save")
        if self.device.fault == "cannot save":
            raise Refused(f"{self.device.name}: startup-config file open failed (Device or resource busy)")
        self.device.startup = self.device.running
        self._send("saved")
        return True

    def _reach(self) -> None:
        if self.device.fault == "unreachable":
            raise Unreachable(f"{self.device.name} does not answer")

    def _send(self, line: str) -> None:
        self.device.stage.gate(f"{self.device.name}: {line}")
        self._reach()
        if self.boot is None:
            self.boot = self.device.boots
        if self.boot != self.device.boots:
            raise Unreachable(f"{self.device.name} ended the session")

    def _change(self, line: str, refused: list[str]) -> bool:
        """Send one command of a change. Return whether the command takes effect.

        If the device refuses the command, append it to ``refused``. The caller still sends the next commands.
        """
        self._send(line)
        device = self.device
        if device.announced.get(self.holder) != device.fences[self.holder]:
            device.stage.broken.append(f"invariant 8: {self.holder} changes {device.name} and has recorded no change")
        if not device.is_current(self.holder):
            device.doubtful = device.unread = True
            device.surprises += 1
        if device.fault == "refuses" and device.coin():
            refused.append(line)
            return False
        return not (device.fault == "lies" and device.coin())


@dataclass
class SwitchSession(Session[Switch]):
    """The driver of a switch."""

    def read(self, managed: SwitchScope) -> SwitchObserved:
        self._begin_reading()
        config = self.device.running
        ports = {port: VlanSet(config.ports.get(port) or ()) & managed.vlans for port in managed.ports}
        opened = tuple(port for port in managed.ports if config.ports.get(port) is None)
        exist = VlanSet(config.vlans) & managed.vlans
        names = {vlan: "foreign" if vlan in self.device.foreign_vlans else make_vlan_name(vlan) for vlan in exist}
        elsewhere = {OTHERS_PORT: VlanSet(config.ports.get(OTHERS_PORT) or ()) & managed.vlans}
        return SwitchObserved(vlans=exist, ports=ports, open=opened, names=names, elsewhere=elsewhere)

    def apply(self, difference: SwitchDifference) -> None:
        """Send one command after another. Other actors may act between two commands.

        First, empty the lists of open ports, which carry all VLANs, and read the lists back. If one of these ports is
        still open, send no other command.
        """
        refused: list[str] = []
        for port in difference.close:
            if self._change(f"empty {port}", refused):
                self.device.running = self.device.running.put(port, frozenset())
        if difference.close:
            self._send("show the lists")
            if any(self.device.running.ports.get(port) is None for port in difference.close):
                raise Refused(f"{self.device.name}: a port carries all VLANs; no other change was made")
        for line, change in self._lines(difference):
            if self._change(line, refused):
                self.device.running = change(self.device.running)
        if refused:
            raise Refused(f"{self.device.name}: % Invalid input: {', '.join(refused)}")

    def _lines(self, wanted: SwitchDifference) -> list[tuple[str, Callable[[SwitchConfig], SwitchConfig]]]:
        """Return the commands that follow the commands for open ports, in the order in which drivers send them."""
        return [
            *(
                (f"{port} remove {vlans}", lambda now, port=port, vlans=vlans: _allow(now, port, none=vlans))
                for port, vlans in wanted.remove.items()
            ),
            *(
                (f"no vlan {vlan}", lambda now, vlan=vlan: replace(now, vlans=now.vlans - {vlan}))
                for vlan in wanted.delete
            ),
            *(
                (f"vlan {vlan}", lambda now, vlan=vlan: replace(now, vlans=now.vlans | {vlan}))
                for vlan in wanted.create
            ),
            *(
                (f"{port} add {vlans}", lambda now, port=port, vlans=vlans: _allow(now, port, also=vlans))
                for port, vlans in wanted.add.items()
            ),
        ]


def _allow(now: SwitchConfig, port: PortName, also: VlanSet = NONE, none: VlanSet = NONE) -> SwitchConfig:
    """Add the VLANs ``also`` to a port's list, and remove the VLANs ``none``. Do not create missing lists."""
    before = now.ports.get(port)
    return now if before is None else now.put(port, (before | frozenset(also)) - frozenset(none))


@dataclass
class EdgeSession(Session[Edge]):
    """The driver of a provider edge."""

    def read(self, managed: EdgeScope) -> EdgeObserved:
        self._begin_reading()
        circuits = {circuit for circuit in self.device.running.circuits if circuit.vlan in managed.vlans}
        return EdgeObserved(circuits=sort_circuits(circuits), parts=tuple(self.device.running.parts))

    def apply(self, difference: EdgeDifference) -> None:
        refused: list[str] = []
        for part in difference.clear:
            if self._change("clear", refused):
                self._configure(replace(self.device.running, parts=self.device.running.parts - {part}))
        for circuit in difference.remove:
            if self._change("remove", refused):
                self._configure(replace(self.device.running, circuits=self.device.running.circuits - {circuit}))
        for circuit in difference.add:
            self._add(circuit, refused)
        if refused:
            raise Refused(f"{self.device.name}: % Invalid input: {', '.join(refused)}")

    def _add(self, circuit: Circuit, refused: list[str]) -> None:
        half = CircuitRemnant(transport=circuit.transport, service=circuit.service)
        if self._change("make", refused):
            config = self.device.running
            self._configure(replace(config, parts=config.parts | {half}))
            if self._change("join", refused):
                config = self.device.running
                self._configure(EdgeConfig(config.circuits | {circuit}, config.parts - {half}))

    def _configure(self, config: EdgeConfig) -> None:
        self.device.running = config


@dataclass
class Host(Watched):
    """A host. ``segments`` maps cluster IDs to VLAN IDs. A restart deletes the segments."""

    name: Name
    segments: Mapping[str, int] = field(default_factory=dict)
    fault: str | None = None
    doubtful: bool = False

    @property
    def unread(self) -> bool:
        """Whether a restart deleted segments and the agent has not yet reset the host's confirmed revision."""
        return self.doubtful

    def restart(self, *, erased: bool) -> None:
        """Delete all segments. ``erased`` has no effect."""
        self.doubtful = self.doubtful or bool(self.segments)
        self.segments = {}

    def apply(self, wanted: HostWanted) -> None:
        self.segments = {segment.id: int(segment.vlan) for segment in wanted.segments}
