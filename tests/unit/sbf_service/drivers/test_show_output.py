import pytest
from hypothesis import given
from hypothesis import strategies as st

from sbf_service.drivers.switch.dialect import ALL_VLANS, PortReading, SwitchReading
from sbf_service.drivers.switch.dialects import DIALECTS
from virtcloud.model.values import VlanId
from virtcloud.model.vlans import VlanSet


def parse(platform: str, *answers: str) -> SwitchReading:
    return DIALECTS[platform].see([*answers, *[""] * (len(DIALECTS[platform].show) - len(answers))])


def vlans(text: str) -> VlanSet:
    return VlanSet.parse(text)


IOS_TABLE = """
VLAN Name                             Status    Ports
---- -------------------------------- --------- -------------------------------
1    default                          active    Gi1/0/5, Gi1/0/6, Gi1/0/7
                                                Gi1/0/8
112  vc-112                           active
113  VLAN0113                         act/lshut
1002 fddi-default                     act/unsup
"""
IOS_PORTS = """interface GigabitEthernet1/0/1
 switchport trunk allowed vlan 10,12,14,16,18,20,22,24,26,28,30,32,34,36,38,40
 switchport trunk allowed vlan add 112,200-205
 switchport mode trunk
interface GigabitEthernet1/0/2
 switchport mode trunk
interface GigabitEthernet1/0/3
 switchport trunk allowed vlan none
 switchport mode trunk
interface GigabitEthernet1/0/4
 switchport access vlan 20
 switchport mode access
interface GigabitEthernet1/0/5
interface GigabitEthernet1/0/6
 no switchport
"""


def test_an_ios_switch_is_parsed() -> None:
    reading = parse("cisco_ios", IOS_TABLE, IOS_PORTS, "\nVLAN Usage\n---- ----------\n1006 GigabitEthernet1/0/6\n")
    assert reading.vlans == vlans("1,112-113,1002")
    assert reading.reserved == vlans("1006")
    listed = vlans("10,12,14,16,18,20,22,24,26,28,30,32,34,36,38,40,112,200-205")
    assert reading.ports["GigabitEthernet1/0/1"] == PortReading(listed, ready=True, dormant=listed)
    assert reading.ports["GigabitEthernet1/0/2"] == PortReading(ALL_VLANS, open=True)
    assert reading.ports["GigabitEthernet1/0/3"] == PortReading(ready=True, dormant=VlanSet())
    assert reading.ports["GigabitEthernet1/0/4"] == PortReading(untagged=vlans("20"), access=VlanId(20))
    assert reading.ports["GigabitEthernet1/0/5"].open, "a neighbour may make it a trunk (DTP)"
    assert reading.ports["GigabitEthernet1/0/6"] == PortReading()


def test_ios_lists_with_exceptions_do_not_mean_all_vlans() -> None:
    lines = "interface Gi1/0/1\n switchport trunk allowed vlan except 100\n switchport mode trunk\n"
    port = parse("cisco_ios", IOS_TABLE, lines).ports["GigabitEthernet1/0/1"]
    assert port == PortReading(ALL_VLANS - vlans("100"), ready=True, dormant=ALL_VLANS - vlans("100"))


def test_a_dynamic_vlan_of_eos_is_an_existing_vlan() -> None:
    """The table is from a published session of a leaf with EVPN."""
    table = """VLAN  Name                             Status    Ports
----- -------------------------------- --------- -------------------------------
1     default                          active    Et3, Et4, Et5, Et6, Et7, Et8
302   CENTRAL_LAN_02                   active    Et5, Vx1
1199* VLAN1199                         active    Cpu, Vx1

* indicates a Dynamic VLAN
"""
    reading = parse("arista_eos", table, "interface Ethernet5\n   switchport access vlan 302\n")
    assert reading.vlans == vlans("1,302,1199")
    assert reading.names == {1: "default", 302: "CENTRAL_LAN_02", 1199: "VLAN1199"}


def test_nxos_ports_without_trunk_mode_are_closed() -> None:
    lines = (
        "interface Ethernet1/1\n\ninterface Ethernet1/2\n  switchport\ninterface Ethernet1/3\n  switchport mode trunk\n"
    )
    reading = parse("cisco_nxos", IOS_TABLE, lines, "system current running vlan reservation: 3968-4095")
    assert [reading.ports[f"Ethernet1/{number}"].open for number in (1, 2, 3)] == [False, False, True]
    assert reading.reserved == vlans("3968-4094")


def test_an_os9_switch_is_parsed() -> None:
    """A list of members may continue in the next row. An inactive VLAN counts as an existing VLAN."""
    table = """
Codes: * - Default VLAN, G - GVRP VLANs, P - Primary, C - Community, I - Isolated
Q: U - Untagged, T - Tagged

    NUM    Status    Description                     Q Ports
*   1      Inactive                                  U Te 0/42-43
                                                     U Fo 0/48,56
    112    Active    vc-112                          T Te 0/1,3-4
                                                     T Po 1
    113    Inactive  a name of some words
"""
    reading = parse("dell_force10", table)
    assert reading.vlans == vlans("1,112-113")
    assert reading.ports["TenGigabitEthernet0/4"] == PortReading(vlans("112"), ready=True)
    assert reading.ports["Port-channel1"].tagged == vlans("112")
    assert reading.ports["fortyGigE0/56"].untagged == vlans("1")


