import pytest
from recordings import RECORDS

from sbf_service.drivers.registry import render_switch_tables
from sbf_service.drivers.switch.command_rendering import render_commands
from sbf_service.drivers.switch.dialect import ALL_VLANS, PortReading, SwitchReading
from sbf_service.drivers.switch.dialects import DIALECTS
from virtcloud.model.port_use import PortUse
from virtcloud.model.switch_state import SwitchDifference
from virtcloud.model.values import PortName, VlanId
from virtcloud.model.vlans import VlanSet

PORTS = {
    "cisco_ios": ("Gi1/0/1", "GigabitEthernet1/0/2", "Po1"),
    "cisco_nxos": ("Eth1/1", "Ethernet1/2", "port-channel1"),
    "arista_eos": ("Et1", "Ethernet2", "Po1"),
    "dell_force10": ("Te0/1", "TenGigabitEthernet0/2", "Po1"),
    "dell_os10": ("ethernet1/1/1", "ethernet1/1/2", "port-channel1"),
    "hp_procurve": ("1", "A2", "Trk1"),
    "aruba_aoscx": ("1/1/1", "1/1/2", "lag1"),
    "hp_comware": ("XGE1/0/1", "Ten-GigabitEthernet1/0/2", "BAGG1"),
    "sonic": ("Ethernet0", "Ethernet4", "PortChannel1"),
}
IOS_LIKE = """
interface {close}
switchport
switchport trunk allowed vlan none
exit
interface {new}
switchport
switchport trunk allowed vlan none
exit
interface {known}
switchport trunk allowed vlan remove 130
exit
no vlan 130,140-141
vlan 112
name vc-112
exit
interface {known}
switchport trunk allowed vlan add 112
exit
interface {new}
{encapsulation}switchport mode trunk
exit
interface {new}
switchport trunk allowed vlan add 112
exit
"""
TRUNK_COMMANDS = {
    "cisco_ios": IOS_LIKE.format(
        known="GigabitEthernet1/0/1",
        new="GigabitEthernet1/0/2",
        close="Port-channel1",
        encapsulation="switchport trunk encapsulation dot1q\n",
    ),
    "cisco_nxos": IOS_LIKE.format(known="Ethernet1/1", new="Ethernet1/2", close="port-channel1", encapsulation=""),
    "arista_eos": IOS_LIKE.format(known="Ethernet1", new="Ethernet2", close="Port-Channel1", encapsulation=""),
    "dell_force10": """
interface vlan 130
no tagged TenGigabitEthernet 0/1
exit
no interface vlan 130
no interface vlan 140
no interface vlan 141
interface vlan 112
description vc-112
exit
interface vlan 112
tagged TenGigabitEthernet 0/1
exit
interface TenGigabitEthernet 0/2
switchport
exit
interface vlan 112
tagged TenGigabitEthernet 0/2
exit
""",
    "dell_os10": """
interface ethernet1/1/1
no switchport trunk allowed vlan 130
exit
no interface vlan 130
no interface vlan 140
no interface vlan 141
interface vlan 112
description vc-112
exit
interface ethernet1/1/1
switchport trunk allowed vlan 112
exit
interface ethernet1/1/2
switchport mode trunk
exit
interface ethernet1/1/2
switchport trunk allowed vlan 112
exit
""",
    "hp_procurve": """
no vlan 130 tagged 1
no vlan 130
no vlan 140
no vlan 141
vlan 112
name vc-112
exit
vlan 112 tagged 1
vlan 112 tagged A2
""",
    "aruba_aoscx": """
interface lag 1
no routing
vlan trunk allowed 1
exit
interface 1/1/2
no routing
vlan trunk allowed 1
exit
interface 1/1/1
no vlan trunk allowed 130
exit
no vlan 130,140-141
vlan 112
name vc-112
exit
interface 1/1/1
vlan trunk allowed 112
exit
interface 1/1/2
vlan trunk allowed 112
exit
""",
    "hp_comware": """
interface Bridge-Aggregation1
port link-type trunk
undo port trunk permit vlan all
quit
interface Ten-GigabitEthernet1/0/2
port link-type trunk
undo port trunk permit vlan all
quit
interface Ten-GigabitEthernet1/0/1
undo port trunk permit vlan 130
quit
undo vlan 130
undo vlan 140 to 141
vlan 112
name vc-112
quit
interface Ten-GigabitEthernet1/0/1
port trunk permit vlan 112
quit
interface Ten-GigabitEthernet1/0/2
port trunk permit vlan 112
quit
""",
    "sonic": """
sudo -n config vlan member del 130 Ethernet0
sudo -n config vlan del 130
sudo -n config vlan del 140
sudo -n config vlan del 141
sudo -n config vlan add 112
sudo -n config vlan member add 112 Ethernet0
sudo -n config switchport mode trunk Ethernet4
sudo -n config vlan member add 112 Ethernet4
""",
}


