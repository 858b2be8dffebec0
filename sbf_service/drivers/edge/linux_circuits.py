"""The circuits of a Linux edge, derived from its interfaces (``ip link``) and their VLANs. Pure.

Each service has a network device, which is a port of the edge's bridge and has the service ID in its name. For
``evpn``, the device is a VXLAN device with the VNI. For ``qinq``, the device is an 802.1ad VLAN of the edge's core
port.
"""

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

from pydantic import BaseModel, ConfigDict, Field

from sbf_service.domain.ownership import find_stated_vlans
from sbf_service.drivers.contract import EdgeScope
from sbf_service.drivers.device_errors import FOREIGN_SERVICE_REMEDY
from sbf_service.drivers.transport.iproute2 import VlanEntry
from virtcloud.model.edge import NO_SERVICE, Circuit, CircuitRemnant, EdgeObserved, sort_circuits
from virtcloud.model.element import Edge
from virtcloud.model.errors import Unsafe
from virtcloud.model.switch_state import ForeignVlan
from virtcloud.model.transport import Transport, TransportKind
from virtcloud.model.values import Name, PortName, VlanId
from virtcloud.model.vlans import VlanSet

BRIDGE = "br0"
PREFIXES = {TransportKind.EVPN: "vni", TransportKind.QINQ: "stag"}
VXLAN_PORT = 4789
"""The UDP port that IANA assigned to VXLAN (RFC 7348). Linux uses a different port by default."""
TAGGING = "802.1ad"
LOCAL_KEYS = {4: "local", 6: "local6"}
REMOTE_KEYS = {"group", "group6", "remote", "remote6"}
"""The keys that iproute2 prints for the addresses of a VXLAN device, by group or remote and IP version."""


class LinkInfo(BaseModel):
    """The kind of an interface, the parameters of this kind, and the interface's parameters as a bridge port."""

    model_config = ConfigDict(strict=True)

    kind: str = Field(default="", alias="info_kind")
    data: dict[str, Any] = Field(default={}, alias="info_data")
    slave: dict[str, Any] = Field(default={}, alias="info_slave_data")


class LinuxLink(BaseModel):
    """One interface of ``ip -details -json link show``.

    ``link`` is the underlying interface, such as the parent of a VLAN interface, or None. For tunnels such as ``sit0``,
    iproute2 prints ``null``.
    """

    model_config = ConfigDict(strict=True)

    name: str = Field(alias="ifname")
    flags: list[str] = []
    master: str = ""
    link: str | None = None
    info: LinkInfo = Field(default=LinkInfo(), alias="linkinfo")

    @property
    def is_in_use(self) -> bool:
        """Whether the interface is up and a port of the edge's bridge."""
        return self.master == BRIDGE and "UP" in self.flags


class ServiceDevices:
    """The service devices of one edge for the given transports."""

    def __init__(self, edge: Edge, transports: Iterable[Transport]) -> None:
        """Store those ``transports`` that a Linux edge supports."""
        self._edge = edge
        self.transports = {transport.name: transport for transport in transports if transport.kind in PREFIXES}

    def device_name(self, transport: Transport, service: int) -> str:
        """Return the name of a service's device."""
        return f"{PREFIXES[transport.kind]}{service}"

    def parse_name(self, link: LinuxLink) -> tuple[Transport, int] | None:
        """Return the transport and service ID in an interface's name; None for a name that SBF does not create."""
        for transport in self.transports.values():
            number = link.name.removeprefix(PREFIXES[transport.kind])
            if number != link.name and number.isdecimal() and int(number) in transport.services:
                return transport, int(number)
        return None

    def identify(self, link: LinuxLink) -> tuple[Transport, int] | None:
        """Return the transport and service ID in an interface's parameters; None for an interface without a service."""
        for transport in self.transports.values():
            number = int(link.info.data.get("id", 0))
            if self._is_of(transport, link) and number in transport.services:
                return transport, number
        return None

    def has_expected_settings(self, transport: Transport, link: LinuxLink) -> bool:
        """Return whether a service's device is in use and has all parameters that :meth:`render_creation` sets."""
        if transport.kind is TransportKind.QINQ:
            return link.is_in_use
        loopback, data = self._edge.loopback, link.info.data
        if loopback is None:
            return False
        expected = {LOCAL_KEYS[loopback.version]: str(loopback), "port": VXLAN_PORT, "learning": False}
        is_static = not REMOTE_KEYS & data.keys() and link.info.slave.get("learning") is False
        return link.is_in_use and is_static and expected.items() <= data.items()

    def render_creation(self, transport: Transport, service: int) -> tuple[str, ...]:
        """Return the lines for ``ip`` that create a service's device as a port of the bridge. The device stays down.

        VXLAN devices do not learn MAC addresses from frames: the edges announce addresses by BGP.
        """
        name = self.device_name(transport, service)
        join = f"link set {name} master {BRIDGE}"
        if transport.kind is TransportKind.QINQ:
            create = f"link add link {self._edge.core_port} name {name} type vlan proto {TAGGING} id {service}"
            return create, join
        create = f"link add {name} type vxlan id {service} local {self._edge.loopback} dstport {VXLAN_PORT} nolearning"
        return create, join, f"link set {name} type bridge_slave learning off"

    def find_missing_setting(self, transport: Transport) -> str | None:
        """Return the field that the transport needs and the topology lacks, or None."""
        if transport.kind is TransportKind.QINQ:
            return None if self._edge.core_port else "core_port"
        return None if self._edge.loopback else "loopback"

    def _is_of(self, transport: Transport, link: LinuxLink) -> bool:
        if transport.kind is TransportKind.QINQ:
            on_core = link.link is not None and link.link == self._edge.core_port
            return on_core and link.info.kind == "vlan" and link.info.data.get("protocol") == TAGGING
        return link.info.kind == "vxlan"


