from pathlib import Path

import pytest

from virtcloud.cli.lab import up
from virtcloud.lab import frr, network
from virtcloud.lab.addressing import with_addresses
from virtcloud.lab.fabric.plan import LabNode, VethPair
from virtcloud.lab.lab_file import LabFile, read_lab_file, shipped_labs
from virtcloud.lab.layout import fabric_plan
from virtcloud.lab.node_services import LabMaterials
from virtcloud.model.element import Edge
from virtcloud.model.errors import BadInput

LAB = read_lab_file(Path(__file__).parents[2] / "lab/topologies/edges.yaml")
KEYS = {f"{site}-{device}": "key" for site in ("brno", "praha", "plzen") for device in ("sw1", "pe1")}
MATERIALS = LabMaterials("/state", "ssh-ed25519 AAAA", KEYS)


@pytest.fixture
def nodes() -> dict[str, LabNode]:
    return {node.name: node for node in fabric_plan(LAB, MATERIALS).nodes}


def test_an_edge_is_a_bridge_linked_to_each_core(
    nodes: dict[str, LabNode],
) -> None:
    assert nodes["brno-pe1"].ip[3:] == (
        "link add br0 mtu 1508 type bridge vlan_filtering 1 vlan_default_pvid 0 mcast_snooping 0",
        "link set br0 up",
        "link set ac master br0 up",
        "addr add 10.255.0.1/32 dev lo",
        "link set core up",
        "addr add 192.0.2.5/31 dev overlay",
        "link set overlay up",
        "route add 10.255.0.2/32 via 192.0.2.4",
        "route add 10.255.0.3/32 via 192.0.2.4",
    )
    assert nodes["brno-pe1"].bridge == ()


def test_an_evpn_fabric_is_a_plain_router(nodes: dict[str, LabNode]) -> None:
    core = nodes["overlay"]
    assert core.ip[3:] == (
        "addr add 192.0.2.4/31 dev brno",
        "link set brno up",
        "route add 10.255.0.1/32 via 192.0.2.5",
        "addr add 192.0.2.8/31 dev praha",
        "link set praha up",
        "route add 10.255.0.2/32 via 192.0.2.9",
        "addr add 192.0.2.12/31 dev plzen",
        "link set plzen up",
        "route add 10.255.0.3/32 via 192.0.2.13",
    )
    assert (core.bridge, core.services, core.sysctls["net.ipv4.ip_forward"]) == ((), (), "1")


def test_a_qinq_core_carries_all_service_vlans_tagged(nodes: dict[str, LabNode]) -> None:
    assert (
        "type bridge vlan_filtering 1 vlan_default_pvid 0 mcast_snooping 0 vlan_protocol 802.1ad"
        in (nodes["stags"].ip[3])
    )
    assert nodes["stags"].bridge == (
        "vlan add dev brno vid 2000-2099",
        "vlan add dev praha vid 2000-2099",
        "vlan add dev br0 vid 2000-2099 self",
    )


def test_a_dedicated_circuit_carries_every_vlan(nodes: dict[str, LabNode]) -> None:
    assert nodes["circuit"].bridge == (
        "vlan add dev brno vid 1-4094",
        "vlan add dev plzen vid 1-4094",
        "vlan add dev br0 vid 1-4094 self",
    )


def test_ports_of_an_evpn_fabric_have_the_mtu_for_vxlan() -> None:
    cables = network.cables(LAB)
    assert VethPair("brno-pe1", "overlay", 1600, "overlay", "brno", 1600) in cables
    assert VethPair("brno-pe1", "core", 1508, "stags", "brno", 1508) in cables
    assert VethPair("brno-sw1", "uplink", 1508, "brno-pe1", "ac", 1508) in cables
    assert VethPair("brno-sw1", "circuit", 1508, "circuit", "brno", 1508) in cables


def test_latency_of_an_attachment_is_between_edge_and_core(nodes: dict[str, LabNode]) -> None:
    assert nodes["brno-pe1"].tc == ("qdisc add dev overlay root netem limit 10000 delay 1ms",)
    assert nodes["overlay"].tc == ("qdisc add dev brno root netem limit 10000 delay 1ms",)


