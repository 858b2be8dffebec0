"""The VLANs that a refused command concerns. The error is reported for the clusters of these VLANs."""

import pytest

from sbf_service.drivers.device_errors import MAX_FAULT_CHARACTERS, ChangeFault, build_refusal, join_texts
from sbf_service.drivers.switch.command_matching import find_command_vlans, split_command_blocks
from sbf_service.drivers.switch.command_rendering import render_commands
from sbf_service.drivers.switch.dialect import SwitchReading
from sbf_service.drivers.switch.dialects import DIALECTS
from virtcloud.model.switch_state import SwitchDifference
from virtcloud.model.values import PortName
from virtcloud.model.vlans import VlanSet

P1, P2 = PortName("Ethernet1/1"), PortName("Ethernet1/2")
CHANGE = SwitchDifference(
    create=VlanSet([112]), add={P1: VlanSet([112])}, delete=VlanSet([130]), remove={P2: VlanSet([130])}
)
IOS = DIALECTS["cisco_ios"]
BLOCK = ("interface Ethernet1/1", "switchport trunk allowed vlan none", "switchport mode trunk", "exit")


@pytest.mark.parametrize("platform", DIALECTS)
def test_each_command_concerns_the_vlans_of_its_block(platform: str) -> None:
    dialect = DIALECTS[platform]
    commands = render_commands(dialect, CHANGE, SwitchReading(VlanSet([130]), {}))
    for line in commands:
        if "130" in line:
            assert find_command_vlans(dialect, line, [line], CHANGE) == VlanSet([130]), line
        elif "112" in line and "name" not in line and "description" not in line:
            assert find_command_vlans(dialect, line, [line], CHANGE) == VlanSet([112]), line


def test_a_command_without_vlan_concerns_its_ports_vlans() -> None:
    assert find_command_vlans(IOS, "switchport mode trunk", BLOCK, CHANGE) == VlanSet([112])
    assert find_command_vlans(IOS, "interface Ethernet1/2", ["interface Ethernet1/2", "exit"], CHANGE) == VlanSet([130])


def test_a_name_concerns_the_vlan_of_its_block() -> None:
    assert find_command_vlans(IOS, "name vc-112", ["vlan 112", "name vc-112", "exit"], CHANGE) == VlanSet([112])


def test_a_range_concerns_all_its_vlans() -> None:
    comware = DIALECTS["hp_comware"]
    assert str(find_command_vlans(comware, "port trunk permit vlan 100 to 102 110", [], CHANGE)) == "100-102,110"


@pytest.mark.parametrize(
    ("platform", "commands", "blocks"),
    [
        ("cisco_ios", "no vlan 130; vlan 112; name vc-112; exit", "no vlan 130 | vlan 112; name vc-112; exit"),
        (
            "dell_force10",
            "no interface vlan 130; no interface vlan 131; interface vlan 112; tagged Te 0/1; exit",
            "no interface vlan 130; no interface vlan 131 | interface vlan 112; tagged Te 0/1; exit",
        ),
        ("hp_comware", "undo vlan 130; interface XGE1; quit", "undo vlan 130 | interface XGE1; quit"),
        (
            "hp_procurve",
            "no vlan 130 tagged A1; no vlan 130; vlan 112; name vc-112; exit; vlan 112 tagged A1",
            "no vlan 130 tagged A1; no vlan 130 | vlan 112; name vc-112; exit | vlan 112 tagged A1",
        ),
        ("sonic", *["sudo -n config vlan del 130; sudo -n config vlan add 112"] * 2),
    ],
)
def test_global_commands_and_commands_of_a_mode_have_separate_blocks(platform: str, commands: str, blocks: str) -> None:
    split = split_command_blocks(DIALECTS[platform], commands.split("; "))
    assert list(split) == [block.split("; ") for block in blocks.split(" | ")]


def test_each_vlan_has_only_its_faults_in_the_error() -> None:
    faults = [
        ChangeFault("sent 'vlan 112', the device answered 'no'", VlanSet([112])),
        ChangeFault("port p2: no", VlanSet([112, 130])),
    ]
    error = build_refusal("switch sw1: ", faults)
    assert str(error) == "switch sw1: sent 'vlan 112', the device answered 'no'; port p2: no"
    assert error.about == {112: str(error), 130: "switch sw1: port p2: no"}


def test_a_fault_without_vlans_concerns_every_cluster() -> None:
    faults = [ChangeFault("sent 'end', the device answered 'no'"), ChangeFault("x", VlanSet([112]))]
    assert build_refusal("switch sw1: ", faults).about == {}


def test_faults_are_listed_up_to_the_limit() -> None:
    assert join_texts(f"fault {number}" for number in range(9)).endswith("fault 8")
    long = join_texts(f"{number:0100}" for number in range(40))
    assert long.endswith("; and 26 more")
    assert len(long) < MAX_FAULT_CHARACTERS
