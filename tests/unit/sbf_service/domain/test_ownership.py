"""Tests of the ownership of VLANs, derived from VLAN names, SBF's record, and the ports that carry the VLANs."""

from typing import Any

import pytest

from sbf_service.domain.ownership import (
    find_owned_vlans,
    find_stated_vlans,
    is_vlan_name,
    make_vlan_name,
    mark_foreign_vlans,
)
from virtcloud.model.switch_state import (
    ForeignVlan,
    SwitchDifference,
    SwitchObserved,
    SwitchWanted,
    compare_switch,
    find_blocked_vlans,
)
from virtcloud.model.values import PortName, VlanId
from virtcloud.model.vlans import VlanSet

P1, P9 = PortName("p1"), PortName("p9")
NONE = VlanSet()


def vlans(text: str) -> VlanSet:
    return VlanSet.parse(text)


def carried(names: dict[int, str | None] | None, p1: str = "", **more: Any) -> SwitchObserved:
    existing = vlans(p1) if names is None else VlanSet(names)
    table = None if names is None else {VlanId(number): name for number, name in names.items()}
    return SwitchObserved(vlans=existing, ports={P1: vlans(p1)}, names=table, **more)


def wanting(p1: str) -> SwitchWanted:
    return SwitchWanted(ports={P1: vlans(p1)})


@pytest.mark.parametrize(
    ("name", "created", "owned"),
    [
        ("vc-150", "", "150"),
        ("vc-150", "150", "150"),
        ("vc-151", "", ""),
        ("offices", "", ""),
        ("offices", "150", ""),
        ("VLAN0150", "150", "150"),
        ("VLAN 0150", "150", "150"),
        ("VLAN0150", "", ""),
        ("VLAN0151", "150", ""),
        (None, "150", "150"),
        ("", "150", "150"),
        (None, "", ""),
    ],
)
def test_a_vlan_is_owned_by_name_or_by_record(name: str | None, created: str, owned: str) -> None:
    assert str(find_owned_vlans(carried({150: name}), vlans(created))) == owned


def test_a_foreign_vlan_is_in_no_difference() -> None:
    found = mark_foreign_vlans(carried({150: "offices"}), NONE)
    assert found.foreign == (ForeignVlan(vlan=VlanId(150), name="offices"),)
    assert not compare_switch(wanting(""), found)


def test_a_foreign_vlan_is_neither_created_nor_joined() -> None:
    found = mark_foreign_vlans(carried({150: "offices"}), NONE)
    assert not compare_switch(wanting("150"), found)
    assert str(find_blocked_vlans(wanting("150"), found)) == "150"


def test_a_foreign_vlan_stays_on_a_managed_port() -> None:
    found = mark_foreign_vlans(carried({150: "offices"}, "150"), NONE)
    assert not compare_switch(wanting(""), found)


def test_an_unwanted_owned_vlan_is_deleted() -> None:
    found = mark_foreign_vlans(carried({150: "vc-150"}, "150"), NONE)
    assert compare_switch(wanting(""), found) == SwitchDifference(delete=vlans("150"), remove={P1: vlans("150")})


def test_an_owned_vlan_in_other_use_leaves_only_managed_ports() -> None:
    found = mark_foreign_vlans(carried({150: "vc-150"}, "150", elsewhere={P9: vlans("150")}), NONE)
    assert found.foreign == (ForeignVlan(vlan=VlanId(150), ports=(P9,)),)
    assert compare_switch(wanting(""), found) == SwitchDifference(remove={P1: vlans("150")})


def test_a_cluster_keeps_its_ports_while_others_use_its_vlan() -> None:
    found = mark_foreign_vlans(carried({150: "vc-150"}, "150", elsewhere={P9: vlans("150")}), NONE)
    assert not compare_switch(wanting("150"), found)
    assert not find_blocked_vlans(wanting("150"), found)


def test_no_port_is_added_to_a_vlan_in_other_use() -> None:
    found = mark_foreign_vlans(carried({150: "vc-150"}, elsewhere={P9: vlans("150")}), NONE)
    assert not compare_switch(wanting("150"), found)
    assert str(find_blocked_vlans(wanting("150"), found)) == "150"


def test_a_vlan_on_an_unmanaged_port_only_is_foreign() -> None:
    found = mark_foreign_vlans(carried({}, elsewhere={P9: vlans("150")}), NONE)
    assert not compare_switch(wanting("150"), found)


def test_without_a_vlan_table_a_stray_vlan_is_removed() -> None:
    found = mark_foreign_vlans(carried(None, "150"), NONE)
    assert (found.foreign, compare_switch(wanting(""), found).remove) == ((), {P1: vlans("150")})


def test_without_a_vlan_table_unmanaged_ports_make_a_vlan_foreign() -> None:
    found = mark_foreign_vlans(carried(None, "150", elsewhere={P9: vlans("150")}), NONE)
    assert not compare_switch(wanting(""), found)


def test_without_a_vlan_table_a_recorded_vlan_leaves_managed_ports() -> None:
    found = mark_foreign_vlans(carried(None, "150", elsewhere={P9: vlans("150")}), vlans("150"))
    assert compare_switch(wanting(""), found).remove == {P1: vlans("150")}


def test_marking_foreign_vlans_is_idempotent() -> None:
    once = mark_foreign_vlans(carried({150: "offices", 151: None}, "150", elsewhere={P9: vlans("152")}), vlans("151"))
    assert mark_foreign_vlans(once, vlans("151")) == once


@pytest.mark.parametrize(
    ("listed", "expected"), [("150", "150"), ("2-4094", ""), ("1-4094", ""), ("2-4093", "100-199")]
)
def test_a_list_of_all_vlans_does_not_show_used_vlans(listed: str, expected: str) -> None:
    assert str(find_stated_vlans(vlans(listed), vlans("100-199"))) == expected


@pytest.mark.parametrize(
    ("found", "use"),
    [
        (ForeignVlan(vlan=VlanId(150), name="offices"), "it is named 'offices'"),
        (ForeignVlan(vlan=VlanId(150), ports=(P9,)), "it is on unmanaged port p9"),
        (
            ForeignVlan(vlan=VlanId(150), name="offices", ports=(P1, P9)),
            "it is named 'offices' and it is on unmanaged ports p1, p9",
        ),
        (ForeignVlan(vlan=VlanId(150)), "it exists and SBF did not create it"),
    ],
)
def test_messages_quote_the_evidence(found: ForeignVlan, use: str) -> None:
    assert found.use == use


def test_a_vlan_name_in_use_is_not_repeated() -> None:
    assert make_vlan_name(VlanId(112), {112: "VLAN0112", 150: "vc-112"}) == "vc-112-2"
    assert make_vlan_name(VlanId(112), {150: "vc-112", 151: "vc-112-2"}) == "vc-112-3"
    assert make_vlan_name(VlanId(112), {112: "vc-112"}) == "vc-112"


def test_a_numbered_name_belongs_to_its_own_vlan_id() -> None:
    assert [is_vlan_name(number, "vc-112-2") for number in (112, 1122, 150)] == [True, False, False]
    assert not is_vlan_name(112, "vc-112-lab")
