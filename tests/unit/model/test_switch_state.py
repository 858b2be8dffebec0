"""Tests of the difference between the wanted and the observed state of a switch.

An open port is a port that SBF must close, for example a trunk that carries all VLANs (``SwitchObserved``).
"""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from virtcloud.model.switch_state import SwitchDifference, SwitchObserved, SwitchWanted, compare_switch
from virtcloud.model.values import PortName
from virtcloud.model.vlans import VlanSet

vlans = st.frozensets(st.integers(100, 110), max_size=5).map(VlanSet)
ports = st.dictionaries(st.sampled_from(["p1", "p2", "p3"]).map(PortName), vlans)


Ports = dict[PortName, VlanSet]


def applied(carried: SwitchObserved, difference: SwitchDifference) -> SwitchObserved:
    after = {port: have - difference.remove.get(port, VlanSet()) for port, have in carried.ports.items()}
    for port, added in difference.add.items():
        after[port] = after.get(port, VlanSet()) | added
    return SwitchObserved(vlans=(carried.vlans - difference.delete) | difference.create, ports=after)


@given(ports, ports, vlans)
def test_a_difference_applied_leaves_no_difference(wanted: Ports, carried: Ports, existing: VlanSet) -> None:
    target = SwitchWanted(ports=wanted)
    before = SwitchObserved(vlans=existing, ports=carried)
    assert not compare_switch(target, applied(before, compare_switch(target, before)))


@given(ports, ports)
def test_a_difference_contains_no_unmanaged_port(wanted: Ports, carried: Ports) -> None:
    difference = compare_switch(SwitchWanted(ports=wanted), SwitchObserved(vlans=VlanSet(), ports=carried))
    assert {*difference.add, *difference.remove} <= set(wanted)


@given(ports, vlans)
def test_an_open_port_is_closed_if_any_vlan_is_wanted(wanted: Ports, existing: VlanSet) -> None:
    target = SwitchWanted(ports={**wanted, PortName("open"): VlanSet()})
    carried = SwitchObserved(vlans=existing, ports={}, open=(PortName("open"), PortName("somebody-elses")))
    assert compare_switch(target, carried).close == ((PortName("open"),) if target.vlans else ())


def test_an_open_access_port_is_closed_without_a_cluster() -> None:
    target = SwitchWanted(ports={PortName("p1"): VlanSet()}, access=(PortName("p1"),))
    carried = SwitchObserved(vlans=VlanSet(), ports={PortName("p1"): VlanSet()}, open=(PortName("p1"),))
    assert compare_switch(target, carried) == SwitchDifference(close=(PortName("p1"),), access=(PortName("p1"),))


def test_a_difference_lists_its_access_ports() -> None:
    target = SwitchWanted(ports={PortName("p1"): VlanSet([100]), PortName("p2"): VlanSet([100])}, access=("p2",))
    difference = compare_switch(target, SwitchObserved(vlans=VlanSet([100]), ports={}))
    assert difference.access == ("p2",)


def test_an_access_port_carries_at_most_one_vlan() -> None:
    with pytest.raises(ValueError, match="access port p1: expected at most one VLAN, got VLAN 100-101"):
        SwitchWanted(ports={PortName("p1"): VlanSet([100, 101])}, access=(PortName("p1"),))


def test_the_difference_contains_only_necessary_changes() -> None:
    wanted = SwitchWanted(ports={PortName("p1"): VlanSet([100, 101]), PortName("p2"): VlanSet()})
    carried = SwitchObserved(
        vlans=VlanSet([101, 102]), ports={PortName("p1"): VlanSet([101]), PortName("p2"): VlanSet([102])}
    )
    assert compare_switch(wanted, carried) == SwitchDifference(
        create=VlanSet([100]),
        delete=VlanSet([102]),
        add={PortName("p1"): VlanSet([100])},
        remove={PortName("p2"): VlanSet([102])},
    )
