"""The parsers of provider edges' configurations. The tests use syntax that vendors and users have published."""

import pytest

from sbf_service.drivers.edge.dialects import EDGE_DIALECTS
from sbf_service.drivers.edge.edge_dialect import CircuitPiece
from virtcloud.model.vlans import VlanSet

POOL = VlanSet.parse("100-299")
IOS_XE = """
l2 vfi CUST manual\x20
 vpn id 500
 bridge-domain 50
 mtu 1500
 neighbor 192.0.2.9 encapsulation mpls
 neighbor 192.0.2.8 encapsulation mpls no-split-horizon
l2 vfi vc-10112 manual\x20
 vpn id 10112
 bridge-domain 112
interface GigabitEthernet0/0/1
 mtu 9216
 no ip address
 negotiation auto
 service instance 112 ethernet
  description vc-10112
  encapsulation dot1q 112
  rewrite ingress tag pop 1 symmetric
  bridge-domain 112
 !
 service instance 200 ethernet
  encapsulation dot1q 90,110-111 , 150
  bridge-domain 50 split-horizon group 1
 !
 service instance 201 ethernet
  encapsulation default
  l2protocol tunnel
  xconnect 192.0.2.7 201 encapsulation mpls
interface BDI112
 ip address 192.0.2.1 255.255.255.0
"""
IOS_XR = """
Sat Nov 21 01:00:00.123 UTC
interface TenGigE0/0/0/1
 mtu 9216
!
interface TenGigE0/0/0/1.112 l2transport
 description vc-10112
 encapsulation dot1q 112
 rewrite ingress tag pop 1 symmetric
!
interface TenGigE0/0/0/1.113
 ipv4 address 192.0.2.1 255.255.255.0
 encapsulation dot1q 113
!
"""
IOS_XR_L2VPN = """
Sat Nov 21 01:00:00.456 UTC
l2vpn
 router-id 10.0.0.1
 pw-class cw
  encapsulation mpls
   control-word
  !
 !
 bridge group CUST_VPLS
  bridge-domain VLAN500
   interface TenGigE0/0/0/2
   !
   vfi VFI500
    vpn-id 500
    neighbor 192.0.2.9 pw-id 500
    !
   !
  !
 !
 bridge group vc-10112
  bridge-domain vc-10112
   interface TenGigE0/0/0/1.112
   !
   vfi vc-10112
    vpn-id 10112
    neighbor 10.0.0.2 pw-id 10112
    !
   !
  !
 !
!
"""
JUNOS = """
set interfaces ge-0/0/1 flexible-vlan-tagging
set interfaces ge-0/0/1 encapsulation flexible-ethernet-services
set interfaces ge-0/0/1 unit 112 description vc-10112
set interfaces ge-0/0/1 unit 112 encapsulation vlan-vpls
set interfaces ge-0/0/1 unit 112 vlan-id 112
set interfaces ge-0/0/1 unit 113 vlan-id 113
set interfaces ge-0/0/1 unit 113 family inet address 192.0.2.1/24
set interfaces ge-0/0/1 unit 7 encapsulation vlan-bridge
set interfaces ge-0/0/1 unit 7 vlan-id-list 90-95
set interfaces ge-0/0/1 unit 7 vlan-id-list 150
set interfaces lo0 unit 0 family inet address 10.0.0.1/32
"""
JUNOS_INSTANCES = """
set routing-instances vc-10112 instance-type vpls
set routing-instances vc-10112 interface ge-0/0/1.112
set routing-instances vc-10112 protocols vpls vpls-id 10112
set routing-instances OESS-L2VPLS-4711 instance-type vpls
deactivate routing-instances OESS-L2VPLS-4711
"""
EOS = """
! Command: show running-config
! device: leaf2 (cEOSLab, EOS-4.21.0F)
!
vlan internal order ascending range 1006 1199
!
vlan 10,110-111
!
vlan 112
   name vc-10112
!
interface Ethernet1
   switchport access vlan 113
!
interface Ethernet2
   switchport trunk allowed vlan 50,112
   switchport mode trunk
!
interface Ethernet3
   no switchport
   ip address 172.20.0.3/16
!
interface Vlan115
   ip address virtual 192.0.2.1/24
!
interface Vxlan1
   vxlan source-interface Loopback0
   vxlan udp-port 4789
   vxlan vlan 112 vni 10112
   vxlan vlan 120-121 vni 10120-10121
   vxlan vrf TENANT vni 50001
   vxlan learn-restrict any
!
router bgp 50
   router-id 172.20.0.3
   neighbor 172.20.0.4 remote-as 50
   !
   vlan 112
      rd 10.0.0.1:112
      route-target both 65000:10112
      redistribute learned
   !
   vlan-aware-bundle int
      rd 1.1.2.1:1
      redistribute learned
      vlan 130-131
   !
   address-family evpn
      neighbor 172.20.0.4 activate
!
end
"""
NXOS = """
!Command: show running-config
feature nv overlay
vlan 1,10,112-113
vlan 10
  name other
  vn-segment 10010
vlan 112
  name vc-10112
  vn-segment 10112
interface Vlan30
  fabric forwarding mode anycast-gateway
interface nve1
  no shutdown
  host-reachability protocol bgp
  global ingress-replication protocol bgp
  member vni 5000 associate-vrf
  member vni 10112
    ingress-replication protocol bgp
interface Ethernet1/1
  switchport
  switchport mode trunk
  switchport trunk allowed vlan 10,112
router bgp 65102
  router-id 10.0.102.1
evpn
  vni 10010 l2
    rd auto
  vni 10112 l2
    rd 10.0.0.1:112
"""
ANSWERS = {
    "cisco_iosxe": (IOS_XE,),
    "cisco_iosxr": (IOS_XR, IOS_XR_L2VPN),
    "juniper_junos": (JUNOS, JUNOS_INSTANCES),
    "arista_eos": (EOS,),
    "cisco_nxos": (NXOS,),
}
PieceSummary = tuple[str, str, int | None, str | None, int | None, bool]
EXPECTED: dict[str, set[PieceSummary]] = {
    "cisco_iosxe": {
        ("vfi", "50", 500, None, None, False),
        ("vfi", "112", 10112, None, None, True),
        ("attachment", "112", 10112, "GigabitEthernet0/0/1", 112, True),
        ("attachment", "50", None, "GigabitEthernet0/0/1", 110, False),
        ("attachment", "GigabitEthernet0/0/1 201", None, "GigabitEthernet0/0/1", None, False),
        ("routed", "112", None, "BDI112", None, False),
    },
    "cisco_iosxr": {
        ("bridge domain", "CUST_VPLS/VLAN500", 500, None, None, False),
        ("bridge domain", "vc-10112", 10112, None, None, True),
        ("attachment", "CUST_VPLS/VLAN500", None, "TenGigE0/0/0/2", None, False),
        ("member", "vc-10112", None, "TenGigE0/0/0/1", 112, True),
        ("attachment", "vc-10112", 10112, "TenGigE0/0/0/1", 112, True),
        ("attachment", "TenGigE0/0/0/1.113", None, "TenGigE0/0/0/1", 113, False),
    },
    "juniper_junos": {
        ("instance", "vc-10112", 10112, None, None, True),
        ("instance", "OESS-L2VPLS-4711", None, None, None, False),
        ("member", "vc-10112", None, "ge-0/0/1", 112, True),
        ("attachment", "vc-10112", 10112, "ge-0/0/1", 112, True),
        ("attachment", "ge-0/0/1.113", None, "ge-0/0/1", 113, False),
        ("attachment", "ge-0/0/1.7", None, "ge-0/0/1", 150, False),
        ("attachment", "lo0.0", None, "lo0", None, False),
    },
    "arista_eos": {
        ("VLAN", "110", None, None, 110, True),
        ("VLAN", "111", None, None, 111, True),
        ("VLAN", "112", 10112, None, 112, True),
        ("VNI", "112", 10112, None, 112, True),
        ("VNI", "120", 10120, None, 120, True),
        ("VNI", "121", 10121, None, 121, True),
        ("MAC-VRF", "112", None, None, 112, True),
        ("MAC-VRF", "130", None, None, 130, False),
        ("MAC-VRF", "131", None, None, 131, False),
        ("attachment", "112", None, "Ethernet2", 112, True),
        ("attachment", "113", None, "Ethernet1", 113, False),
        ("routed", "115", None, None, 115, False),
    },
    "cisco_nxos": {
        ("VLAN", "10", 10010, None, 10, False),
        ("VLAN", "112", 10112, None, 112, True),
        ("VLAN", "113", None, None, 113, True),
        ("nve", "112", 10112, None, None, True),
        ("nve", "vni 5000", 5000, None, None, False),
        ("MAC-VRF", "112", 10112, None, None, True),
        ("MAC-VRF", "10", 10010, None, None, True),
        ("attachment", "112", None, "Ethernet1/1", 112, True),
        ("routed", "30", None, None, 30, False),
    },
}


def summarize(piece: CircuitPiece) -> PieceSummary:
    return piece.kind, piece.domain, piece.service, piece.port, piece.vlan, piece.by_sbf


@pytest.mark.parametrize("platform", ANSWERS)
def test_sbfs_pieces_are_distinguished_from_others(platform: str) -> None:
    """The last value of each expected piece is True if SBF may have created this piece of configuration."""
    reading = EDGE_DIALECTS[platform].see(ANSWERS[platform], POOL)
    assert {summarize(piece) for piece in reading.pieces} == EXPECTED[platform]


def test_only_a_trunk_with_a_vlan_list_is_ready() -> None:
    ports = EDGE_DIALECTS["arista_eos"].see(ANSWERS["arista_eos"], POOL).ports
    ready = {name for name, is_ready in ports.items() if is_ready}
    assert ready == {"Ethernet2"}


@pytest.mark.parametrize("platform", ANSWERS)
def test_an_answer_without_interfaces_raises(platform: str) -> None:
    with pytest.raises(ValueError, match=r"what is this|no interface"):
        EDGE_DIALECTS[platform].see(["what is this"] * len(ANSWERS[platform]), POOL)
