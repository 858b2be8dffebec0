"""Switches, edges and hosts in memory, with everything that they do wrong; sessions are what the real workers drive.

A switch and an edge have a running configuration and a startup configuration. A restart brings the startup one back, or
none at all. Some of what they carry is not managed by SBF.
"""

from collections.abc import Callable
from dataclasses import dataclass, field, replace

from sbf_service.domain.ownership import make_vlan_name
from sbf_service.drivers.contract import EdgeScope, SwitchScope
from simulation.stage import Stage
from simulation.store import Element
from virtcloud.model.edge import Circuit, CircuitRemnant, EdgeDifference, EdgeObserved, sort_circuits
from virtcloud.model.errors import Refused, Unreachable, Unsafe
from virtcloud.model.values import Name, PortName
from virtcloud.model.vlans import VlanSet
from virtcloud.model.wanted import HostWanted, SwitchDifference, SwitchObserved

NONE = VlanSet()
FAULTS = ("unreachable", "refuses", "lies", "unsafe", "cannot save")
OTHERS_PORT = PortName("others")
OTHERS_VLAN, OTHERS_SERVICE = 10, 10999
"""Of somebody else, outside the site's pool and the transport's services."""
OTHERS_IN_POOL = 102
"""Of somebody else too, on one switch, although the site gives it: it was found when the pool was set."""


@dataclass(frozen=True, slots=True)
class SwitchConfig:
    """The VLANs that exist, and each port's list of them; None is a port without a list, which carries all of them."""

    vlans: frozenset[int] = frozenset()
    ports: dict[PortName, frozenset[int] | None] = field(default_factory=dict)

    def carried(self, port: PortName) -> frozenset[int]:
        """Return the VLANs that a port is in."""
        allowed = self.ports.get(port)
        return self.vlans if allowed is None else self.vlans & allowed

    def put(self, port: PortName, allowed: frozenset[int]) -> "SwitchConfig":
        return replace(self, ports=self.ports | {port: allowed})


@dataclass(frozen=True, slots=True)
class EdgeConfig:
    """Circuits, and what is left of broken ones."""

    circuits: frozenset[Circuit] = frozenset()
    parts: frozenset[CircuitRemnant] = frozenset()


@dataclass
class Device:
    """What SBF configures; ``fault`` is what it does wrong, ``row`` what the store has of it.

    ``unread`` is one that restarted, or was changed by a late worker, until whoever holds it has read it and recorded
    that: until then SBF cannot know what it carries. ``doubtful`` is one that a late worker changed, until it was read
    to be right: a device does not know about fencing tokens. By replica, ``fences`` has the token under which it
    works, ``announced`` the one under which its change was recorded, ``seen`` what had happened when it last read.
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
        """Return whether nobody took the element over from ``holder``."""
        return self.fences.get(holder) == self.row.fence

    def is_known(self, holder: str) -> bool:
        """Return whether what ``holder`` read is what is there: nobody took over, and nothing happened since."""
        return self.is_current(holder) and self.seen.get(holder) == self.surprises


@dataclass
class Switch(Device):
    """A switch; ``managed`` are its managed ports."""

    managed: tuple[PortName, ...] = ()
    theirs: frozenset[int] = frozenset({OTHERS_VLAN})
    running: SwitchConfig = field(default_factory=SwitchConfig)
    startup: SwitchConfig = field(default_factory=SwitchConfig)

    def furnish(self, *, factory: bool) -> None:
        """Begin with somebody else's VLAN on somebody else's port, and managed ports without VLANs or as delivered."""
        ours = dict.fromkeys(self.managed, None if factory else frozenset())
        self.running = self.startup = SwitchConfig(self.theirs, ours | {OTHERS_PORT: self.theirs})

    def restart(self, *, erased: bool) -> None:
        if erased:
            self.theirs, self.startup = frozenset(), SwitchConfig(ports=dict.fromkeys(self.managed))
        _restart(self)

    def others(self) -> object:
        """Return what is not SBF's: an erased switch has nothing of it."""
        return self.running.vlans & self.theirs, self.running.ports.get(OTHERS_PORT)


@dataclass
class Edge(Device):
    """A provider edge: each circuit takes two lines, and is a part between them."""

    running: EdgeConfig = field(default_factory=EdgeConfig)
    startup: EdgeConfig = field(default_factory=EdgeConfig)

    def furnish(self, *, factory: bool) -> None:
        """Begin with a circuit of somebody else's, unless it is as delivered."""
        theirs = Circuit(transport="evpn", port="ac", vlan=OTHERS_VLAN, service=OTHERS_SERVICE)
        self.running = self.startup = EdgeConfig(frozenset() if factory else frozenset({theirs}))

    def restart(self, *, erased: bool) -> None:
        if erased:
            self.startup = EdgeConfig()
        _restart(self)

    def others(self) -> object:
        """Return what is not SBF's."""
        return {one for one in self.running.circuits if one.service == OTHERS_SERVICE}


def _restart(device: Switch | Edge) -> None:
    """Bring the startup configuration back, and end all sessions."""
    device.boots += 1
    if device.running != device.startup:
        device.unread = True
        device.surprises += 1
    device.running = device.startup


