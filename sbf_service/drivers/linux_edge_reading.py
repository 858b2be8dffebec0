"""From what a Linux edge prints to its circuits, to parts of them, and to what may not be touched. Pure."""

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace

from sbf_service.drivers.edge import ManagedEdge
from sbf_service.drivers.iproute2 import VlanEntry
from sbf_service.drivers.linux_services import BRIDGE, Link, ServiceDevices
from sbf_service.ownership import stated_vlans
from virtcloud.model.edge import NO_SERVICE, Circuit, EdgeCarried, Part, in_order
from virtcloud.model.errors import Unsafe
from virtcloud.model.transport import Transport
from virtcloud.model.values import Name, PortName, VlanId
from virtcloud.model.vlans import VlanSet
from virtcloud.model.wanted import ForeignVlan

AWARE = {"vlan_filtering": 1, "vlan_default_pvid": 0, "vlan_protocol": "802.1Q"}
"""With another default PVID each new device would be joined to that VLAN, and so to each other."""
UNTAGGED = frozenset({"PVID", "Egress Untagged"})
CURE = "it was left alone; move it off the managed numbers, or take these out of the pool or the transport"

Flags = Mapping[int, frozenset[str]]


@dataclass(frozen=True, slots=True)
class Device:
    """A service's device: the VLANs that it is in, and whether it is as ours are."""

    transport: Transport
    service: int
    vlans: Flags
    as_made: bool

    @property
    def vlan(self) -> int | None:
        """The one VLAN whose tag it takes off, where all is as it should be."""
        own = [number for number, flags in self.vlans.items() if flags == UNTAGGED]
        return own[0] if self.as_made and len(own) == len(self.vlans) == 1 else None


