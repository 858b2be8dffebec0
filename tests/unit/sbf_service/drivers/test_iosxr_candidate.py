"""Tests of the switch dialect of IOS-XR: the parsed configuration, and the lines of changes."""

import pytest

from sbf_service.drivers.switch.candidates import CANDIDATE_DIALECTS
from sbf_service.drivers.switch.dialect import ALL_VLANS, PortReading, SwitchReading
from virtcloud.model.switch_state import SwitchDifference
from virtcloud.model.values import VlanId
from virtcloud.model.vlans import VlanSet

XR = CANDIDATE_DIALECTS["cisco_iosxr"]
SUBINTERFACE = """interface {0}.112 l2transport
 encapsulation dot1q 112
 rewrite ingress tag pop 1 symmetric
!
"""
CONFIGURATION = (
    """!! IOS XR Configuration 7.5.2
hostname pe1
interface GigabitEthernet0/0/0/0
 description to brno-h1
!
"""
    + SUBINTERFACE.format("GigabitEthernet0/0/0/0")
    + """interface GigabitEthernet0/0/0/1
!
interface GigabitEthernet0/0/0/1.113
 ipv4 address 192.0.2.1 255.255.255.0
 encapsulation dot1q 113
!
interface GigabitEthernet0/0/0/1.7 l2transport
 encapsulation dot1q 114-116,120
!
interface GigabitEthernet0/0/0/1.117 l2transport
 encapsulation dot1q 117
!
interface GigabitEthernet0/0/0/1.118 l2transport
 encapsulation dot1q 118 second-dot1q any
!
interface GigabitEthernet0/0/0/1.121 l2transport
 encapsulation dot1q 121
!
interface TenGigE0/0/0/2
 l2transport
 !
!
interface TenGigE0/0/0/3
!
interface TenGigE0/0/0/3.9 l2transport
 encapsulation default
!
interface TenGigE0/0/0/30
 shutdown
!
interface TenGigE0/0/0/30.4095 l2transport
 encapsulation untagged
!
l2vpn
 bridge group others
  bridge-domain vc-117
   interface GigabitEthernet0/0/0/1.117
   !
  !
 !
 bridge group virtcloud
  bridge-domain vc-112
   interface GigabitEthernet0/0/0/0.112
   !
  !
  bridge-domain vc-130
   interface TenGigE0/0/0/30.4095
   !
  !
 !
!
end"""
)


def vlans(text: str) -> VlanSet:
    return VlanSet.parse(text)


def test_an_xr_configuration_is_parsed() -> None:
    """Subinterface 121 has the form of SBF's subinterfaces, but is in no bridge domain. The reading omits VLAN 121."""
    reading = XR.see([CONFIGURATION])
    assert reading.vlans == vlans("112,130")
    assert reading.ports == {
        "GigabitEthernet0/0/0/0": PortReading(vlans("112")),
        "GigabitEthernet0/0/0/1": PortReading(untagged=vlans("113-118,120")),
        "TenGigE0/0/0/2": PortReading(untagged=ALL_VLANS),
        "TenGigE0/0/0/3": PortReading(untagged=ALL_VLANS),
        "TenGigE0/0/0/30": PortReading(untagged=vlans("130"), access=VlanId(130), off=True),
    }


@pytest.mark.parametrize(
    "shown", ["", "busy", "interface Gi0/0/0/0\ninterface Gi0/0/0/0.9\n encapsulation dot1q 1-9-9"]
)
def test_a_text_that_is_no_xr_configuration_raises(shown: str) -> None:
    with pytest.raises(ValueError, match=r"no interface|1-9-9"):
        XR.see([shown])


def test_one_change_needs_these_xr_lines() -> None:
    change = {
        "create": "113",
        "delete": "112",
        "add": {"Gi0/0/0/1": "113"},
        "remove": {"GigabitEthernet0/0/0/0": "112"},
    }
    lines = XR.lines(SwitchDifference.model_validate(change), SwitchReading(vlans("112"), {}))
    expected = """l2vpn
 bridge group virtcloud
  bridge-domain vc-112
   no interface GigabitEthernet0/0/0/0.112
root
no interface GigabitEthernet0/0/0/0.112
l2vpn
 bridge group virtcloud
  no bridge-domain vc-112
root
l2vpn
 bridge group virtcloud
  bridge-domain vc-113
root
interface GigabitEthernet0/0/0/1.113 l2transport
 encapsulation dot1q 113
 rewrite ingress tag pop 1 symmetric
root
l2vpn
 bridge group virtcloud
  bridge-domain vc-113
   interface GigabitEthernet0/0/0/1.113
root"""
    assert "\n".join(lines) == expected


def test_these_xr_lines_make_a_trunk_an_access_port() -> None:
    change = {"access": ["Gi0/0/0/1"], "close": ["Gi0/0/0/1"], "add": {"Gi0/0/0/1": "113"}}
    reading = SwitchReading(vlans("112-113"), {"GigabitEthernet0/0/0/1": PortReading(vlans("112"))})
    expected = """l2vpn
 bridge group virtcloud
  bridge-domain vc-112
   no interface GigabitEthernet0/0/0/1.112
root
no interface GigabitEthernet0/0/0/1.112
interface GigabitEthernet0/0/0/1.4095 l2transport
 encapsulation untagged
root
l2vpn
 bridge group virtcloud
  bridge-domain vc-113
   interface GigabitEthernet0/0/0/1.4095
root"""
    assert "\n".join(XR.lines(SwitchDifference.model_validate(change), reading)) == expected


@pytest.mark.parametrize(("lines", "off"), [(" shutdown\n", True), (" description up\n", False)])
def test_a_shut_xr_port_is_detected(lines: str, off: bool) -> None:
    text = (
        f"interface GigabitEthernet0/0/0/0\n{lines}!\ninterface GigabitEthernet0/0/0/0.112 l2transport\n shutdown\n!\n"
    )
    assert XR.see([text]).ports["GigabitEthernet0/0/0/0"].off is off
