"""Emulated provider edges with their drivers, and data of each platform for tests of all platforms."""

from contextlib import AbstractContextManager
from dataclasses import dataclass

from pydantic import SecretStr

from sbf_service.drivers.contract import Backbone, DeviceLogin, EdgeDriver, EdgeScope
from sbf_service.drivers.edge.command_line_edge import CommandLineEdge
from sbf_service.drivers.edge.dialects import EDGE_DIALECTS
from sbf_service.drivers.registry import EDGE_PLATFORMS
from sbf_service.reconcile.read_back import check_edge_scope
from support.emulators.clients import DirectLine
from support.emulators.edge_device import EmulatedEdge
from support.emulators.edge_device import EmulatedEdge as Emulated
from support.emulators.edge_eos import EdgeEos
from support.emulators.edge_iosxe import EdgeIosXe
from support.emulators.edge_iosxr import EdgeIosXr
from support.emulators.edge_junos import EdgeJunos
from support.emulators.edge_nxos import EdgeNxos
from support.emulators.ssh_server import listening
from virtcloud.model.edge import Circuit, EdgeDifference, EdgeObserved, EdgeWanted, compare_edge
from virtcloud.model.element import Edge
from virtcloud.model.transport import Transport
from virtcloud.model.values import Name, PortName, VlanId
from virtcloud.model.vlans import VlanSet

EDGES: dict[str, type[EmulatedEdge]] = {
    kind.platform: kind for kind in (EdgeIosXe, EdgeIosXr, EdgeJunos, EdgeEos, EdgeNxos)
}


def emulate_edge(platform: str, **options: object) -> AbstractContextManager[EmulatedEdge]:
    return listening(EDGES[platform](**options))


