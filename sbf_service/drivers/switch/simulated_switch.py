"""The driver for simulated switches, which exist only in ``virtcloud up``. No device is contacted.

A simulated switch is the file ``switches/NAME.json`` with a running and a startup configuration. ``virtcloud simulate``
writes files to the folder ``events``. While ``NAME.off`` exists, the switch does not answer. The driver applies and
deletes ``NAME.restart`` at the next reading, and ``NAME.drift`` at the first reading at which a trunk other than
``SPARE_PORT`` carries VLANs.
"""

import time
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from pydantic import Field

from sbf_service.domain.cabling import Neighbour
from sbf_service.domain.ownership import is_vlan_name, make_vlan_name
from sbf_service.drivers.contract import DeviceLogin, SwitchCapabilities, SwitchPlatform, SwitchScope
from sbf_service.drivers.switch.dialect import PortNames, PortReading, RestorableLine, SwitchReading
from sbf_service.drivers.switch.observed_state import derive_observed_state
from virtcloud.model.document import Document
from virtcloud.model.element import Switch
from virtcloud.model.errors import BadInput, Unreachable
from virtcloud.model.port_use import PortUse
from virtcloud.model.switch_state import SwitchDifference, SwitchObserved
from virtcloud.model.topology import Topology
from virtcloud.model.values import Name, PortName, VlanId
from virtcloud.model.vlans import VlanSet

PLATFORM: Final = "simulated"
CAPABILITIES = SwitchCapabilities(reserved=VlanSet([1]), access=True)
READ_SHARE = 0.1
"""The duration of a reading or save, as a fraction of the duration of a change."""
SPARE_PORT = PortName("Gi1/0/24")
OTHER_VLANS = {VlanId(30): "staff", VlanId(105): "printers"}
"""The foreign VLANs of every new simulated switch, with their names, on the trunk ``SPARE_PORT``."""


class SimulatedPort(Document):
    """The configuration of a port. A port without a mode has no configuration."""

    mode: str = ""
    access: VlanId | None = None
    tagged: VlanSet = VlanSet()

    def read(self) -> PortReading:
        """Return the reading of this port."""
        untagged = VlanSet() if self.access is None else VlanSet([self.access])
        return PortReading(
            tagged=self.tagged,
            ready=self.mode == "trunk",
            untagged=untagged,
            access=self.access,
            mode=self.mode,
            lines=(self.model_dump_json(),),
        )


class SimulatedConfiguration(Document):
    """A switch's ports, and the names of its VLANs."""

    vlans: dict[VlanId, str] = Field(default_factory=dict)
    ports: dict[PortName, SimulatedPort] = Field(default_factory=dict)


class SimulatedMemory(Document):
    """The running configuration and the startup configuration of a simulated switch."""

    running: SimulatedConfiguration
    startup: SimulatedConfiguration


@dataclass(frozen=True)
class SimulatedConventions:
    """The names, modes and configuration lines of a simulated switch's ports."""

    unused: frozenset[str] = frozenset({"", "access"})
    kept: tuple[RestorableLine, ...] = ()
    ports: PortNames = field(default_factory=lambda: PortNames({}))
    shows_every_port: bool = True
    vlans_are_local: bool = False


@dataclass(frozen=True)
class SwitchFolder:
    """The folder of the simulated switches, and the seconds that a switch takes for a change."""

    path: Path
    change_s: float

    def platform_of(self, switch: Switch) -> SwitchPlatform:
        """Return the platform of simulated switches. Raise BadInput for a switch of another platform."""
        if switch.platform != PLATFORM:
            raise BadInput(
                f"switch {switch.name}: expected platform {PLATFORM}, the only platform of 'virtcloud up', got "
                f"{switch.platform}: use 'sbf serve' for real switches"
            )
        return SwitchPlatform(CAPABILITIES, self._create)

    def _create(self, login: DeviceLogin) -> "SimulatedSwitch":
        return SimulatedSwitch(self, login.device.name, login.device.ports)

    def cables(self) -> Topology | None:
        """Return the topology whose links are the simulated cables, or None."""
        file = self.path / "cables.json"
        return Topology.model_validate_json(file.read_text(encoding="utf-8")) if file.exists() else None

    def is_off(self, element: str) -> bool:
        """Return whether an element is switched off."""
        return (self.path / "events" / f"{element}.off").exists()

    def take_event(self, switch: str, event: str) -> bool:
        """Delete the file of an event. Return whether the file existed."""
        with suppress(FileNotFoundError):
            (self.path / "events" / f"{switch}.{event}").unlink()
            return True
        return False

    def has_event(self, switch: str, event: str) -> bool:
        """Return whether the file of an event exists."""
        return (self.path / "events" / f"{switch}.{event}").exists()