@pytest.mark.parametrize("platform", TRUNK_COMMANDS)
def test_one_change_needs_these_commands_in_each_dialect(platform: str) -> None:
    dialect = DIALECTS[platform]
    known, new, open_port = (PortName(name) for name in PORTS[platform])
    ports = {
        known: PortReading(VlanSet([50, 130]), ready=True),
        new: PortReading(),
        open_port: PortReading(ALL_VLANS, open=True),
    }
    reading = SwitchReading(
        VlanSet([1, 50, 130]), {dialect.ports.canonical(name): port for name, port in ports.items()}
    )
    difference = SwitchDifference(
        close=(open_port,),
        create=VlanSet([112]),
        delete=VlanSet([130, 140, 141]),
        add={known: VlanSet([112]), new: VlanSet([112])},
        remove={known: VlanSet([130])},
    )
    assert render_commands(dialect, difference, reading) == TRUNK_COMMANDS[platform].strip().splitlines()


def render(platform: str, difference: SwitchDifference, tagged: str = "") -> list[str]:
    port = PortReading(VlanSet.parse(tagged), ready=True)
    dialect = DIALECTS[platform]
    canonical = dialect.ports.canonical(PORTS[platform][0])
    return render_commands(dialect, difference, SwitchReading(VlanSet([1]), {canonical: port}))


@pytest.mark.parametrize(
    ("platform", "expected"),
    [
        ("cisco_ios", ["vlan 100", "name vc-100", "exit", "vlan 101", "name vc-101", "exit"]),
        (
            "dell_os10",
            ["interface vlan 100", "description vc-100", "exit", "interface vlan 101", "description vc-101", "exit"],
        ),
        ("hp_comware", ["vlan 100", "name vc-100", "quit", "vlan 101", "name vc-101", "quit"]),
    ],
)
def test_every_created_vlan_is_named(platform: str, expected: list[str]) -> None:
    assert render(platform, SwitchDifference(create=VlanSet.parse("100-101"))) == expected


def test_a_command_has_no_more_ranges_than_the_device_accepts() -> None:
    scattered = VlanSet(range(100, 150, 2))
    port = PortName("XGE1/0/1")
    permits = [
        line for line in render("hp_comware", SwitchDifference(add={port: scattered})) if line.startswith("port")
    ]
    assert permits == [
        "port trunk permit vlan 100 102 104 106 108 110 112 114 116 118",
        "port trunk permit vlan 120 122 124 126 128 130 132 134 136 138",
        "port trunk permit vlan 140 142 144 146 148",
    ]


def test_an_emptied_list_is_explicitly_empty_on_ios() -> None:
    """An IOS trunk that has no allowed-VLAN list carries every VLAN."""
    removal = SwitchDifference(remove={PortName("Gi1/0/1"): VlanSet([112])})
    assert render("cisco_ios", removal, "112")[1] == "switchport trunk allowed vlan none"
    assert render("cisco_ios", removal, "50,112")[1] == "switchport trunk allowed vlan remove 112"


def test_vlan_1_is_allowed_before_an_aoscx_list_becomes_empty() -> None:
    removal = SwitchDifference(remove={PortName("1/1/1"): VlanSet([112])})
    assert render("aruba_aoscx", removal, "112")[1:3] == ["vlan trunk allowed 1", "no vlan trunk allowed 112"]


@pytest.mark.parametrize(
    ("before", "now", "command"),
    [
        ("no switchport", "", "no switchport"),
        ("", "switchport", "no switchport"),
        ("switchport", "switchport", None),
        ("", "", None),
    ],
    ids=["routed, layer 2 by default", "routed, routed by default", "layer 2, routed by default", "layer 2 by default"],
)
def test_the_layer_of_an_nxos_port_is_restored(before: str, now: str, command: str | None) -> None:
    """A port prints ``switchport`` or ``no switchport`` only if its layer is not the switch's default."""
    port = PortName("Ethernet1/1")
    reading = SwitchReading(VlanSet([1]), {port: PortReading(lines=(now,) if now else ())})
    change = SwitchDifference(put_back={port: PortUse(mode="access", lines=(before,) if before else ())})
    middle = render_commands(DIALECTS["cisco_nxos"], change, reading)[1:-1]
    assert middle == ([command] if command else [])


def test_no_dialect_allows_all_vlans() -> None:
    lines = [line for dialect in DIALECTS.values() for line in (*dialect.prepare, *dialect.allow, *dialect.empty)]
    assert not [line for line in lines if line.endswith(" all") and not line.startswith("undo ")]


def test_the_tables_contain_every_platform_with_its_commands() -> None:
    tables = render_switch_tables()
    assert all(f"`{name}`" in tables for name in (*DIALECTS, "linux_bridge"))
    assert "| create a VLAN | `vlan {vlan}` / `name {name}` / `exit` |" in tables
    filtered = r"^interface\|^ switchport\|^ no switchport\|^ channel-group\|^ shutdown"
    filtered += r"\|^ ip address\|^ ip unnumbered\|^ ipv6 address\|^ vrf\|^ ip vrf"
    assert f"`show running-config \\| include {filtered}`" in tables