POOL = VlanSet.parse("100-299")
TRANSPORTS: dict[str, dict[str, object]] = {
    "vpls": {"kind": "vpls", "vpn_ids": "10100-10299", "asn": 65000},
    "shared": {"kind": "vpls", "vpn_id": 77, "asn": 65000},
    "qinq": {"kind": "qinq", "s_tags": "1000-1199"},
    "evpn": {"kind": "evpn", "vnis": "10100-10299", "asn": 65000},
}
FIRST = {"vpls": 10000, "qinq": 900, "evpn": 10000}
"""By transport: a cluster's service ID minus its VLAN ID.

The transport ``shared`` has no entry, because all its clusters have the same service ID.
"""
PAIRS = [
    ("cisco_iosxe", "vpls"),
    ("cisco_iosxe", "shared"),
    ("cisco_iosxe", "qinq"),
    ("cisco_iosxr", "vpls"),
    ("cisco_iosxr", "shared"),
    ("juniper_junos", "vpls"),
    ("juniper_junos", "shared"),
    ("juniper_junos", "evpn"),
    ("arista_eos", "evpn"),
    ("cisco_nxos", "evpn"),
]
FOREIGN = {
    "cisco_iosxe": (
        "l2 vfi foreign manual",
        "vpn id 500",
        "bridge-domain 50",
        "neighbor 192.0.2.9 encapsulation mpls",
        "interface GigabitEthernet0/0/1",
        "service instance 50 ethernet",
        "encapsulation dot1q 50",
        "bridge-domain 50",
        "exit",
        "interface GigabitEthernet0/0/3",
        "service instance 112 ethernet",
        "encapsulation dot1q 112",
        "bridge-domain 51",
    ),
    "cisco_iosxr": (
        "l2vpn bridge group foreign bridge-domain foreign vfi foreign vpn-id 500",
        "l2vpn bridge group foreign bridge-domain foreign vfi foreign neighbor 192.0.2.9 pw-id 500",
        "interface GigabitEthernet0/0/0/1.50 l2transport",
        "encapsulation dot1q 50",
        "l2vpn bridge group foreign bridge-domain foreign interface GigabitEthernet0/0/0/1.50",
        "interface GigabitEthernet0/0/0/3.112 l2transport",
        "encapsulation dot1q 112",
    ),
    "juniper_junos": (
        "set interfaces ge-0/0/1 unit 50 encapsulation vlan-vpls",
        "set interfaces ge-0/0/1 unit 50 vlan-id 50",
        "set routing-instances foreign instance-type vpls",
        "set routing-instances foreign interface ge-0/0/1.50",
        "set routing-instances foreign protocols vpls vpls-id 500",
        "set interfaces ge-0/0/3 unit 112 vlan-id 112",
        "set interfaces ge-0/0/3 unit 112 family inet",
    ),
    "arista_eos": (
        "vlan 50",
        "name foreign",
        "interface Vxlan1",
        "vxlan vlan 50 vni 500",
        "router bgp 65001",
        "vlan 50",
        "rd 10.0.0.1:50",
        "interface Ethernet2",
        "switchport trunk allowed vlan 50",
        "interface Ethernet5",
        "switchport mode trunk",
        "switchport trunk allowed vlan 1-4094",
    ),
    "cisco_nxos": (
        "vlan 50",
        "name foreign",
        "vn-segment 500",
        "interface nve1",
        "member vni 500",
        "ingress-replication protocol bgp",
        "evpn",
        "vni 500 l2",
        "rd 10.0.0.1:50",
        "interface Ethernet1/2",
        "switchport trunk allowed vlan 50",
        "interface Ethernet1/5",
        "switchport",
        "switchport mode trunk",
        "switchport trunk allowed vlan 1-3967",
    ),
}
"""Foreign configuration: unmanaged VLAN IDs on a managed port, and managed VLAN IDs on unmanaged ports.

SBF leaves it unchanged.
"""
OTHER_USES = {
    "cisco_iosxe": (
        ("interface Gi0/0/1", "service instance 5 ethernet", "encapsulation dot1q 112", "bridge-domain 60"),
        ("interface Gi0/0/1", "service instance 5 ethernet", "encapsulation dot1q 90-112", "bridge-domain 60"),
        ("l2 vfi foreign manual", "vpn id 10112", "bridge-domain 60"),
        ("l2 vfi foreign manual", "vpn id 77", "bridge-domain 60"),
        (
            "interface Gi0/0/1",
            "service instance 112 ethernet",
            "encapsulation dot1q 112",
            "xconnect 192.0.2.9 5 encapsulation mpls",
        ),
        ("interface Te0/0/12", "service instance 1012 ethernet", "encapsulation dot1q 1012", "bridge-domain 60"),
        ("interface Gi0/0/3", "service instance 5 ethernet", "encapsulation dot1q 5", "bridge-domain 112"),
        ("interface Gi0/0/1", "service instance 5 ethernet", "encapsulation dot1q 5", "bridge-domain 112"),
        ("l2 vfi foreign manual", "vpn id 500", "bridge-domain 112"),
        ("interface Gi0/0/3", "service instance 5 ethernet", "encapsulation dot1q 5", "bridge-domain 77"),
        ("l2 vfi foreign manual", "vpn id 500", "bridge-domain 77"),
    ),
    "cisco_iosxr": (
        ("interface Gi0/0/0/1.5 l2transport", "encapsulation dot1q 112"),
        ("interface Gi0/0/0/1.112 l2transport", "encapsulation dot1q 112", "description foreign"),
        ("interface Gi0/0/0/1.5 l2transport", "encapsulation dot1q 90-112"),
        ("l2vpn bridge group foreign bridge-domain foreign vfi foreign vpn-id 10112",),
        ("l2vpn bridge group foreign bridge-domain foreign vfi foreign vpn-id 77",),
    ),
    "juniper_junos": (
        ("set interfaces ge-0/0/1 unit 5 vlan-id 112",),
        ("set interfaces ge-0/0/1 unit 5 vlan-id-range 90-112",),
        ("set interfaces ge-0/0/1 unit 112 vlan-id 112", "set interfaces ge-0/0/1 unit 112 family inet"),
        ("set routing-instances foreign protocols vpls vpls-id 10112",),
        ("set routing-instances foreign protocols vpls vpls-id 77",),
        ("set routing-instances foreign vxlan vni 10112",),
    ),
    "arista_eos": (
        ("vlan 112", "name foreign"),
        ("interface Vxlan1", "vxlan vlan 60 vni 10112"),
        ("interface Vxlan1", "vxlan vlan 112 vni 600"),
        ("interface Ethernet6", "switchport access vlan 112"),
        ("interface Ethernet2", "switchport trunk native vlan 112"),
    ),
    "cisco_nxos": (
        ("vlan 112", "name foreign"),
        ("vlan 60", "vn-segment 10112"),
        ("vlan 112", "name vc-10112", "vn-segment 600"),
        ("interface Ethernet1/6", "switchport", "switchport access vlan 112"),
    ),
}
"""Configurations that use a managed VLAN ID or service for something other than clusters.

The driver must leave these configurations unchanged.
"""
NESTED = {
    "cisco_iosxe": "^description",
    "cisco_iosxr": "^description",
    "juniper_junos": "instance-type",
    "arista_eos": "^redistribute",
    "cisco_nxos": "^route-target export",
}
"""By platform, a pattern of a line inside a block of the configuration."""
DETACH = {"cisco_iosxe": "^no service instance", "arista_eos": "vlan remove", "cisco_nxos": "vlan remove"}
READY = {
    "arista_eos": ("switchport mode trunk", "switchport trunk allowed vlan none"),
    "cisco_nxos": ("switchport", "switchport mode trunk", "switchport trunk allowed vlan none"),
}
"""The lines that make a managed port a trunk without VLANs, for platforms whose drivers require such a trunk."""
ATTACH = {
    "cisco_iosxe": "^service instance 112 ",
    "cisco_iosxr": r"^interface \S+\.112 ",
    "juniper_junos": "unit 112 vlan-id",
    "arista_eos": "allowed vlan add 112",
    "cisco_nxos": "allowed vlan add 112",
}
"""By platform, a pattern of the line that configures VLAN 112 on a port."""
PARTS = ("interfaces", "routing-instances")
REFUSAL_PATTERN = r"edge pe1: .*sent '.*', the device answered .*(?i:invalid|error|rejected)"
IGNORED = {
    "cisco_iosxe": "^bridge-domain",
    "cisco_iosxr": "^commit$",
    "juniper_junos": "^commit",
    "arista_eos": "^vxlan vlan",
    "cisco_nxos": "^vn-segment",
}
"""By platform, a pattern of a line. If the device ignores this line, no VLAN is joined to a service."""
OTHER_FORMS = {
    "cisco_iosxe": ("Gi0/0/1", "gigabitethernet0/0/2"),
    "cisco_iosxr": ("Gi0/0/0/1", "gigabitethernet0/0/0/2"),
    "juniper_junos": ("ge-0/0/1", "ge-0/0/2"),
    "arista_eos": ("Et2", "ethernet3"),
    "cisco_nxos": ("Eth1/2", "ethernet1/3"),
}


