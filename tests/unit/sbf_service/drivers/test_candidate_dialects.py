import pytest

from sbf_service.drivers.switch.candidates import CANDIDATE_DIALECTS
from sbf_service.drivers.switch.candidates.juniper_junos import JunosReading
from sbf_service.drivers.switch.dialect import ALL_VLANS, PortReading
from virtcloud.model.switch_state import SwitchDifference
from virtcloud.model.values import PortName, VlanId
from virtcloud.model.vlans import VlanSet


def vlans(text: str) -> VlanSet:
    return VlanSet.parse(text)


def difference(**changes: object) -> SwitchDifference:
    return SwitchDifference.model_validate(changes)


JUNOS = """<configuration>
 <interfaces>
  <interface><name>ge-0/0/1</name><unit><name>0</name><family><ethernet-switching>
    <interface-mode>trunk</interface-mode>
    <vlan><members>vc-112</members><members>130</members><members>140-141</members><members>gone</members></vlan>
  </ethernet-switching></family></unit></interface>
  <interface><name>ge-0/0/2</name><unit><name>0</name><family><ethernet-switching>
    <interface-mode>trunk</interface-mode><vlan><members>all</members></vlan>
  </ethernet-switching></family></unit></interface>
  <interface><name>ge-0/0/3</name><unit><name>0</name><family><ethernet-switching>
    <vlan><members>vc-112</members></vlan>
  </ethernet-switching></family></unit></interface>
  <interface><name>ge-0/0/4</name><native-vlan-id>150</native-vlan-id><unit><name>0</name><family><ethernet-switching>
    <interface-mode>trunk</interface-mode><vlan inactive="inactive"><members>all</members></vlan>
  </ethernet-switching></family></unit></interface>
  <interface><name>ge-0/0/5</name><unit><name>160</name><vlan-id>160</vlan-id></unit></interface>
 </interfaces>
 <vlans>
  <vlan><name>vc-112</name><vlan-id>112</vlan-id></vlan>
  <vlan><name>other</name><vlan-id-list>130</vlan-id-list><vlan-id-list>140-141</vlan-id-list></vlan>
  <vlan inactive="inactive"><name>off</name><vlan-id>170</vlan-id></vlan>
  <vlan><name>routed</name><vlan-id>none</vlan-id></vlan>
 </vlans>
</configuration>"""


DEACTIVATED = """<configuration>
 <interfaces>
  <interface><name>ge-0/0/6</name><unit><name>0</name><family><ethernet-switching inactive="inactive">
    <interface-mode>trunk</interface-mode><vlan><members>all</members></vlan>
  </ethernet-switching></family></unit></interface>
 </interfaces>
</configuration>"""


def test_a_junos_configuration_is_parsed() -> None:
    """The ``members`` of a port are VLAN IDs, ranges of VLAN IDs, VLAN names, or ``all``."""
    reading = CANDIDATE_DIALECTS["juniper_junos"].see([JUNOS])
    assert reading.vlans == vlans("112,130,140-141")
    assert reading.ports == {
        "ge-0/0/1": PortReading(vlans("112,130,140-141"), ready=True),
        "ge-0/0/2": PortReading(ALL_VLANS, ready=True, open=True),
        "ge-0/0/3": PortReading(untagged=vlans("112"), access=VlanId(112)),
        "ge-0/0/4": PortReading(ready=True, untagged=vlans("150")),
        "ge-0/0/5": PortReading(untagged=vlans("160")),
    }


@pytest.mark.parametrize("document", ["", "<output>busy</output>", "<configuration>", "syntax error"])
def test_another_document_than_a_junos_configuration_raises(document: str) -> None:
    with pytest.raises(ValueError, match=r"busy|syntax|configuration|^$"):
        CANDIDATE_DIALECTS["juniper_junos"].see([document])


READING = JunosReading(
    vlans=vlans("112,130,140-141"),
    ports={
        "ge-0/0/1": PortReading(vlans("112,130,140-141"), ready=True),
        "ge-0/0/2": PortReading(ALL_VLANS, ready=True, open=True),
        "ge-0/0/3": PortReading(untagged=vlans("50"), access=VlanId(50), mode="access"),
        "ge-0/0/5": PortReading(),
    },
    names={VlanId(112): "blue", VlanId(130): "other", VlanId(140): "two", VlanId(141): "two"},
    members={
        "ge-0/0/1": {"blue": vlans("112"), "130": vlans("130"), "140-141": vlans("140-141")},
        "ge-0/0/2": {"all": ALL_VLANS},
        "ge-0/0/3": {"50": vlans("50")},
    },
)