def test_only_one_edge_of_a_pair_opens_the_bgp_connection() -> None:
    configs = {name: frr.frr_files(edge(name), LAB)["/run/frr/bgpd.conf"] for name in ("brno-pe1", "praha-pe1")}
    assert " neighbor 10.255.0.2 peer-group edges\n neighbor 10.255.0.3" in configs["brno-pe1"]
    assert (
        " neighbor 10.255.0.1 peer-group edges\n neighbor 10.255.0.1 passive\n neighbor 10.255.0.3 peer-group edges\n"
        in (configs["praha-pe1"])
    )
    assert "router bgp 65000\n bgp router-id 10.255.0.2\n" in configs["praha-pe1"]


def test_frr_runs_only_on_edges_of_an_evpn_fabric(nodes: dict[str, LabNode]) -> None:
    assert [service.name for service in nodes["brno-pe1"].services] == ["sshd", "zebra", "bgpd"]
    assert {service.name for name, node in nodes.items() if node.kind != "edge" for service in node.services} == {
        "sshd",
        "libvirtd",
        "agent",
    }
    unattached = edge("brno-pe1").model_copy(update={"name": "unattached-pe1"})
    assert (frr.frr_files(unattached, LAB), frr.frr_services(unattached, LAB)) == ({}, ())


def test_edges_of_the_topology_have_address_and_credential() -> None:
    edges = [edge for site in with_addresses(LAB.topology).sites for edge in site.edges]
    assert [(edge.address, edge.credential) for edge in edges] == [
        ("198.18.1.2", "lab"),
        ("198.18.1.5", "lab"),
        ("198.18.1.8", "lab"),
    ]


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        (
            ", loopback: 10.255.0.1",
            "",
            "edge brno-pe1: expected an IPv4 loopback, to which the other edges of overlay connect, got None",
        ),
        (
            ", core_port: core}]\n    hosts: [{name: brno",
            "}]\n    hosts: [{name: brno",
            "edge brno-pe1: expected a core_port for stags that is not one of the ports ac, got None",
        ),
        (
            ", core_port: core}]\n    hosts: [{name: brno",
            ", core_port: overlay}]\n    hosts: [{name: brno",
            "edge brno-pe1: port overlay: expected one transport, got overlay as a second transport",
        ),
        (
            "kind: qinq, s_tags: 2000-2099",
            "kind: vpls, vpn_ids: 2000-2099, asn: 65000",
            "edge brno-pe1: expected a transport of kind direct, qinq or evpn, got stags: the lab's edges have no MPLS",
        ),
        ("ports: [ac], loopback: 10.255.0.1", "ports: [br0], loopback: 10.255.0.1", "port brno-pe1:br0: expected ano"),
    ],
)
def test_an_edge_that_cannot_be_built_is_refused(tmp_path: Path, old: str, new: str, message: str) -> None:
    text = (Path(__file__).parents[2] / "lab/topologies/edges.yaml").read_text()
    assert text.count(old) >= 1
    text = text.replace(old, new, 1)
    (tmp_path / "lab.yaml").write_text(text.replace("brno-pe1:ac", "brno-pe1:br0") if "br0" in new else text)
    with pytest.raises(BadInput) as caught:
        read_lab_file(tmp_path / "lab.yaml")
    assert message in str(caught.value)


def edge(name: str) -> Edge:
    element = LAB.elements[name]
    assert isinstance(element, Edge)
    return element


@pytest.mark.parametrize("name", shipped_labs())
def test_each_shipped_lab_file_is_valid_and_in_the_help(name: str) -> None:
    lab = read_lab_file(Path(name))
    assert (lab.name, set(lab.pools)) == (name, {site.name for site in lab.sites})
    assert name in (up.help or "")


def test_the_pools_of_the_evpn_lab_are_disjoint() -> None:
    vlan_ids = [vlan for vlans in read_lab_file(Path("evpn")).pools.values() for vlan in vlans]
    assert (len(vlan_ids), len(set(vlan_ids))) == (300, 300)


def test_a_shipped_lab_file_is_found_by_its_name() -> None:
    assert isinstance(read_lab_file(Path("metacenter")), LabFile)
    assert read_lab_file() == read_lab_file(Path("metacenter"))


def test_a_folder_with_the_name_of_a_lab_is_ignored(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "metacenter").mkdir()
    monkeypatch.chdir(tmp_path)
    assert read_lab_file().name == "metacenter"
