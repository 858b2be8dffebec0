from collections.abc import Callable
from dataclasses import replace

import pytest
from support.emulators.edge_bench import (
    PARTS,
    READY,
    EdgeBench,
    edge_driver_for,
    open_direct_bench,
)
from support.emulators.edge_junos import EdgeJunos

from virtcloud.model.edge import (
    NO_SERVICE,
    CircuitRemnant,
    EdgeObserved,
    EdgeWanted,
    compare_edge,
    find_blocked_circuits,
)
from virtcloud.model.errors import Refused, Unreachable, Unsafe
from virtcloud.model.switch_state import ForeignVlan
from virtcloud.model.values import PortName, VlanId
from virtcloud.model.vlans import VlanSet

MakeBench = Callable[..., EdgeBench]


def erase_ports(bench: EdgeBench) -> None:
    for name in bench.ports:
        bench.device.running.ports[name] = type(bench.device).new_port()


@pytest.mark.parametrize("platform", READY)
def test_an_unused_port_becomes_a_trunk_after_the_read_back(platform: str) -> None:
    bench = open_direct_bench(platform, "evpn")
    erase_ports(bench)
    bench.device.commands.clear()
    assert not bench.converge(112)
    assert bench.device.running.ports[bench.ports[0]].allowed == {112}
    commands = bench.device.commands
    empty_list, trunk = commands.index("switchport trunk allowed vlan none"), commands.index("switchport mode trunk")
    assert any(line.startswith("show") for line in commands[empty_list:trunk])
    assert empty_list < trunk < commands.index("vlan 112")


@pytest.mark.parametrize("platform", READY)
def test_an_ignored_empty_list_makes_no_port_a_trunk(platform: str) -> None:
    bench = open_direct_bench(platform, "evpn")
    erase_ports(bench)
    bench.device.fail("ignore", "allowed vlan none$", times=100)
    with pytest.raises(Refused, match="wanted an empty list of allowed VLANs before the port becomes a trunk"):
        bench.converge(112)
    assert bench.device.running.ports[bench.ports[0]].mode != "trunk"
    assert 112 not in bench.device.running.vlans


@pytest.mark.parametrize("platform", READY)
def test_an_incomplete_circuit_is_read_as_remnants(platform: str) -> None:
    bench = open_direct_bench(platform, "evpn")
    bench.device.configure("vlan 112", "name vc-10112", "vlan 113", f"interface {bench.ports[1]}")
    bench.device.configure(f"interface {bench.ports[1]}", "switchport trunk allowed vlan add 114")
    name = bench.transport.name
    assert bench.read().parts == (
        CircuitRemnant(transport=name, service=10112, vlan=VlanId(112)),
        CircuitRemnant(transport=name, service=10100, vlan=VlanId(113)),
        CircuitRemnant(transport=name, service=NO_SERVICE, port=bench.ports[1], vlan=VlanId(114)),
    )
    assert not bench.converge()
    assert set(bench.device.running.vlans) == {1}


@pytest.mark.parametrize("platform", ["arista_eos", "cisco_nxos"])
@pytest.mark.parametrize(("name", "shown"), [((), None), (("name offices",), "offices")])
def test_a_vlan_that_sbf_did_not_create_is_left_unchanged(platform: str, name: tuple[str, ...], shown: str) -> None:
    bench = open_direct_bench(platform, "evpn")
    bench.device.configure("vlan 112", *name)
    before = bench.device.running_config()
    unrecorded = replace(bench.managed, created=VlanSet())
    wanted = EdgeWanted(circuits=(bench.circuit(112),))
    observed = bench.driver.read(unrecorded)
    assert observed.foreign == (ForeignVlan(vlan=VlanId(112), name=shown),)
    assert not compare_edge(wanted, observed)
    assert str(find_blocked_circuits(wanted, observed)) == "112"
    assert bench.device.running_config() == before


def test_an_eos_without_bgp_is_refused_without_a_change() -> None:
    bench = open_direct_bench("arista_eos", "evpn")
    bench.device.fail("print", "^show", text="interface Ethernet2\n   switchport\ninterface Ethernet3", times=9)
    before = bench.device.running_config()
    with pytest.raises(Refused, match="edge pe1: expected a BGP process, found none"):
        bench.converge(112)
    assert bench.device.running_config() == before


