"""Tests of the scope check before a change of a switch, and of the read-back check after the change."""

import pytest
from support.sbf_fakes.readings import read_switch

from sbf_service.drivers.contract import SwitchScope
from sbf_service.reconcile.read_back import check_switch_scope
from virtcloud.model.errors import Refused, Unsafe
from virtcloud.model.switch_state import SwitchDifference, SwitchObserved, SwitchWanted
from virtcloud.model.values import Name, PortName
from virtcloud.model.vlans import VlanSet

SWITCH = Name("sw3")
MANAGED = SwitchScope((PortName("p1"), PortName("p2")), VlanSet.parse("100-199"))


def ports(**vlans: str) -> dict[PortName, VlanSet]:
    return {PortName(port): VlanSet.parse(text) for port, text in vlans.items()}


def observed(existing: str, **vlans: str) -> SwitchObserved:
    return SwitchObserved(vlans=VlanSet.parse(existing), ports=ports(**vlans))


def test_a_difference_within_the_scope_is_allowed() -> None:
    check_switch_scope(SWITCH, MANAGED, SwitchDifference(add=ports(p1="100-199"), remove=ports(p2="150")))


@pytest.mark.parametrize(
    ("difference", "message"),
    [
        (SwitchDifference(add=ports(p3="100")), r"port p3: outside the managed ports \(p1, p2\); left unchanged"),
        (SwitchDifference(remove=ports(p1="99-100")), r"port p1: VLAN 99 is outside the managed VLANs \(100-199\)"),
        (SwitchDifference(create=VlanSet([200])), r"sw3: VLAN 200 is outside the managed VLANs \(100-199\)"),
        (SwitchDifference(delete=VlanSet([1])), r"sw3: VLAN 1 is outside the managed VLANs \(100-199\)"),
    ],
    ids=["unmanaged port", "foreign VLAN on a port", "foreign VLAN created", "foreign VLAN deleted"],
)
def test_a_difference_outside_the_scope_is_unsafe(difference: SwitchDifference, message: str) -> None:
    with pytest.raises(Unsafe, match=message):
        check_switch_scope(SWITCH, MANAGED, difference)


def test_a_switch_with_its_wanted_state_passes_the_check() -> None:
    read_switch(SWITCH, SwitchWanted(ports=ports(p1="100", p2="")), observed("100", p1="100", p2="")).check_read_back()


def test_a_failed_read_back_names_each_port() -> None:
    with pytest.raises(Refused) as caught:
        read_switch(
            SWITCH, SwitchWanted(ports=ports(p1="112", p2="")), observed("113", p1="", p2="113")
        ).check_read_back()
    assert str(caught.value) == (
        "switch sw3, port p1: wanted VLAN 112 tagged, found none; port p2: wanted VLAN 113 removed, found tagged; "
        "wanted VLAN 112 to exist, found none; wanted VLAN 113 deleted, found VLAN 113: read back after the change; "
        "check the device's configuration"
    )