OS9_HEAD = "    NUM    Status    Description                     Q Ports\n"


@pytest.mark.parametrize(
    ("listed", "kind", "ports"),
    [
        ("T Te 1/1-1/3", "T", ["TenGigabitEthernet1/1", "TenGigabitEthernet1/2", "TenGigabitEthernet1/3"]),
        ("T Te 1/1,1/5", "T", ["TenGigabitEthernet1/1", "TenGigabitEthernet1/5"]),
        ("U Te 1/1-1/2,1/5", "U", ["TenGigabitEthernet1/1", "TenGigabitEthernet1/2", "TenGigabitEthernet1/5"]),
        ("T Te 0/1,3-4", "T", ["TenGigabitEthernet0/1", "TenGigabitEthernet0/3", "TenGigabitEthernet0/4"]),
        ("T Te 1/7-8,1/10", "T", ["TenGigabitEthernet1/7", "TenGigabitEthernet1/8", "TenGigabitEthernet1/10"]),
        ("T Fo 1/49/1-1/49/2", "T", ["fortyGigE1/49/1", "fortyGigE1/49/2"]),
        ("T Po1(Te 1/47-1/48)", "T", ["Port-channel1"]),
        ("U Po3(Te 0/46,Te 1/46)", "U", ["Port-channel3"]),
        ("T Po128(Te 0/9-10)", "T", ["Port-channel128"]),
        ("T Po 1", "T", ["Port-channel1"]),
    ],
)
def test_an_os9_list_of_members_is_parsed(listed: str, kind: str, ports: list[str]) -> None:
    """The lists are from published sessions, except the mixed lists and ``Fo 1/49/1-1/49/2``."""
    reading = parse("dell_force10", OS9_HEAD + f"    112    Active    vc-112                          {listed}\n")
    tagged, untagged = (vlans("112"), vlans("")) if kind == "T" else (vlans(""), vlans("112"))
    assert list(reading.ports) == ports
    assert {(port.tagged, port.untagged) for port in reading.ports.values()} == {(tagged, untagged)}


def test_an_os10_switch_is_parsed() -> None:
    text = """!
interface vlan1
 no shutdown
!
interface vlan112
 description vc-112
!
interface ethernet1/1/1
 switchport mode trunk
 switchport access vlan 1
 switchport trunk allowed vlan 112,200-201
!
interface ethernet1/1/2
 switchport access vlan 7
"""
    reading = parse("dell_os10", text)
    assert reading.vlans == vlans("1,112")
    assert reading.ports["ethernet1/1/1"] == PortReading(vlans("112,200-201"), ready=True, untagged=vlans("1"))
    assert reading.ports["ethernet1/1/2"] == PortReading(untagged=vlans("7"), access=VlanId(7))


def test_a_procurve_switch_is_parsed() -> None:
    text = """
hostname "sw1"
vlan 1
   name "DEFAULT_VLAN"
   untagged 1-2,A1-A3,Trk1
   no untagged 4
   exit
vlan 112
   name "vc-112"
   tagged 2,A2,1/7-1/8
   exit
"""
    reading = parse("hp_procurve", text)
    assert reading.vlans == vlans("1,112")
    assert reading.ports["A2"] == PortReading(vlans("112"), ready=True, untagged=vlans("1"))
    assert reading.ports["1/8"].tagged == vlans("112")
    assert "4" not in reading.ports


def test_an_aoscx_switch_is_parsed() -> None:
    text = """Current configuration:
vlan 1,10-12
vlan 112
    name vc-112
interface lag 1
    vlan trunk native 1
    vlan trunk allowed all
interface 1/1/1
    no shutdown
    no routing
    vlan trunk native 1
    vlan trunk allowed 1,112
interface 1/1/2
    vlan access 10
interface vlan 10
    ip address 192.0.2.1/24
"""
    reading = parse("aruba_aoscx", text)
    assert reading.vlans == vlans("1,10-12,112")
    assert reading.ports["lag1"].open
    assert reading.ports["1/1/1"] == PortReading(vlans("1,112"), ready=True, untagged=vlans("1"))
    assert reading.ports["1/1/2"] == PortReading(untagged=vlans("10"), access=VlanId(10), off=True)
    assert set(reading.ports) == {"lag1", "1/1/1", "1/1/2"}


@pytest.mark.parametrize("heading", ["lag 10", "lag 10 multi-chassis", "lag 10 multi-chassis static"])
def test_a_lag_of_aoscx_is_parsed(heading: str) -> None:
    text = f"""vlan 1,112
interface {heading}
    no shutdown
    no routing
    vlan trunk native 1
    vlan trunk allowed 1,112
    lacp mode active
"""
    assert parse("aruba_aoscx", text).ports == {"lag10": PortReading(vlans("1,112"), ready=True, untagged=vlans("1"))}