def test_a_circuit_that_names_two_services_is_recreated() -> None:
    bench = open_direct_bench("cisco_iosxe", "vpls")
    bench.converge(112)
    (lines,) = bench.device.units("GigabitEthernet0/0/1").values()
    lines[lines.index("description vc-10112")] = "description vc-10150"
    assert bench.read().circuits == ()
    assert not bench.converge(112)
    assert "description vc-10112" in bench.device.running_config()


@pytest.mark.parametrize("kind", ["vpls", "shared"])
def test_a_vfi_without_a_neighbour_is_recreated(kind: str, make_edge_bench: MakeBench) -> None:
    bench = make_edge_bench("cisco_iosxe", kind)
    bench.converge(112)
    (lines,) = bench.device.services.values()
    lines.remove("neighbor 10.0.0.3 encapsulation mpls")
    service = bench.circuit(112).service
    assert bench.read().parts == (
        CircuitRemnant(transport=bench.transport.name, service=service, port=bench.ports[0], vlan=VlanId(112)),
    )
    assert not bench.converge(112)
    assert "neighbor 10.0.0.3 encapsulation mpls" in bench.device.running_config()


def test_frames_keep_their_vlan_tag_only_in_a_shared_vfi(make_edge_bench: MakeBench) -> None:
    for kind, rewrites in (("shared", 0), ("vpls", 2)):
        bench = make_edge_bench("cisco_iosxe", kind)
        bench.converge(112, 120)
        assert bench.device.running_config().count("rewrite ingress tag pop 1 symmetric") == rewrites


BDI = "interface BDI112\n ip address 192.0.2.1 255.255.255.0"
CUSTOMER = "l2 vfi CUST manual\n vpn id 500\n bridge-domain 112"
INSTANCE = "interface GigabitEthernet0/0/3\n service instance 5 ethernet\n  encapsulation dot1q 5\n  bridge-domain 112"


def print_ios_xe_blocks(bench: EdgeBench, *added: str) -> None:
    shown = "\n".join([bench.device.running_config().removesuffix("end"), *added, "end"])
    bench.device.fail("print", "^show running-config", text=shown, times=9)


@pytest.mark.parametrize(
    ("block", "other"),
    [
        (BDI, ForeignVlan(vlan=VlanId(112), ports=(PortName("BDI112"),))),
        (CUSTOMER, ForeignVlan(vlan=VlanId(112), name="CUST")),
        (INSTANCE, ForeignVlan(vlan=VlanId(112), ports=(PortName("GigabitEthernet0/0/3"),))),
    ],
)
@pytest.mark.parametrize("kind", ["vpls", "qinq"])
def test_a_bridge_domain_in_other_use_blocks_only_its_vlan(kind: str, block: str, other: ForeignVlan) -> None:
    bench = open_direct_bench("cisco_iosxe", kind)
    print_ios_xe_blocks(bench, block)
    wanted = EdgeWanted(circuits=(bench.circuit(112), bench.circuit(120)))
    observed = bench.read()
    assert observed.foreign == (other,)
    assert compare_edge(wanted, observed).add == (bench.circuit(120),)
    assert str(find_blocked_circuits(wanted, observed)) == "112"


def test_bridge_domains_of_the_pool_are_free_with_shared_vfis() -> None:
    bench = open_direct_bench("cisco_iosxe", "shared")
    print_ios_xe_blocks(bench, BDI, CUSTOMER, INSTANCE)
    assert bench.read() == EdgeObserved()


@pytest.mark.parametrize("block", [BDI, CUSTOMER, INSTANCE])
def test_other_use_of_a_shared_bridge_domain_is_unsafe(block: str) -> None:
    bench = open_direct_bench("cisco_iosxe", "shared")
    print_ios_xe_blocks(bench, block.replace("112", "77"))
    with pytest.raises(Unsafe, match=r"edge pe1: expected only .*: this configuration was left unchanged"):
        bench.read()


