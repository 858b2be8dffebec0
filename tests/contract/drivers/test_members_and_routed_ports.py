"""Tests of managed ports that are routed or members of an aggregate.

SBF treats these ports as *in other use* (they have a configuration that SBF did not make), even if they have no VLANs.
"""

from contextlib import ExitStack

import pytest
from support.emulators.attached_switch import attach_switch
from support.sbf_fakes.world import World, spec

from sbf_service.drivers.contract import SwitchScope
from sbf_service.drivers.switch import linux_bridge
from sbf_service.drivers.switch.candidates import cisco_iosxr, juniper_junos
from sbf_service.drivers.switch.dialects import hp_procurve
from sbf_service.drivers.switch.observed_state import derive_port_use
from virtcloud.model.cluster import ClusterState
from virtcloud.model.values import Name, PortName
from virtcloud.model.vlans import VlanSet

MEMBERS = {
    "cisco_ios": "channel-group 1 mode active",
    "cisco_nxos": "channel-group 1 mode active",
    "arista_eos": "channel-group 1 mode active",
    "arista_eapi": "channel-group 1 mode active",
    "dell_os10": "channel-group 1 mode active",
    "aruba_aoscx": "lag 1",
    "hp_comware": "port link-aggregation group 1",
}
ROUTED = {
    "cisco_ios": "ip address 192.0.2.1 255.255.255.0",
    "cisco_nxos": "ip address 192.0.2.1/24",
    "arista_eos": "ip address 192.0.2.1/24",
    "arista_eapi": "ip address 192.0.2.1/24",
    "dell_os10": "ip address 192.0.2.1/24",
    "aruba_aoscx": "ip address 192.0.2.1/24",
    "hp_comware": "ip address 192.0.2.1 255.255.255.0",
}
JUNOS = (
    "<configuration><interfaces><interface><name>ge-0/0/1</name>{}</interface></interfaces>"
    "<vlans><vlan><name>a</name><vlan-id>5</vlan-id></vlan></vlans></configuration>"
)


@pytest.fixture
def database(sqlite_database: str) -> str:
    return sqlite_database


def create_refused_cluster(world: World, platform: str, line: str) -> str:
    """Add ``line`` to a port's configuration, and request a cluster on the port. Return the error report."""
    with ExitStack() as stack:
        switch = stack.enter_context(attach_switch(world, platform))
        switch.running.ports[switch.port_names[0]].lines.append(line)
        before = switch.running_config()
        assert line in before
        world.put("c1", spec("brno-h1", "brno-h2"))
        world.settle()
        assert world.view("c1").state is ClusterState.CONFIGURING
        assert switch.running_config() == before
        return str(world.element("brno-sw1").trouble)


@pytest.mark.parametrize("platform", MEMBERS)
def test_a_member_of_an_aggregate_is_refused_without_a_change(platform: str, world: World) -> None:
    trouble = create_refused_cluster(world, platform, MEMBERS[platform])
    assert (
        "expected a port without other use, found a member of a link aggregate: the port was left unchanged" in trouble
    )
    assert "'virtcloud element adopt brno-sw1 " in trouble


@pytest.mark.parametrize("platform", ROUTED)
def test_a_routed_port_is_refused_without_a_change(platform: str, world: World) -> None:
    trouble = create_refused_cluster(world, platform, ROUTED[platform])
    assert "expected a port without other use, found a routed port: the port was left unchanged" in trouble


def test_a_member_of_a_procurve_trunk_is_recognized() -> None:
    output = 'hostname "sw"\ntrunk A1-A2 Trk1 lacp\nvlan 1\n   name "DEFAULT_VLAN"\n   untagged 1-4,Trk1\n   exit\n'
    ports = hp_procurve.parse_answers([output]).ports
    assert [name for name, port in ports.items() if port.member] == ["A1", "A2"]
    assert str(derive_port_use(ports["A2"])) == "a member of a link aggregate"


@pytest.mark.parametrize(
    ("line", "use"),
    [
        ("bundle id 10 mode active", "a member of a link aggregate"),
        ("ipv4 address 192.0.2.1 255.255.255.0", "a routed port"),
        ("ipv6 address 2001:db8::1/64", "a routed port"),
        ("mtu 9000", "a port without configuration"),
    ],
)
def test_an_ios_xr_port_is_read_with_its_use(line: str, use: str) -> None:
    ports = cisco_iosxr.parse_configuration([f"interface GigabitEthernet0/0/0/1\n {line}\n!\n"]).ports
    assert str(derive_port_use(ports["GigabitEthernet0/0/0/1"])) == use


@pytest.mark.parametrize(
    ("content", "use"),
    [
        (
            "<gigether-options><ieee-802.3ad><bundle>ae0</bundle></ieee-802.3ad></gigether-options>",
            "a member of a link aggregate",
        ),
        ("<unit><name>0</name><family><inet/></family></unit>", "a routed port"),
    ],
)
def test_a_junos_port_is_read_with_its_use(content: str, use: str) -> None:
    ports = juniper_junos.parse_configuration([JUNOS.format(content)]).ports
    assert str(derive_port_use(ports["ge-0/0/1"])) == use


def test_a_linux_port_of_a_bond_is_in_other_use() -> None:
    port = PortName("p1")
    observed = linux_bridge.derive_bridge_state(
        Name("sw1"), {}, SwitchScope((port,), VlanSet.parse("100-199")), members=("p1",)
    )
    assert observed.in_use == (port,)
    assert str(observed.untaken[port]) == "a member of a link aggregate"