class Reading:
    """One look at an edge. ``entries`` are its ports' VLANs."""

    def __init__(
        self, name: Name, devices: ServiceDevices, links: Iterable[Link], entries: Mapping[str, list[VlanEntry]]
    ) -> None:
        """Take in what was seen of the edge called ``name``."""
        self._name = name
        self._services = devices
        self._links = {link.name: link for link in links if link.name}
        self._vlans = {
            port: {int(number): frozenset(entry.flags) for entry in found for number in entry.numbers}
            for port, found in entries.items()
        }

    def carried(self, managed: ManagedEdge) -> EdgeCarried:
        """Keep what we manage; raises Unsafe for what may not be touched."""
        self._check_bridge(managed)
        devices = list(self._devices())
        foreign = self._foreign(managed, {self._services.name(one.transport, one.service) for one in devices})
        self._check_joined(devices, foreign)
        managed = replace(managed, vlans=managed.vlans - [one.vlan for one in foreign])
        ends = {port: self._tagged(port, managed.vlans) for port in managed.ports}
        shared = {number for number, times in Counter(n for one in devices for n in one.vlans).items() if times > 1}
        circuits, parts = set[Circuit](), list[Part]()
        for device in devices:
            self._check_vlans(device, managed.vlans)
            whole = device.vlan is not None and device.vlan not in shared
            found = [(port, VlanId(n)) for port in ends for n in device.vlans if n in ends[port]]
            if whole and found:
                circuits |= {_circuit(device, port, vlan) for port, vlan in found}
            else:
                parts += _parts(device, found)
        lost = self._lost(ends, {number for one in devices for number in one.vlans})
        down = in_order({one for one in circuits if self._is_down(one)})
        return EdgeCarried(circuits=in_order(circuits), parts=(*parts, *lost), foreign=foreign, down=down)

    def _is_down(self, one: Circuit) -> bool:
        """Return whether the circuit's port was set down; a service device that is down is no whole circuit."""
        return "UP" not in self._links[one.port].flags

    def _devices(self) -> Iterator[Device]:
        for link in self._links.values():
            meant, made = self._services.meant_by(link), self._services.made_by(link)
            if made != meant:
                what = f"{link.name} ({link.info.kind or 'an interface'}, number {link.info.data.get('id', 'none')})"
                raise self._unsafe(f"expected service devices by their names, vni… or stag…, only, found {what}")
            if made is not None:
                yield Device(*made, self._vlans.get(link.name, {}), self._services.is_as_made(made[0], link))

    def _check_bridge(self, managed: ManagedEdge) -> None:
        bridge = self._links.get(BRIDGE)
        if bridge is None or not AWARE.items() <= bridge.info.data.items():
            settings = " ".join(f"{key} {value}" for key, value in AWARE.items())
            found = "none" if bridge is None else "another one"
            cure = f"ip link add {BRIDGE} type bridge {settings}"
            raise Unsafe(f"edge {self._name}: expected a bridge {BRIDGE} with {settings}, found {found}: {cure}")
        for port in managed.ports:
            if port not in self._links or self._links[port].master != BRIDGE:
                members = ", ".join(name for name, link in self._links.items() if link.master == BRIDGE) or "none"
                raise Unsafe(
                    f"edge {self._name}: expected port {port} in bridge {BRIDGE}, found there {members}: "
                    f"correct the topology, or: ip link set {port} master {BRIDGE}"
                )

    def _foreign(self, managed: ManagedEdge, ours: set[str]) -> tuple[ForeignVlan, ...]:
        """Return the managed VLANs of bridge ports that are neither managed nor devices of services."""
        found: dict[VlanId, list[PortName]] = {}
        for name, link in self._links.items():
            if name not in ours and name not in managed.ports and BRIDGE in {name, link.master}:
                for vlan in stated_vlans(self._numbers(name), managed.vlans):
                    found.setdefault(vlan, []).append(PortName(name))
        return tuple(ForeignVlan(vlan=vlan, ports=tuple(sorted(found[vlan]))) for vlan in sorted(found))

    def _check_joined(self, devices: Iterable[Device], foreign: Iterable[ForeignVlan]) -> None:
        """Refuse to go on when a service is joined to a VLAN that somebody else's port carries."""
        used = {one.vlan: one for one in foreign}
        for device in devices:
            for vlan in VlanSet(device.vlans) & used.keys():
                raise self._unsafe(f"expected VLAN {vlan} on managed ports only, found it on {used[vlan].ports[0]}")

    def _check_vlans(self, device: Device, managed: VlanSet) -> None:
        foreign = VlanSet(device.vlans) - managed
        if foreign:
            name = self._services.name(device.transport, device.service)
            raise self._unsafe(f"expected {name} in managed VLANs only, found it in VLAN {foreign}")

    def _tagged(self, port: PortName, managed: VlanSet) -> VlanSet:
        for number, flags in self._vlans.get(port, {}).items():
            if flags and number in managed:
                seen = ", ".join(sorted(flags))
                raise self._unsafe(f"expected VLAN {number} on port {port} tagged or absent, found {seen}")
        return self._numbers(port) & managed

    def _lost(self, ends: Mapping[PortName, VlanSet], carried: set[int]) -> Iterator[Part]:
        """Give VLANs on customers' ports that no device carries on."""
        first = next(iter(self._services.transports.values()), None)
        for port, vlans in ends.items():
            for vlan in vlans if first else ():
                if vlan not in carried and first:
                    yield Part(transport=first.name, service=NO_SERVICE, port=port, vlan=vlan)

    def _numbers(self, port: str) -> VlanSet:
        return VlanSet(self._vlans.get(port, {}))

    def _unsafe(self, what: str) -> Unsafe:
        return Unsafe(f"edge {self._name}: {what}: {CURE}")


def _circuit(device: Device, port: PortName, vlan: VlanId) -> Circuit:
    return Circuit(transport=device.transport.name, port=port, vlan=vlan, service=device.service)


def _parts(device: Device, found: list[tuple[PortName, VlanId]]) -> list[Part]:
    known = {"transport": device.transport.name, "service": device.service}
    vlan = VlanId(next(iter(device.vlans))) if len(device.vlans) == 1 else None
    return [Part(**known, port=port, vlan=one) for port, one in found] or [Part(**known, vlan=vlan)]
