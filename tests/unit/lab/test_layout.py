from dataclasses import replace

import pytest

from virtcloud.lab import network, node_services
from virtcloud.lab.addressing import number_nodes, with_addresses
from virtcloud.lab.fabric.plan import FabricPlan, LabNode, VethPair, plan_from_json, plan_to_json, veth_line
from virtcloud.lab.lab_file import read_lab_file
from virtcloud.lab.layout import fabric_plan, join_plans, station_plan
from virtcloud.lab.node_services import LabMaterials, LldpAccount

LAB = read_lab_file()
KEYS = {f"{site}-sw1": f"key of {site}" for site in ("brno", "praha", "plzen")}
MATERIALS = LabMaterials("/state", "ssh-ed25519 AAAA", KEYS)


@pytest.fixture
def nodes() -> dict[str, LabNode]:
    return {node.name: node for node in fabric_plan(LAB, MATERIALS, uplink="vec0").nodes}


def test_the_layout_contains_all_nodes(nodes: dict[str, LabNode]) -> None:
    assert [(name, node.kind) for name, node in nodes.items()] == [
        ("brno-sw1", "switch"),
        ("brno-h1", "host"),
        ("brno-h2", "host"),
        ("brno-gw1", "gateway"),
        ("praha-sw1", "switch"),
        ("praha-h1", "host"),
        ("praha-h2", "host"),
        ("plzen-sw1", "switch"),
        ("plzen-h1", "host"),
        ("plzen-h2", "host"),
        ("core", "core"),
        ("laptop", "laptop"),
    ]


def test_a_switch_is_a_vlan_aware_bridge_without_any_vlan(nodes: dict[str, LabNode]) -> None:
    assert nodes["praha-sw1"].ip == (
        "link set lo up",
        "addr add 198.18.1.5/16 dev mgmt0",
        "link set mgmt0 up",
        "link add br0 mtu 1508 type bridge vlan_filtering 1 vlan_default_pvid 0 mcast_snooping 0",
        "link set br0 up",
        "link set p1 master br0 up",
        "link set p2 master br0 up",
        "link set uplink master br0 up",
    )
    assert nodes["praha-sw1"].bridge == ()


def test_the_core_puts_a_site_into_its_service_vlan(nodes: dict[str, LabNode]) -> None:
    assert "vlan_protocol 802.1ad" in nodes["core"].ip[3]
    assert nodes["core"].bridge == (
        "vlan add dev brno vid 2000 pvid untagged",
        "vlan add dev praha vid 2000 pvid untagged",
        "vlan add dev plzen vid 2000 pvid untagged",
        "vlan add dev br0 vid 2000 self",
    )


def test_both_ends_of_a_circuit_have_its_latency_and_rate(nodes: dict[str, LabNode]) -> None:
    assert nodes["brno-sw1"].tc == ("qdisc add dev uplink root netem limit 10000 delay 1.5ms rate 1000mbit",)
    assert nodes["core"].tc == (
        "qdisc add dev brno root netem limit 10000 delay 1.5ms rate 1000mbit",
        "qdisc add dev praha root netem limit 10000 rate 1000mbit",
        "qdisc add dev plzen root netem limit 10000 delay 0.5ms rate 1000mbit",
    )


def test_trunks_have_a_larger_mtu_than_hosts() -> None:
    cables = network.cables(LAB)
    assert VethPair("brno-h1", "eth0", 1500, "brno-sw1", "p1", 1508) in cables
    assert VethPair("brno-sw1", "uplink", 1508, "core", "brno", 1508) in cables


def test_a_cable_is_created_with_each_end_in_its_node() -> None:
    cable = VethPair("a", "eth0", 1500, "", "m1", 1500)
    assert veth_line(cable, {"a": 7}) == "link add name eth0 mtu 1500 netns 7 type veth peer name m1 mtu 1500"


def test_a_port_without_a_link_has_a_cable() -> None:
    lab = LAB.model_copy(update={"links": LAB.links[1:]})
    assert VethPair("brno-sw1", "p1", 1508, "", "x0", 1508) in network.cables(lab)