class SimulatedSwitch:
    """The driver of one simulated switch."""

    def __init__(self, folder: SwitchFolder, name: Name, ports: tuple[PortName, ...]) -> None:
        """Create a driver of the switch ``name``.

        A switch without a file gets ``ports`` without configuration.
        """
        self._folder = folder
        self._name = name
        self._ports = ports
        self._file = folder.path / "switches" / f"{name}.json"

    def read(self, scope: SwitchScope) -> SwitchObserved:
        """Simulate a requested restart or drift, then read the running configuration."""
        self._answer(READ_SHARE)
        if self._folder.take_event(self._name, "restart"):
            startup = self._load().startup
            self._store(SimulatedMemory(running=startup, startup=startup))
        if self._folder.has_event(self._name, "drift"):
            self._drift()
        return derive_observed_state(self._name, SimulatedConventions(), _read_switch(self._load().running), scope)

    def apply(self, difference: SwitchDifference) -> None:
        """Apply a difference to the running configuration."""
        self._answer(1)
        memory = self._load()
        self._store(memory.model_copy(update={"running": apply_difference(memory.running, difference)}))

    def save(self) -> bool:
        """Copy the running configuration to the startup configuration."""
        self._answer(READ_SHARE)
        running = self._load().running
        self._store(SimulatedMemory(running=running, startup=running))
        return True

    def list_commands(self, difference: SwitchDifference) -> tuple[str, ...]:
        """Return the changes of a difference, one line each."""
        return (*_render_lines(difference), "save") if difference else ()

    def read_neighbours(self, ports: tuple[PortName, ...]) -> tuple[Neighbour, ...]:  # noqa: ARG002 - all cables are known
        """Return the elements at the other ends of the simulated cables."""
        self._answer(READ_SHARE)
        topology = self._folder.cables()
        return () if topology is None else tuple(self._find_neighbours(topology))

    def close(self) -> None:
        """Do nothing, because there is no session."""

    def _find_neighbours(self, topology: Topology) -> Iterator[Neighbour]:
        for local, peer in topology.peers.items():
            if local.element == self._name and not self._folder.is_off(peer.element):
                yield Neighbour(local.port, chassis=peer.element, port=peer.port, name=peer.element)

    def _answer(self, share: float) -> None:
        time.sleep(self._folder.change_s * share)
        if self._folder.is_off(self._name):
            raise Unreachable(
                f"switch {self._name} does not answer: it is simulated as unreachable; connect it again: "
                f"virtcloud simulate {self._name} on"
            )

    def _drift(self) -> None:
        """Remove all VLANs from the first trunk that carries VLANs and is not ``SPARE_PORT``.

        Then delete the event's file. Without such a trunk, change nothing.
        """
        memory = self._load()
        for name, port in memory.running.ports.items():
            if port.tagged and name != SPARE_PORT:
                ports = {**memory.running.ports, name: port.model_copy(update={"tagged": VlanSet()})}
                running = memory.running.model_copy(update={"ports": ports})
                self._store(memory.model_copy(update={"running": running}))
                self._folder.take_event(self._name, "drift")
                return

    def _load(self) -> SimulatedMemory:
        if self._file.exists():
            memory = SimulatedMemory.model_validate_json(self._file.read_text(encoding="utf-8"))
            return memory.model_copy(update={"running": _with_ports(memory.running, self._ports)})
        used = {SPARE_PORT: SimulatedPort(mode="trunk", tagged=VlanSet(OTHER_VLANS))}
        empty = _with_ports(SimulatedConfiguration(vlans=dict(OTHER_VLANS), ports=used), self._ports)
        return SimulatedMemory(running=empty, startup=empty)

    def _store(self, memory: SimulatedMemory) -> None:
        self._file.parent.mkdir(parents=True, exist_ok=True)
        new = self._file.with_suffix(".new")
        new.write_text(memory.model_dump_json(indent=1), encoding="utf-8")
        new.replace(self._file)


def _with_ports(configuration: SimulatedConfiguration, ports: tuple[PortName, ...]) -> SimulatedConfiguration:
    return configuration.model_copy(update={"ports": {**dict.fromkeys(ports, SimulatedPort()), **configuration.ports}})


def _read_switch(configuration: SimulatedConfiguration) -> SwitchReading:
    ports = {str(name): port.read() for name, port in configuration.ports.items()}
    return SwitchReading(
        VlanSet(configuration.vlans), ports, names={int(vlan): name for vlan, name in configuration.vlans.items()}
    )


def apply_difference(configuration: SimulatedConfiguration, difference: SwitchDifference) -> SimulatedConfiguration:
    """Return the configuration that results from applying a difference. Pure."""
    vlans: dict[int, str] = {vlan: name for vlan, name in configuration.vlans.items() if vlan not in difference.delete}
    for vlan in difference.create:
        name = vlans.get(vlan)
        vlans[vlan] = name if name and is_vlan_name(vlan, name) else make_vlan_name(vlan, vlans)
    ports = dict(configuration.ports)
    for name in dict.fromkeys((*difference.close, *difference.remove, *difference.add)):
        add = difference.add.get(name, VlanSet())
        removed = difference.remove.get(name, VlanSet())
        if name in difference.access:
            access = next(iter(add), None)
            ports[name] = SimulatedPort(mode="" if access is None else "access", access=access)
        else:
            tagged = VlanSet() if name in difference.close else ports[name].tagged - removed
            ports[name] = SimulatedPort(mode="trunk", tagged=tagged | add)
    for name, use in difference.put_back.items():
        ports[name] = _restore(use)
    return SimulatedConfiguration(vlans={VlanId(vlan): name for vlan, name in vlans.items()}, ports=ports)


def _restore(use: PortUse) -> SimulatedPort:
    return SimulatedPort.model_validate_json(use.lines[0]) if use.lines else SimulatedPort()


def _render_lines(difference: SwitchDifference) -> Iterator[str]:
    if difference.create:
        yield f"create vlan {difference.create}"
    yield from (f"close port {port}" for port in difference.close)
    yield from (f"port {port}: remove vlan {vlans}" for port, vlans in difference.remove.items())
    yield from (f"port {port}: add vlan {vlans}" for port, vlans in difference.add.items())
    yield from (f"port {port}: restore its original use" for port in difference.put_back)
    if difference.delete:
        yield f"delete vlan {difference.delete}"