@dataclass
class Session:
    """A session of one replica with a device, as drivers have: a reading connects, anything else needs its session."""

    device: Device
    holder: str
    boot: int | None = None

    def is_lost(self) -> bool:
        return self.boot is not None and self.boot != self.device.boots

    def close(self) -> None:
        self.boot = None

    def _ask(self) -> None:
        """Ask a question: whatever happens until the answer has happened to what is read."""
        self.device.stage.gate(f"{self.device.name} is read")
        self._reach()
        self.boot = self.device.boots
        self.device.seen[self.holder] = self.device.surprises
        if self.device.fault == "unsafe":
            raise Unsafe(f"{self.device.name}: expected what it carries, got rubbish")

    def save(self) -> bool:
        """Save what is running, perhaps in a session that began after a restart."""
        if self.device.coin():
            self.boot = None
        self._say("save")
        if self.device.fault == "cannot save":
            raise Refused(f"{self.device.name}: startup-config file open failed (Device or resource busy)")
        self.device.startup = self.device.running
        self._say("saved")
        return True

    def _reach(self) -> None:
        if self.device.fault == "unreachable":
            raise Unreachable(f"{self.device.name} does not answer")

    def _say(self, line: str) -> None:
        """Send a command."""
        self.device.stage.gate(f"{self.device.name}: {line}")
        self._reach()
        if self.boot is None:
            self.boot = self.device.boots
        if self.boot != self.device.boots:
            raise Unreachable(f"{self.device.name} ended the session")

    def _change(self, line: str, refused: list[str]) -> bool:
        """Send a command of a change; return whether it was accepted. A refused command does not stop the others."""
        self._say(line)
        device = self.device
        if device.announced.get(self.holder) != device.fences[self.holder]:
            device.stage.broken.append(f"7.8: {self.holder} changes {device.name} and has recorded no change")
        if not device.is_current(self.holder):
            device.doubtful = device.unread = True
            device.surprises += 1
        if device.fault == "refuses" and device.coin():
            refused.append(line)
            return False
        return not (device.fault == "lies" and device.coin())


@dataclass
class SwitchSession(Session):
    """The driver of a switch."""

    device: Switch

    def read(self, managed: SwitchScope) -> SwitchObserved:
        self._ask()
        config = self.device.running
        ports = {port: VlanSet(config.ports.get(port) or ()) & managed.vlans for port in managed.ports}
        opened = tuple(port for port in managed.ports if config.ports.get(port) is None)
        exist = VlanSet(config.vlans) & managed.vlans
        names = {vlan: "theirs" if vlan in self.device.theirs else make_vlan_name(vlan) for vlan in exist}
        elsewhere = {OTHERS_PORT: VlanSet(config.ports.get(OTHERS_PORT) or ()) & managed.vlans}
        return SwitchObserved(vlans=exist, ports=ports, open=opened, names=names, elsewhere=elsewhere)

    def apply(self, difference: SwitchDifference) -> None:
        """Send one command after another; anything may happen in between.

        Lists are emptied first and read back: nothing more is done while a port is without one.
        """
        refused: list[str] = []
        for port in difference.close:
            if self._change(f"empty {port}", refused):
                self.device.running = self.device.running.put(port, frozenset())
        if difference.close:
            self._say("show the lists")
            if any(self.device.running.ports.get(port) is None for port in difference.close):
                raise Refused(f"{self.device.name}: a port is open, and nothing more was done")
        for line, change in self._lines(difference):
            if self._change(line, refused):
                self.device.running = change(self.device.running)
        if refused:
            raise Refused(f"{self.device.name}: % Invalid input: {', '.join(refused)}")

    def _lines(self, wanted: SwitchDifference) -> list[tuple[str, Callable[[SwitchConfig], SwitchConfig]]]:
        """Return the other lines of a change in the order in which drivers say them."""
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
    """Change a port's list; a port that has none still carries everything."""
    before = now.ports.get(port)
    return now if before is None else now.put(port, (before | frozenset(also)) - frozenset(none))


@dataclass
class EdgeSession(Session):
    """The driver of a provider edge."""

    device: Edge

    def read(self, managed: EdgeScope) -> EdgeObserved:
        self._ask()
        ours = {one for one in self.device.running.circuits if one.vlan in managed.vlans}
        return EdgeObserved(circuits=sort_circuits(ours), parts=tuple(self.device.running.parts))

    def apply(self, difference: EdgeDifference) -> None:
        """Send one command after another; anything may happen in between."""
        refused: list[str] = []
        for part in difference.clear:
            if self._change("clear", refused):
                self._now(parts=self.device.running.parts - {part})
        for circuit in difference.remove:
            if self._change("remove", refused):
                self._now(circuits=self.device.running.circuits - {circuit})
        for circuit in difference.add:
            self._add(circuit, refused)
        if refused:
            raise Refused(f"{self.device.name}: % Invalid input: {', '.join(refused)}")

    def _add(self, circuit: Circuit, refused: list[str]) -> None:
        half = CircuitRemnant(transport=circuit.transport, service=circuit.service)
        if self._change("make", refused):
            self._now(parts=self.device.running.parts | {half})
            if self._change("join", refused):
                self._now(parts=self.device.running.parts - {half}, circuits=self.device.running.circuits | {circuit})

    def _now(self, **changes: frozenset[Circuit] | frozenset[CircuitRemnant]) -> None:
        self.device.running = replace(self.device.running, **changes)


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