def test_each_kind_of_node_has_its_services(nodes: dict[str, LabNode]) -> None:
    services = {node.kind: [service.name for service in node.services] for node in nodes.values()}
    assert services == {
        "switch": ["sshd"],
        "host": ["libvirtd", "agent"],
        "gateway": ["agent"],
        "core": [],
        "laptop": [],
    }


def test_a_bare_lab_has_neither_sbf_nor_agents() -> None:
    bare = LabMaterials("/state", "key", KEYS, bare=True)
    plan = join_plans(station_plan(bare, tap=False), fabric_plan(LAB, bare))
    assert {service.name for node in plan.nodes for service in node.services} == {"sshd", "libvirtd"}


def test_with_one_kernel_the_station_is_on_the_management_bridge() -> None:
    plan = join_plans(station_plan(MATERIALS, tap=False), fabric_plan(LAB, MATERIALS))
    assert plan.before[:2] == ("link set lo up", "link add mgmt type bridge")
    assert plan.after[-1] == "addr add 198.18.0.1/16 dev mgmt"


def test_switches_of_the_topology_have_address_and_credential() -> None:
    switches = [switch for site in with_addresses(LAB.topology).sites for switch in site.switches]
    assert [(switch.address, switch.credential) for switch in switches] == [
        ("198.18.1.1", "lab"),
        ("198.18.1.5", "lab"),
        ("198.18.1.8", "lab"),
    ]


def test_every_node_of_a_site_can_resolve_all_names(nodes: dict[str, LabNode]) -> None:
    lines = nodes["brno-gw1"].files["/run/etc/hosts"].splitlines()
    assert "198.18.1.2 brno-h1" in lines
    assert len(lines) == 2 + len(number_nodes(LAB)) - 1


def test_the_laptop_knows_the_gateway_and_no_other_node(nodes: dict[str, LabNode]) -> None:
    laptop = nodes["laptop"]
    assert laptop.files["/run/etc/hosts"] == "127.0.0.1 localhost\n198.19.1.4 brno-gw1\n"
    assert laptop.ip == ("link set lo up", "addr add 198.19.1.12/16 dev eth0", "link set eth0 up")


def test_a_plan_is_unchanged_by_json() -> None:
    plan: FabricPlan = fabric_plan(LAB, MATERIALS, uplink="vec0")
    assert plan_from_json(plan_to_json(plan)) == plan


def test_an_agents_settings_contain_the_address_of_sbf() -> None:
    text = node_services.agent_config("brno-h1", LAB.host("brno-h1").hypervisors, "/lab")
    assert 'element = "brno-h1"\nsbf = "http://198.18.0.1:8800"\ntoken_file = "/lab/tokens/brno-h1/token"\n' in text
    assert 'lxc = "lxc:///system"' in text


def test_elements_run_lldpd_if_the_lab_file_requests_it(nodes: dict[str, LabNode]) -> None:
    assert not any(service.name == "lldpd" for node in nodes.values() for service in node.services)
    lldp_nodes = fabric_plan(LAB, replace(MATERIALS, lldp=LldpAccount(104, 109))).nodes
    ports = {node.name: lldpd.argv[-1] for node in lldp_nodes for lldpd in node.services if lldpd.name == "lldpd"}
    assert ports["brno-sw1"] == "p1,p2,p3,uplink"
    assert ports["brno-h1"] == "eth0"
    assert "core" not in ports
    assert "_lldpd:x:104:109:" in lldp_nodes[0].files["/run/etc/passwd"]


def test_only_hosts_and_gateways_have_a_disk(nodes: dict[str, LabNode]) -> None:
    assert {node.kind for node in nodes.values() if node.disk} == {"host", "gateway"}
    assert nodes["brno-h1"].disk == "/state/disks/brno-h1"


def test_a_hosts_disk_has_the_folders_of_agent_and_libvirt(nodes: dict[str, LabNode]) -> None:
    host = nodes["brno-h1"]
    own = {"/run/virtcloud/agent", "/var/lib/libvirt", "/etc/libvirt"}
    assert set(host.disk_folders) == {*own, "/var/log", "/var/spool"}
    assert not set(host.disk_folders) & set(host.tmpfs), "a temporary file system would hide the disk"