def render(**changes: object) -> list[str]:
    return CANDIDATE_DIALECTS["juniper_junos"].lines(difference(**changes), READING)


def test_one_change_needs_these_junos_lines() -> None:
    change = {
        "close": ["ge-0/0/2"],
        "create": "113",
        "delete": "112",
        "add": {"ge-0/0/1.0": "113", "ge-0/0/3": "113", "ge-0/0/4": "113"},
        "remove": {"GE-0/0/1": "112,140-141"},
    }
    unit = "unit 0 family ethernet-switching"
    assert render(**change) == [
        f"delete interfaces ge-0/0/2 {unit} vlan members",
        f"delete interfaces ge-0/0/1 {unit} vlan members blue",
        f"delete interfaces ge-0/0/1 {unit} vlan members 140-141",
        "delete vlans blue",
        "set vlans vc-113 vlan-id 113",
        f"set interfaces ge-0/0/1 {unit} vlan members vc-113",
        f"delete interfaces ge-0/0/3 {unit}",
        f"set interfaces ge-0/0/3 {unit} interface-mode trunk",
        f"set interfaces ge-0/0/3 {unit} vlan members vc-113",
        f"set interfaces ge-0/0/4 {unit} interface-mode trunk",
        f"set interfaces ge-0/0/4 {unit} vlan members vc-113",
    ]


def test_an_absent_switching_family_is_not_deleted() -> None:
    """Junos refuses to delete a statement that does not exist. The interface itself may be configured."""
    unit = "unit 0 family ethernet-switching"
    assert render(add={"ge-0/0/5": "112"}) == [
        f"set interfaces ge-0/0/5 {unit} interface-mode trunk",
        f"set interfaces ge-0/0/5 {unit} vlan members blue",
    ]


def test_a_deactivated_switching_family_is_deleted_first() -> None:
    """Statements that are added to a deactivated family would be deactivated too."""
    unit = "unit 0 family ethernet-switching"
    dialect = CANDIDATE_DIALECTS["juniper_junos"]
    reading = dialect.see([DEACTIVATED])
    assert reading.ports == {"ge-0/0/6": PortReading()}
    assert dialect.lines(difference(add={"ge-0/0/6": "113"}), reading) == [
        f"delete interfaces ge-0/0/6 {unit}",
        f"set interfaces ge-0/0/6 {unit} interface-mode trunk",
        f"set interfaces ge-0/0/6 {unit} vlan members vc-113",
    ]


def test_access_ports_need_these_junos_lines() -> None:
    """Before an access port gets a cluster's VLAN, SBF deletes the port's configuration.

    An access port without configuration is in no VLAN. Here, ge-0/0/4 and ge-0/0/5 have no configuration to delete.
    """
    access = ["ge-0/0/1", "ge-0/0/4", "ge-0/0/5"]
    change = {"close": ["ge-0/0/1"], "add": {"ge-0/0/4": "113"}, "remove": {"ge-0/0/5": "112"}}
    unit = "unit 0 family ethernet-switching"
    assert render(access=access, **change) == [
        f"delete interfaces ge-0/0/1 {unit}",
        f"set interfaces ge-0/0/4 {unit} interface-mode access",
        f"set interfaces ge-0/0/4 {unit} vlan members vc-113",
    ]


def test_a_member_that_denotes_other_vlans_is_not_deleted() -> None:
    """The member ``140-141`` and the VLAN name ``two`` also denote VLAN 141, which the change must not affect.

    So the driver renders no line. The read-back check still finds VLAN 140, so the commit is reverted.
    """
    assert render(remove={"ge-0/0/1": "140"}) == []
    assert render(delete="140") == []


def test_a_port_joins_a_vlan_by_its_existing_name() -> None:
    assert render(add={PortName("ge-0/0/1"): "130"})[-1].endswith("vlan members other")


def test_no_line_allows_all_vlans() -> None:
    lines = render(close=["ge-0/0/2"], create="113", add={"ge-0/0/2": "113", "ge-0/0/3": "113"})
    assert not [line for line in lines if line.startswith("set") and "all" in line.split()]
