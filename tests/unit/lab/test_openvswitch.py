from pathlib import Path

import pytest

from virtcloud.lab import network
from virtcloud.lab.fabric.plan import LabNode, VethPair
from virtcloud.lab.lab_file import read_lab_file
from virtcloud.lab.layout import fabric_plan
from virtcloud.lab.node_services import LabMaterials
from virtcloud.model.errors import BadDocument

FILE = Path(__file__).parents[2] / "lab/topologies/paths.yaml"
LAB = read_lab_file(FILE)


@pytest.fixture(scope="module")
def nodes() -> dict[str, LabNode]:
    keys = dict.fromkeys(("sw1", "sw2", "sw3", "psw"), "key")
    return {node.name: node for node in fabric_plan(LAB, LabMaterials("/state", "ssh", keys)).nodes}


def test_a_new_open_vswitch_has_trunks_without_vlans(nodes: dict[str, LabNode]) -> None:
    assert nodes["sw1"].files["/run/openvswitch/begin.sh"].splitlines() == [
        "set -e",
        (
            "ovs-vsctl --no-wait br-exists br0 || ovs-vsctl --no-wait -- init -- add-br br0 "
            "-- set bridge br0 datapath_type=netdev "
            "-- add-port br0 to2 vlan_mode=trunk trunks=4095 -- add-port br0 to3 vlan_mode=trunk trunks=4095 "
            "-- add-port br0 h3 vlan_mode=trunk trunks=4095 -- add-port br0 edge vlan_mode=trunk trunks=4095"
        ),
        'exec ovs-vswitchd unix:/run/openvswitch/db.sock "$@"',
    ]
    assert [service.name for service in nodes["sw1"].services] == ["ovsdb-server", "ovs-vswitchd", "sshd"]


def test_senders_to_an_open_vswitch_have_no_offloads(nodes: dict[str, LabNode]) -> None:
    assert {name: node.no_offload_ports for name, node in nodes.items() if node.no_offload_ports} == {
        "sw2": ("to1",),
        "sw3": ("to1",),
        "h3": ("eth0",),
        "core": ("brno",),
    }


def test_an_aggregate_is_a_bond_on_switches_and_hosts(nodes: dict[str, LabNode]) -> None:
    assert nodes["sw2"].ip[3:6] == (
        "link add lag3 mtu 1508 type bond mode 802.3ad miimon 100 lacp_rate fast",
        "link set lag3a master lag3",
        "link set lag3b master lag3",
    )
    assert nodes["h2"].ip[-4:] == (
        "link add bond0 mtu 1500 type bond mode 802.3ad miimon 100 lacp_rate fast",
        "link set eth0 master bond0",
        "link set eth1 master bond0",
        "link set bond0 up",
    )


def test_a_link_between_aggregates_has_a_cable_per_member() -> None:
    cables = [cable for cable in network.cables(LAB) if cable.node == "sw2" and cable.peer_node == "sw3"]
    assert cables == [
        VethPair("sw2", "lag3a", 1508, "sw3", "lag2a", 1508),
        VethPair("sw2", "lag3b", 1508, "sw3", "lag2b", 1508),
    ]


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("openvswitch", "cisco_ios", "switch sw1: expected a platform that the lab builds (linux_bridge, openvswitch)"),
        ("lag3a, lag3b", "lag3a, lag3-long-member", "port sw2:lag3-long-member: expected a name of a Linux interf"),
        (
            "edge]}\n      - {name: sw2",
            "edge], aggregates: {edge: [e1, e2]}}\n      - {name: sw2",
            "port sw1:edge: expected one cable to the lab's core, got an aggregate",
        ),
    ],
    ids=["a platform", "a member's name", "an aggregate to the core"],
)
def test_a_lab_file_with_unsupported_parts_is_refused(tmp_path: Path, old: str, new: str, message: str) -> None:
    text = FILE.read_text()
    assert old in text
    (tmp_path / "lab.yaml").write_text(text.replace(old, new, 1))
    with pytest.raises(BadDocument) as caught:
        read_lab_file(tmp_path / "lab.yaml")
    assert message in str(caught.value)
