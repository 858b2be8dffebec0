"""Tests of the configuration lines that a change needs on a provider edge, for each platform of provider edges."""

from dataclasses import replace

import pytest

from sbf_service.drivers.contract import Backbone
from sbf_service.drivers.edge.change_steps import plan_steps
from sbf_service.drivers.edge.dialects import EDGE_DIALECTS, render_edge_dialects
from sbf_service.drivers.edge.edge_dialect import ATTACHMENT, CircuitPiece, EdgeReading
from sbf_service.drivers.edge.edge_templates import EdgeTemplates
from virtcloud.model.edge import Circuit, EdgeDifference
from virtcloud.model.element import Edge
from virtcloud.model.errors import Refused
from virtcloud.model.transport import Transport
from virtcloud.model.values import Name, PortName, VlanId

TRANSPORTS = tuple(
    Transport.model_validate(fields)
    for fields in (
        {"name": "vpls", "kind": "vpls", "vpn_ids": "10100-10299", "asn": 65000},
        {"name": "shared", "kind": "vpls", "vpn_id": 77, "asn": 65000},
        {"name": "qinq", "kind": "qinq", "s_tags": "1000-1199"},
        {"name": "evpn", "kind": "evpn", "vnis": "20100-20299", "asn": 65000},
    )
)
PORTS = {
    "cisco_iosxe": "Gi0/0/1",
    "cisco_iosxr": "Gi0/0/0/1",
    "juniper_junos": "ge-0/0/1",
    "arista_eos": "Et2",
    "cisco_nxos": "Eth1/2",
}
IOS_XE_VFI = """
l2 vfi vc-10112 manual
vpn id 10112
bridge-domain 112
neighbor 10.0.0.2 encapsulation mpls
neighbor 10.0.0.3 encapsulation mpls
exit
"""
CREATION_LINES = {
    ("cisco_iosxe", "vpls", 10112): f"""
{IOS_XE_VFI}
interface GigabitEthernet0/0/1
service instance 112 ethernet
description vc-10112
encapsulation dot1q 112
rewrite ingress tag pop 1 symmetric
bridge-domain 112
exit
exit
""",
    ("cisco_iosxe", "shared", 77): """
l2 vfi vc-77 manual
vpn id 77
bridge-domain 77
neighbor 10.0.0.2 encapsulation mpls
neighbor 10.0.0.3 encapsulation mpls
exit
interface GigabitEthernet0/0/1
service instance 112 ethernet
description vc-77
encapsulation dot1q 112
bridge-domain 77
exit
exit
""",
    ("cisco_iosxe", "qinq", 1012): """
interface TenGigabitEthernet0/0/12
service instance 1012 ethernet
description vc-1012
encapsulation dot1q 1012
rewrite ingress tag pop 1 symmetric
bridge-domain 112
exit
exit
interface GigabitEthernet0/0/1
service instance 112 ethernet
description vc-1012
encapsulation dot1q 112
rewrite ingress tag pop 1 symmetric
bridge-domain 112
exit
exit
""",
    ("cisco_iosxr", "vpls", 10112): """
l2vpn bridge group vc-10112 bridge-domain vc-10112 vfi vc-10112 vpn-id 10112
l2vpn bridge group vc-10112 bridge-domain vc-10112 vfi vc-10112 neighbor 10.0.0.2 pw-id 10112
l2vpn bridge group vc-10112 bridge-domain vc-10112 vfi vc-10112 neighbor 10.0.0.3 pw-id 10112
root
interface GigabitEthernet0/0/0/1.112 l2transport
description vc-10112
encapsulation dot1q 112
rewrite ingress tag pop 1 symmetric
root
l2vpn bridge group vc-10112 bridge-domain vc-10112 interface GigabitEthernet0/0/0/1.112
root
""",
    ("cisco_iosxr", "shared", 77): """
l2vpn bridge group vc-77 bridge-domain vc-77 vfi vc-77 vpn-id 77
l2vpn bridge group vc-77 bridge-domain vc-77 vfi vc-77 neighbor 10.0.0.2 pw-id 77
l2vpn bridge group vc-77 bridge-domain vc-77 vfi vc-77 neighbor 10.0.0.3 pw-id 77
root
interface GigabitEthernet0/0/0/1.112 l2transport
description vc-77
encapsulation dot1q 112
ethernet egress-filter strict
root
l2vpn bridge group vc-77 bridge-domain vc-77 interface GigabitEthernet0/0/0/1.112
root
""",
    ("juniper_junos", "vpls", 10112): """
set routing-instances vc-10112 instance-type vpls
set routing-instances vc-10112 vlan-id none
set routing-instances vc-10112 protocols vpls no-tunnel-services
set routing-instances vc-10112 protocols vpls encapsulation-type ethernet
set routing-instances vc-10112 protocols vpls vpls-id 10112
set routing-instances vc-10112 protocols vpls neighbor 10.0.0.2
set routing-instances vc-10112 protocols vpls neighbor 10.0.0.3
set interfaces ge-0/0/1 unit 112 description vc-10112
set interfaces ge-0/0/1 unit 112 encapsulation vlan-vpls
set interfaces ge-0/0/1 unit 112 vlan-id 112
set interfaces ge-0/0/1 unit 112 family vpls
set routing-instances vc-10112 interface ge-0/0/1.112
""",
    ("juniper_junos", "shared", 77): """
set routing-instances vc-77 instance-type vpls
set routing-instances vc-77 vlan-id all
set routing-instances vc-77 protocols vpls no-tunnel-services
set routing-instances vc-77 protocols vpls encapsulation-type ethernet
set routing-instances vc-77 protocols vpls vpls-id 77
set routing-instances vc-77 protocols vpls neighbor 10.0.0.2
set routing-instances vc-77 protocols vpls neighbor 10.0.0.3
set interfaces ge-0/0/1 unit 112 description vc-77
set interfaces ge-0/0/1 unit 112 encapsulation vlan-vpls
set interfaces ge-0/0/1 unit 112 vlan-id 112
set interfaces ge-0/0/1 unit 112 family vpls
set routing-instances vc-77 interface ge-0/0/1.112
""",
    ("juniper_junos", "evpn", 20112): """
set routing-instances vc-20112 instance-type evpn
set routing-instances vc-20112 vlan-id none
set routing-instances vc-20112 vtep-source-interface lo0.0
set routing-instances vc-20112 vxlan vni 20112
set routing-instances vc-20112 route-distinguisher 10.0.0.1:112
set routing-instances vc-20112 vrf-target target:65000:20112
set routing-instances vc-20112 protocols evpn encapsulation vxlan
set interfaces ge-0/0/1 unit 112 description vc-20112
set interfaces ge-0/0/1 unit 112 encapsulation vlan-bridge
set interfaces ge-0/0/1 unit 112 vlan-id 112
set routing-instances vc-20112 interface ge-0/0/1.112
""",
    ("arista_eos", "evpn", 20112): """
vlan 112
name vc-20112
exit
interface Vxlan1
vxlan vlan 112 vni 20112
exit
router bgp 65001
vlan 112
rd 10.0.0.1:112
route-target both 65000:20112
redistribute learned
exit
exit
interface Ethernet2
switchport trunk allowed vlan add 112
exit
""",
    ("cisco_nxos", "evpn", 20112): """
vlan 112
name vc-20112
vn-segment 20112
exit
interface nve1
member vni 20112
ingress-replication protocol bgp
exit
exit
evpn
vni 20112 l2
rd 10.0.0.1:112
route-target import 65000:20112
route-target export 65000:20112
exit
exit
interface Ethernet1/2
switchport trunk allowed vlan add 112
exit
""",
}