@dataclass
class EdgeBench:
    """An emulated edge with two managed ports, and the edge's driver for one transport."""

    device: Emulated
    driver: EdgeDriver
    transport: Transport
    ports: tuple[PortName, PortName]

    @property
    def managed(self) -> EdgeScope:
        return EdgeScope(self.ports, POOL, (self.transport,), created=POOL)

    def circuit(self, vlan: int, port: int = 0) -> Circuit:
        service = self.transport.shared or FIRST[self.transport.name] + vlan
        return Circuit(transport=self.transport.name, port=self.ports[port], vlan=VlanId(vlan), service=service)

    def read(self) -> EdgeObserved:
        observed = self.driver.read(self.managed)
        check_edge_scope(Name("pe1"), self.managed, compare_edge(EdgeWanted(), observed))
        return observed

    def converge(self, *vlans: int) -> EdgeDifference:
        """Configure circuits for exactly ``vlans`` on the first port, and save. Return the difference that remains."""
        wanted = EdgeWanted(circuits=tuple(self.circuit(vlan) for vlan in vlans))
        self.driver.apply(compare_edge(wanted, self.read()))
        self.driver.save()
        return compare_edge(wanted, self.read())

    def reached(self) -> dict[int, set[int]]:
        port = self.device.port(self.ports[0])
        found = {
            service: {vlan for at, vlan in places if at == port and vlan in POOL}
            for service, places in self.device.reached().items()
        }
        return {service: vlans for service, vlans in found.items() if vlans}

    def expected(self, *vlans: int) -> dict[int, set[int]]:
        found: dict[int, set[int]] = {}
        for vlan in vlans:
            found.setdefault(self.circuit(vlan).service, set()).add(vlan)
        return found


def edge_element(device: Emulated, *ports: str) -> Edge:
    return Edge.model_validate(
        {
            "name": "pe1",
            "platform": device.platform,
            "address": device.address or None,
            "ports": ports,
            "loopback": "10.0.0.1",
            "core_port": device.core_port,
        }
    )


def make_ready(device: Emulated, *ports: str) -> None:
    for port in ports:
        if lines := READY.get(device.platform):
            device.configure(f"interface {port}", *lines)


def backbone_of(transport: Transport) -> Backbone:
    return Backbone((transport,), {transport.name: ("10.0.0.2", "10.0.0.3")})


def edge_driver_for(device: Emulated, transport: Transport, *ports: str, read_timeout: float = 5) -> EdgeDriver:
    password, enable = SecretStr(device.password), SecretStr(device.secret)
    element = edge_element(device, *ports)
    login = DeviceLogin(element, device.username, password=password, enable=enable, read_timeout=read_timeout)
    return EDGE_PLATFORMS[device.platform].driver(login, backbone_of(transport))


def open_direct_bench(name: str, kind: str) -> EdgeBench:
    """Return a bench whose driver passes lines to the emulated edge directly, without SSH."""
    device = EDGES[name]()
    transport = Transport.model_validate({"name": kind, **TRANSPORTS[kind]})
    ports = (PortName(device.port_names[1]), PortName(device.port_names[2]))
    line = DirectLine(device, device.first_mode if device.first_mode != "user" else "exec")
    make_ready(device, *ports)
    driver = CommandLineEdge(edge_element(device, *ports), EDGE_DIALECTS[name], backbone_of(transport), line)
    return EdgeBench(device, driver, transport, ports)