def test_incomplete_circuits_of_bridge_domains_in_other_use_are_deleted() -> None:
    bench = open_direct_bench("cisco_iosxe", "vpls")
    bench.device.configure(f"interface {bench.ports[0]}", "service instance 112 ethernet")
    bench.device.configure("l2 vfi CUST manual", "vpn id 500", "bridge-domain 112")
    with pytest.raises(Refused, match="edge pe1: expected no other use of bridge domain 112, found vfi 112: ") as error:
        bench.converge(112, 120)
    assert error.value.about.keys() == {112}
    assert bench.read() == EdgeObserved(
        circuits=(bench.circuit(120),), foreign=(ForeignVlan(vlan=VlanId(112), name="CUST"),)
    )


def test_a_shared_vpn_id_above_4094_is_refused(make_edge_bench: MakeBench) -> None:
    bench = make_edge_bench("cisco_iosxe", "shared")
    bench.transport = bench.transport.model_copy(update={"vpn_id": 5000})
    bench.driver = edge_driver_for(bench.device, bench.transport, *bench.ports)
    with pytest.raises(Refused, match="expected a vpn_id up to 4094 for IOS-XE, got 5000"):
        bench.converge(112)


def test_a_shared_vpn_id_in_the_pool_is_unsafe() -> None:
    bench = open_direct_bench("cisco_iosxe", "shared")
    bench.transport = bench.transport.model_copy(update={"vpn_id": 112})
    with pytest.raises(Unsafe, match="expected the vpn_id of transport shared outside the pool, got 112"):
        bench.read()


def test_a_junos_locked_by_another_user_is_tried_again() -> None:
    bench = open_direct_bench("juniper_junos", "vpls")
    device = bench.device
    assert isinstance(device, EdgeJunos)
    device.locked = True
    with pytest.raises(Unreachable, match=r"is being configured by another user: .*locked by: alice .*SBF tries again"):
        bench.converge(112)
    device.locked = False
    assert not bench.converge(112)


def print_junos_statements(bench: EdgeBench, *added: str) -> None:
    shown = [*bench.device.running_config().splitlines(), *added]
    interfaces, instances = ([line for line in shown if f" {part} " in line] for part in PARTS)
    bench.device.fail("print", "^show configuration interfaces", text="\n".join(interfaces))
    bench.device.fail("print", "^show configuration routing", text="\n".join(instances))


def test_deactivated_configuration_on_junos_is_unsafe() -> None:
    bench = open_direct_bench("juniper_junos", "vpls")
    bench.converge(112)
    print_junos_statements(bench, "deactivate routing-instances vc-10112")
    with pytest.raises(
        Unsafe, match="edge pe1: expected only SBF's configuration on managed VLANs, found instance vc-10112"
    ):
        bench.read()


@pytest.mark.parametrize(
    ("statements", "is_down"),
    [
        (("set interfaces ge-0/0/1 disable",), True),
        (("deactivate interfaces ge-0/0/1",), True),
        (("set interfaces ge-0/0/1 disable", "deactivate interfaces ge-0/0/1 disable"), False),
    ],
)
def test_a_junos_port_is_down_if_disabled_or_deactivated(statements: tuple[str, ...], is_down: bool) -> None:
    bench = open_direct_bench("juniper_junos", "vpls")
    bench.converge(112)
    print_junos_statements(bench, *statements)
    circuit = bench.circuit(112)
    assert bench.read() == EdgeObserved(circuits=(circuit,), down=(circuit,) if is_down else ())


@pytest.mark.parametrize("kind", ["vpls", "shared"])
def test_only_subinterfaces_of_shared_services_filter_and_keep_tags(kind: str) -> None:
    """Without the filter, a frame of one VLAN would leave through the subinterfaces of all VLANs."""
    bench = open_direct_bench("cisco_iosxr", kind)
    bench.converge(112, 120)
    shown = bench.device.running_config()
    counts = shown.count("ethernet egress-filter strict"), shown.count("rewrite ingress tag pop 1 symmetric")
    assert counts == ((2, 0) if kind == "shared" else (0, 2))