def make_templates(platform: str, **fields: object) -> EdgeTemplates:
    edge: dict[str, object] = {"name": "pe1", "platform": platform, "ports": [PORTS[platform]], "loopback": "10.0.0.1"}
    edge |= {"core_port": "Te0/0/12", **fields}
    peers: dict[str, tuple[str, ...]] = {transport.name: ("10.0.0.2", "10.0.0.3") for transport in TRANSPORTS}
    backbone = Backbone(TRANSPORTS, peers)
    return EdgeTemplates(Edge.model_validate(edge), EDGE_DIALECTS[platform], backbone, {"bgp": "65001"})


def make_reading(platform: str, *pieces: CircuitPiece) -> EdgeReading:
    ports = EDGE_DIALECTS[platform].ports
    return EdgeReading(pieces, {ports.canonical(PORTS[platform]): True})


def plan_lines(templates: EdgeTemplates, change: EdgeDifference, before: EdgeReading) -> list[str]:
    return [line for step in plan_steps(templates, change, before) for line in step.lines]


def circuit(platform: str, transport: str, service: int, vlan: int = 112) -> Circuit:
    return Circuit(transport=Name(transport), port=PortName(PORTS[platform]), vlan=VlanId(vlan), service=service)


def lines_of(text: str) -> list[str]:
    return [line for line in text.splitlines() if line]


