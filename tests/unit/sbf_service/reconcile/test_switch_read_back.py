"""The read-back check of a switch, and the check that a change is within SBF's scope on the switch."""

import pytest
from sbf_fakes.readings import read_switch

from sbf_service.drivers.contract import SwitchScope
from sbf_service.reconcile.read_back import check_switch_scope
from virtcloud.model.errors import Refused, Unsafe
from virtcloud.model.values import Name, PortName
from virtcloud.model.vlans import VlanSet
from virtcloud.model.wanted import SwitchDifference, SwitchObserved, SwitchWanted

SWITCH = Name("sw3")
MANAGED = SwitchScope((PortName("p1"), PortName("p2")), VlanSet.parse("100-199"))


def ports(**vlans: str) -> dict[PortName, VlanSet]:
    return {PortName(port): VlanSet.parse(text) for port, text in vlans.items()}


def carried(exists: str, **vlans: str) -> SwitchObserved:
    return SwitchObserved(vlans=VlanSet.parse(exists), ports=ports(**vlans))


def test_a_difference_within_what_is_managed_passes() -> None:
    check_switch_scope(SWITCH, MANAGED, SwitchDifference(add=ports(p1="100-199"), remove=ports(p2="150")))


@pytest.mark.parametrize(
    "difference",
    [
        SwitchDifference(add=ports(p3="100")),
        SwitchDifference(remove=ports(p1="99-100")),
        SwitchDifference(create=VlanSet([200])),
        SwitchDifference(delete=VlanSet([1])),
    ],
    ids=["foreign port", "foreign number on a port", "foreign number made", "foreign number deleted"],
)
def test_a_difference_that_touches_anything_else_is_unsafe(difference: SwitchDifference) -> None:
    with pytest.raises(Unsafe, match="ours: 100-199"):
        check_switch_scope(SWITCH, MANAGED, difference)


def test_what_is_carried_as_wanted_passes() -> None:
    """The read-back check accepts a switch that carries exactly its wanted state."""
    read_switch(SWITCH, SwitchWanted(ports=ports(p1="100", p2="")), carried("100", p1="100", p2="")).check_read_back()


def test_a_failed_read_back_names_each_port() -> None:
    with pytest.raises(Refused) as caught:
        read_switch(
            SWITCH, SwitchWanted(ports=ports(p1="112", p2="")), carried("113", p1="", p2="113")
        ).check_read_back()
    assert str(caught.value) == (
        "switch sw3, port p1: wanted VLAN 112 tagged, found none; port p2: wanted no VLAN 113, found it tagged; "
        "wanted VLAN 112 to exist, found none; wanted no VLAN 113, found it: read back after the change; "
        "look at its configuration"
    )