BRIDGE_SETTINGS = {"vlan_filtering": 1, "vlan_default_pvid": 0, "vlan_protocol": "802.1Q"}
"""The required parameters of the bridge: another ``vlan_default_pvid`` would put all new devices into one VLAN."""
UNTAGGED = frozenset({"PVID", "Egress Untagged"})

VlanFlags = Mapping[int, frozenset[str]]


@dataclass(frozen=True, slots=True)
class ServiceDevice:
    """A service's device with its VLANs. ``is_as_expected``: the device has the configuration that SBF creates."""

    transport: Transport
    service: int
    vlans: VlanFlags
    is_as_expected: bool

    @property
    def vlan(self) -> int | None:
        """The single, untagged VLAN of the device; None when the device differs from SBF's configuration."""
        untagged = [vlan for vlan, flags in self.vlans.items() if flags == UNTAGGED]
        return untagged[0] if self.is_as_expected and len(untagged) == len(self.vlans) == 1 else None


class LinuxEdgeReading:
    """The configuration read from an edge: interfaces (``links``), and the VLANs of bridge ports."""

    def __init__(
        self, name: Name, devices: ServiceDevices, links: Iterable[LinuxLink], entries: Mapping[str, list[VlanEntry]]
    ) -> None:
        """Store the interfaces and VLANs of the edge called ``name``."""
        self._name = name
        self._services = devices
        self._links = {link.name: link for link in links if link.name}
        self._vlans = {
            port: {int(vlan): frozenset(entry.flags) for entry in found for vlan in entry.vlan_ids}
            for port, found in entries.items()
        }

    def derive_circuits(self, scope: EdgeScope) -> EdgeObserved:
        """Return the observed circuits within the scope. Raise Unsafe for configuration that SBF must not change."""
        self._check_bridge(scope)
        devices = list(self._find_devices())
        foreign = self._find_foreign_vlans(
            scope, {self._services.device_name(device.transport, device.service) for device in devices}
        )
        self._check_joined(devices, foreign)
        scope = replace(scope, vlans=scope.vlans - [entry.vlan for entry in foreign])
        tagged = {port: self._find_tagged(port, scope.vlans) for port in scope.ports}
        counts = Counter(vlan for device in devices for vlan in device.vlans)
        shared = {vlan for vlan, count in counts.items() if count > 1}
        circuits, remnants = set[Circuit](), list[CircuitRemnant]()
        for device in devices:
            self._check_vlans(device, scope.vlans)
            is_complete = device.vlan is not None and device.vlan not in shared
            places = [(port, VlanId(vlan)) for port in tagged for vlan in device.vlans if vlan in tagged[port]]
            if is_complete and places:
                circuits |= {_build_circuit(device, port, vlan) for port, vlan in places}
            else:
                remnants += _build_remnants(device, places)
        unserved = self._find_unserved_vlans(tagged, set(counts))
        down = sort_circuits({circuit for circuit in circuits if self._is_down(circuit)})
        return EdgeObserved(circuits=sort_circuits(circuits), parts=(*remnants, *unserved), foreign=foreign, down=down)

    def _is_down(self, circuit: Circuit) -> bool:
        """Return whether the circuit's port is down. A circuit whose service device is down is incomplete instead."""
        return "UP" not in self._links[circuit.port].flags

    def _find_devices(self) -> Iterator[ServiceDevice]:
        for link in self._links.values():
            named, actual = self._services.parse_name(link), self._services.identify(link)
            if actual != named:
                found = f"{link.name} ({link.info.kind or 'interface'}, id {link.info.data.get('id', 'none')})"
                raise self._build_unsafe(f"expected services only on devices with names vni… or stag…, found {found}")
            if actual is not None:
                yield ServiceDevice(
                    *actual, self._vlans.get(link.name, {}), self._services.has_expected_settings(actual[0], link)
                )

    def _check_bridge(self, scope: EdgeScope) -> None:
        bridge = self._links.get(BRIDGE)
        if bridge is None or not BRIDGE_SETTINGS.items() <= bridge.info.data.items():
            parameters = " ".join(f"{key} {value}" for key, value in BRIDGE_SETTINGS.items())
            found = "none" if bridge is None else "other parameters"
            remedy = f"ip link add {BRIDGE} type bridge {parameters}"
            raise Unsafe(f"edge {self._name}: expected a bridge {BRIDGE} with {parameters}, found {found}: {remedy}")
        for port in scope.ports:
            if port not in self._links or self._links[port].master != BRIDGE:
                members = ", ".join(name for name, link in self._links.items() if link.master == BRIDGE) or "none"
                raise Unsafe(
                    f"edge {self._name}: expected port {port} in bridge {BRIDGE}, found the ports {members}: "
                    f"correct the topology, or: ip link set {port} master {BRIDGE}"
                )

    def _find_foreign_vlans(self, scope: EdgeScope, service_devices: set[str]) -> tuple[ForeignVlan, ...]:
        found: dict[VlanId, list[PortName]] = {}
        for name, link in self._links.items():
            if name not in service_devices and name not in scope.ports and BRIDGE in {name, link.master}:
                for vlan in find_stated_vlans(self._list_vlans(name), scope.vlans):
                    found.setdefault(vlan, []).append(PortName(name))
        return tuple(ForeignVlan(vlan=vlan, ports=tuple(sorted(found[vlan]))) for vlan in sorted(found))

    def _check_joined(self, devices: Iterable[ServiceDevice], foreign: Iterable[ForeignVlan]) -> None:
        used = {entry.vlan: entry for entry in foreign}
        for device in devices:
            for vlan in VlanSet(device.vlans) & used.keys():
                raise self._build_unsafe(
                    f"expected VLAN {vlan} on managed ports only, found VLAN {vlan} on {used[vlan].ports[0]}"
                )

    def _check_vlans(self, device: ServiceDevice, managed: VlanSet) -> None:
        foreign = VlanSet(device.vlans) - managed
        if foreign:
            name = self._services.device_name(device.transport, device.service)
            raise self._build_unsafe(f"expected device {name} in managed VLANs only, found VLAN {foreign}")

    def _find_tagged(self, port: PortName, managed: VlanSet) -> VlanSet:
        for vlan, flags in self._vlans.get(port, {}).items():
            if flags and vlan in managed:
                found = ", ".join(sorted(flags))
                raise self._build_unsafe(f"expected VLAN {vlan} on port {port} tagged or absent, found {found}")
        return self._list_vlans(port) & managed

    def _find_unserved_vlans(self, tagged: Mapping[PortName, VlanSet], served: set[int]) -> Iterator[CircuitRemnant]:
        first = next(iter(self._services.transports.values()), None)
        for port, vlans in tagged.items():
            for vlan in vlans if first else ():
                if vlan not in served and first:
                    yield CircuitRemnant(transport=first.name, service=NO_SERVICE, port=port, vlan=vlan)

    def _list_vlans(self, port: str) -> VlanSet:
        return VlanSet(self._vlans.get(port, {}))

    def _build_unsafe(self, text: str) -> Unsafe:
        return Unsafe(f"edge {self._name}: {text}: {FOREIGN_SERVICE_REMEDY}")


def _build_circuit(device: ServiceDevice, port: PortName, vlan: VlanId) -> Circuit:
    return Circuit(transport=device.transport.name, port=port, vlan=vlan, service=device.service)


def _build_remnants(device: ServiceDevice, places: list[tuple[PortName, VlanId]]) -> list[CircuitRemnant]:
    remnant = CircuitRemnant(transport=device.transport.name, service=device.service)
    if places:
        return [remnant.model_copy(update={"port": port, "vlan": vlan}) for port, vlan in places]
    vlan = VlanId(next(iter(device.vlans))) if len(device.vlans) == 1 else None
    return [remnant.model_copy(update={"vlan": vlan})]