@pytest.mark.parametrize("case", CREATION_LINES, ids=lambda case: f"{case[0]}-{case[1]}")
def test_one_circuit_needs_these_lines_in_each_dialect(case: tuple[str, str, int]) -> None:
    platform, transport, service = case
    change = EdgeDifference(add=(circuit(platform, transport, service),))
    assert plan_lines(make_templates(platform), change, make_reading(platform)) == lines_of(CREATION_LINES[case])


def test_every_recipe_is_listed_here() -> None:
    kinds = {transport.name: (transport.kind, transport.shared is not None) for transport in TRANSPORTS}
    listed = {(platform, kinds[Name(transport)]) for platform, transport, _ in CREATION_LINES}
    assert listed == {(name, recipe) for name, dialect in EDGE_DIALECTS.items() for recipe in dialect.recipes}


def test_an_existing_service_gets_only_the_lines_of_the_port() -> None:
    vfi = CircuitPiece(kind="vfi", domain="77", service=77)
    attachment = CircuitPiece(kind=ATTACHMENT, domain="77", service=77, port="GigabitEthernet0/0/1", vlan=120)
    change = EdgeDifference(add=(circuit("cisco_iosxe", "shared", 77),))
    assert plan_lines(make_templates("cisco_iosxe"), change, make_reading("cisco_iosxe", vfi, attachment))[:2] == [
        "interface GigabitEthernet0/0/1",
        "service instance 112 ethernet",
    ]


def test_attachments_are_removed_first_and_creations_are_last() -> None:
    old = [
        CircuitPiece(kind="VLAN", domain="130", service=20130, vlan=130),
        CircuitPiece(kind="VNI", domain="130", service=20130, vlan=130),
        CircuitPiece(kind="MAC-VRF", domain="130", vlan=130),
        CircuitPiece(kind=ATTACHMENT, domain="130", port="Ethernet2", vlan=130),
    ]
    change = EdgeDifference(
        add=(circuit("arista_eos", "evpn", 20112),), remove=(circuit("arista_eos", "evpn", 20130, vlan=130),)
    )
    assert plan_lines(make_templates("arista_eos"), change, make_reading("arista_eos", *old))[:11] == [
        "interface Ethernet2",
        "switchport trunk allowed vlan remove 130",
        "exit",
        "router bgp 65001",
        "no vlan 130",
        "exit",
        "interface Vxlan1",
        "no vxlan vlan 130 vni 20130",
        "exit",
        "no vlan 130",
        "vlan 112",
    ]


@pytest.mark.parametrize(
    ("platform", "transport", "service", "edge", "message"),
    [
        ("arista_eos", "evpn", 20112, {"loopback": None}, "pe1: expected an IPv4 loopback in the topology, got none"),
        ("arista_eos", "evpn", 20112, {"loopback": "2001:db8::1"}, "expected an IPv4 loopback .* got 2001:db8::1"),
        ("cisco_iosxe", "qinq", 1012, {"core_port": None}, "pe1: expected a core_port in the topology, found none"),
        ("arista_eos", "vpls", 10112, {}, "wanted service 10112 of transport vpls, which Arista EOS cannot create"),
    ],
)
def test_a_missing_field_is_reported_before_any_command(
    platform: str, transport: str, service: int, edge: dict[str, object], message: str
) -> None:
    change = EdgeDifference(add=(circuit(platform, transport, service),))
    with pytest.raises(Refused, match=message):
        plan_steps(make_templates(platform, **edge), change, make_reading(platform))


def test_a_route_target_that_does_not_fit_is_refused() -> None:
    """A route target with an AS number of 32 bits has only 16 bits for the VNI (RFC 5668)."""
    templates = make_templates("arista_eos")
    wide = Transport.model_validate({"name": "evpn", "kind": "evpn", "vnis": "70000-70010", "asn": 4200000000})
    templates = replace(templates, backbone=Backbone((wide,), {}))
    with pytest.raises(Refused, match="wanted service 70001 of AS 4200000000"):
        plan_steps(templates, EdgeDifference(add=(circuit("arista_eos", "evpn", 70001),)), make_reading("arista_eos"))


def test_the_tables_contain_every_platform_with_its_commands() -> None:
    tables = render_edge_dialects()
    assert all(f"### `{name}`" in tables for name in EDGE_DIALECTS)
    assert (
        "| evpn, one service for each cluster: VNI | `interface Vxlan1` / `vxlan vlan {vlan} vni {service}` / `exit` |"
        in tables
    )
    assert "| vpls, one service for all clusters: attachment |" in tables