COMWARE_PORTS = """#
interface Ten-GigabitEthernet1/0/1
 port link-mode bridge
 port link-type trunk
 undo port trunk permit vlan 1
 port trunk permit vlan 100 to 105 112
 port trunk permit vlan 200
#
interface Ten-GigabitEthernet1/0/2
 port link-type trunk
 port trunk permit vlan 112
#
interface Ten-GigabitEthernet1/0/3
 port link-type trunk
 port trunk permit vlan all
#
interface Ten-GigabitEthernet1/0/4
 port access vlan 7
#
return
"""


@pytest.mark.parametrize(
    "listed",
    [
        " Total VLANs: 8\n The VLANs include:\n 1(default), 100-105,\n 112",
        "Total 8 VLAN exist(s).\n The following VLANs exist:\n  1(default), 100-105, 112, \n",
    ],
)
def test_comware_7_and_5_switches_are_parsed(listed: str) -> None:
    reading = parse("hp_comware", listed, COMWARE_PORTS)
    assert reading.vlans == vlans("1,100-105,112")
    ports = [reading.ports[f"Ten-GigabitEthernet1/0/{number}"] for number in (1, 2, 3, 4)]
    assert ports[0] == PortReading(vlans("100-105,112,200"), ready=True)
    assert ports[1].tagged == vlans("1,112")
    assert ports[2].open
    assert ports[3] == PortReading(untagged=vlans("7"), access=VlanId(7))


def test_a_sonic_switch_is_parsed() -> None:
    text = """Name       VID  Member     Mode
-------  -----  ---------  --------
Vlan112    112  Ethernet0  tagged
Vlan112    112  Ethernet4  untagged
Vlan113    113
"""
    reading = parse("sonic", text)
    assert reading.vlans == vlans("112-113")
    assert reading.ports["Ethernet0"] == PortReading(vlans("112"), ready=True)
    assert reading.ports["Ethernet4"].untagged == vlans("112")


@pytest.mark.parametrize(
    ("platform", "answers", "quoted"),
    [
        (
            "cisco_ios",
            (IOS_TABLE, "interface Gi1/0/1\n switchport mode trunk\n switchport trunk allowed vlan 1-x\n"),
            "1-x",
        ),
        ("cisco_ios", (IOS_TABLE + "and then something else\n", IOS_PORTS), "and then something else"),
        ("arista_eos", ("no table", IOS_PORTS), "no table"),
        ("dell_force10", ("NUM Status\n1 Active\n",), "NUM Status"),
        (
            "dell_force10",
            (OS9_HEAD + "*   1      Active                                    T Te 1/1-2/3\n",),
            "1/1-2/3",
        ),
        (
            "dell_force10",
            (OS9_HEAD + "*   1      Active                                    T Po1(Te 1/1),Po2(Te 1/2)\n",),
            "Po2",
        ),
        ("hp_procurve", ("vlan 112\n   tagged 1-B7\n",), "1-B7"),
        ("hp_comware", ("Total: 3", COMWARE_PORTS), "Total: 3"),
        ("sonic", ("Name VID Member Mode\nVlan112 112 Ethernet0 sideways\n",), "sideways"),
    ],
)
def test_an_unknown_line_is_quoted(platform: str, answers: tuple[str, ...], quoted: str) -> None:
    with pytest.raises(ValueError, match=quoted):
        parse(platform, *answers)


@pytest.mark.parametrize("platform", DIALECTS)
@given(st.lists(st.text(alphabet="interfacvlan Name 0123456789-,/|\n\t*", max_size=200), min_size=3, max_size=3))
def test_nonsense_raises_only_valueerror(platform: str, answers: list[str]) -> None:
    try:
        seen = DIALECTS[platform].see(answers[: len(DIALECTS[platform].show)])
    except ValueError:
        return
    assert isinstance(seen, SwitchReading)


IOS_OFF = "interface Gi1/0/1\n switchport mode access\n shutdown\n"


@pytest.mark.parametrize(
    ("platform", "answers", "port"),
    [
        ("cisco_ios", (IOS_TABLE, IOS_OFF), "GigabitEthernet1/0/1"),
        ("dell_os10", ("interface ethernet1/1/1\n shutdown\n switchport access vlan 1\n",), "ethernet1/1/1"),
        ("aruba_aoscx", ("vlan 1\ninterface 1/1/1\n    no routing\n    vlan access 1\n",), "1/1/1"),
        (
            "hp_comware",
            ("The VLANs include:\n 1(default)", "interface XGE1/0/1\n shutdown\n"),
            "Ten-GigabitEthernet1/0/1",
        ),
        ("hp_procurve", ("interface A1\n   disable\n   exit\nvlan 1\n   untagged A1-A2\n   exit\n",), "A1"),
    ],
)
def test_a_shut_port_is_detected(platform: str, answers: tuple[str, ...], port: str) -> None:
    reading = parse(platform, *answers)
    assert reading.ports[port].off
    assert reading.ports[port].access == 1