ACCESS_COMMANDS = {
    "cisco_ios": """
interface GigabitEthernet1/0/1
switchport
shutdown
switchport mode access
no switchport access vlan
exit
no vlan 111
vlan 112
name vc-112
exit
interface GigabitEthernet1/0/1
switchport
shutdown
switchport access vlan 112
switchport mode access
no shutdown
exit
""",
    "dell_force10": """
interface TenGigabitEthernet 0/1
shutdown
exit
interface vlan 111
no untagged TenGigabitEthernet 0/1
exit
interface TenGigabitEthernet 0/1
no switchport
exit
no interface vlan 111
interface vlan 112
description vc-112
exit
interface TenGigabitEthernet 0/1
shutdown
switchport
exit
interface vlan 112
untagged TenGigabitEthernet 0/1
exit
interface TenGigabitEthernet 0/1
no shutdown
exit
""",
    "dell_os10": """
interface ethernet1/1/1
shutdown
switchport mode access
no switchport access vlan
exit
no interface vlan 111
interface vlan 112
description vc-112
exit
interface ethernet1/1/1
shutdown
switchport mode access
switchport access vlan 112
no shutdown
exit
""",
    "hp_procurve": """
interface 1 disable
no vlan 111 untagged 1
no vlan 111
vlan 112
name vc-112
exit
interface 1 disable
vlan 112 untagged 1
interface 1 enable
""",
    "aruba_aoscx": """
interface 1/1/1
shutdown
no routing
vlan access 1
exit
no vlan 111
vlan 112
name vc-112
exit
interface 1/1/1
shutdown
no routing
vlan access 112
no shutdown
exit
""",
    "hp_comware": """
interface Ten-GigabitEthernet1/0/1
shutdown
port link-type access
undo port access vlan
quit
undo vlan 111
vlan 112
name vc-112
quit
interface Ten-GigabitEthernet1/0/1
shutdown
port link-type access
port access vlan 112
undo shutdown
quit
""",
    "sonic": """
sudo -n config vlan member del 111 Ethernet0
sudo -n config vlan del 111
sudo -n config vlan add 112
sudo -n config switchport mode access Ethernet0
sudo -n config vlan member add -u 112 Ethernet0
""",
}
ACCESS_COMMANDS["cisco_nxos"] = ACCESS_COMMANDS["cisco_ios"].replace("GigabitEthernet1/0/1", "Ethernet1/1")
ACCESS_COMMANDS["arista_eos"] = ACCESS_COMMANDS["cisco_ios"].replace("GigabitEthernet1/0/1", "Ethernet1")
ACCESS_PORTS = {
    "cisco_ios": "Gi1/0/1",
    "cisco_nxos": "Eth1/1",
    "arista_eos": "Et1",
    "dell_force10": "Te0/1",
    "dell_os10": "ethernet1/1/1",
    "hp_procurve": "1",
    "aruba_aoscx": "1/1/1",
    "hp_comware": "XGE1/0/1",
    "sonic": "Ethernet0",
}


@pytest.mark.parametrize("platform", ACCESS_COMMANDS)
def test_an_access_port_moves_from_one_cluster_to_another(platform: str) -> None:
    """During the move, the port is temporarily in no VLAN or, on platforms that require a VLAN, in the default VLAN.

    Meanwhile, the port is shut down, except on SONiC.
    """
    dialect, port = DIALECTS[platform], PortName(ACCESS_PORTS[platform])
    before = PortReading(ready=True, untagged=VlanSet([111]), access=VlanId(111))
    difference = SwitchDifference(
        access=(port,),
        create=VlanSet([112]),
        delete=VlanSet([111]),
        add={port: VlanSet([112])},
        remove={port: VlanSet([111])},
    )
    commands = render_commands(
        dialect, difference, SwitchReading(VlanSet([1, 111]), {dialect.ports.canonical(port): before})
    )
    assert commands == ACCESS_COMMANDS[platform].strip().splitlines()


@pytest.mark.parametrize("platform", DIALECTS)
def test_every_platform_is_listed_here(platform: str) -> None:
    trunks = {record.platform for record in RECORDS.values() if not record.access}
    access = {record.platform for record in RECORDS.values() if record.access}
    assert platform in {*TRUNK_COMMANDS, *trunks}, "record a conversation: element try --record --vlan 100 --port PORT"
    assert platform in {*ACCESS_COMMANDS, *access} or not DIALECTS[platform].access, (
        "record a conversation: element try --record --access"
    )


@pytest.mark.timeout(20)
@pytest.mark.parametrize("platform", DIALECTS)
@pytest.mark.parametrize("line", ["!" * 60, "\n" * 60, "Synchronizing data to peer !!!! !\n" * 20])
def test_a_long_save_with_an_unknown_line_ends(platform: str, line: str) -> None:
    """If a pattern can match a text in two ways, the time of a search doubles with each repetition of the text."""
    assert DIALECTS[platform].saved.search(f"{line}\nunknown: [x") is None


@pytest.mark.timeout(20)
@pytest.mark.parametrize("platform", DIALECTS)
@pytest.mark.parametrize("character", ["\n", " "])
def test_a_long_empty_answer_is_searched_for_errors(platform: str, character: str) -> None:
    """A search takes quadratic time if, at the beginning of each line, the search reads all following blank lines."""
    assert DIALECTS[platform].errors.search(character * 120_000) is None
