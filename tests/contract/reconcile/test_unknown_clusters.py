"""Tests of clusters that SBF's database does not contain, on devices where SBF has not managed the VLAN ID before.

SBF leaves the configuration of these clusters unchanged until an administrator declares the device clean.
"""

import pytest
from support.sbf_fakes.http_calls import ask
from support.sbf_fakes.world import World, spec, three_sites

from virtcloud.model.cluster import ClusterState
from virtcloud.model.edge import Circuit
from virtcloud.model.switch_state import ForeignVlan
from virtcloud.model.topology import Topology
from virtcloud.model.values import Name, PortName, VlanId

SWITCH, EDGE = "brno-sw1", "brno-pe1"
LOST = {1: "default", 100: "vc-100", 101: "vc-101"}
REASON = {"reason": "the clusters of the former installation ended"}


def circuit(vlan: int, service: int) -> Circuit:
    return Circuit(transport=Name("evpn"), port=PortName("ac"), vlan=VlanId(vlan), service=service)


def with_address(address: str) -> Topology:
    document = three_sites().model_dump(mode="json")
    (switch,) = (one for site in document["sites"] for one in site["switches"] if one["name"] == SWITCH)
    switch["address"] = address
    return Topology.model_validate(document)


def declare_clean(world: World, name: str) -> None:
    assert ask(world, "POST", f"/v1/elements/{name}/clean", REASON).status_code == 200
    world.settle()


@pytest.fixture
def lost(world: World) -> World:
    """A switch has the VLANs of two clusters that the new database does not contain."""
    switch = world.switches[SWITCH]
    switch.table, switch.ports = dict(LOST), {"p1": {100}, "p2": {101}, "uplink": {100, 101}}
    world.settle()
    return world


def test_unknown_vlans_stay_on_the_switch(lost: World) -> None:
    switch = lost.switches[SWITCH]
    assert (switch.table, switch.carried()) == (LOST, {"p1": "100", "p2": "101", "uplink": "100-101"})
    assert switch.applied == []


def test_unknown_vlans_are_not_free(lost: World) -> None:
    site = lost.site("brno")
    assert (str(site.free), [use.name for use in site.other_use]) == ("102-139", ["vc-100", "vc-101"])


def test_other_clusters_are_set_up_beside_unknown_vlans(lost: World) -> None:
    lost.put("new", spec("brno-h1"))
    lost.settle()
    assert lost.view("new").state is ClusterState.ACTIVE
    assert lost.switches[SWITCH].table == {**LOST, 102: "vc-102"}


def test_the_audit_names_the_remedy(lost: World) -> None:
    reasons = [row.why for row in lost.audit("vlan_excluded")]
    assert len(reasons) == 2
    assert "it is named 'vc-100' like a cluster's VLAN, but this SBF did not create it" in reasons[0]
    assert "virtcloud element clean" in reasons[0]


def test_unknown_vlans_stay_when_a_pool_grows(world: World) -> None:
    switch = world.switches[SWITCH]
    switch.table = {1: "default", 150: "vc-150"}
    world.settle()
    world.put_pool("brno", "100-199")
    world.settle()
    assert switch.table == {1: "default", 150: "vc-150"}


def test_a_switch_declared_clean_loses_the_unknown_vlans(lost: World) -> None:
    declare_clean(lost, SWITCH)
    assert (lost.switches[SWITCH].table, lost.switches[SWITCH].carried()) == ({1: "default"}, {})
    assert str(lost.site("brno").free) == "100-139"


def test_a_second_declaration_changes_nothing(lost: World) -> None:
    declare_clean(lost, SWITCH)
    before = ask(lost, "GET", f"/v1/elements/{SWITCH}").json()
    declare_clean(lost, SWITCH)
    assert ask(lost, "GET", f"/v1/elements/{SWITCH}").json()["wanted_revision"] == before["wanted_revision"]
    assert len(lost.audit("element_said_clean")) == 1


def test_a_vlan_that_an_older_configuration_restores_is_deleted(world: World) -> None:
    switch = world.switches[SWITCH]
    switch.table = {1: "default"}
    world.settle()
    switch.table[100] = "vc-100"
    world.clock.advance(world.service.settings.timing.drift_interval)
    world.settle()
    assert switch.table == {1: "default"}


@pytest.fixture
def lost_circuit(edge_world: World) -> World:
    """An edge has a circuit of a cluster that the database does not contain. The pool has just got the VLAN ID."""
    edge_world.edges[EDGE].circuits = {circuit(150, 10100)}
    edge_world.put_pool("brno", "100-199")
    edge_world.settle()
    return edge_world


def test_unknown_circuits_stay_on_the_edge(lost_circuit: World) -> None:
    edge = lost_circuit.edges[EDGE]
    assert (edge.carried(), edge.applied) == ([("ac", 150, 10100)], [])
    assert "found circuits with VLAN 150" in (lost_circuit.element(EDGE).trouble or "")


def test_an_edge_declared_clean_loses_the_unknown_circuits(lost_circuit: World) -> None:
    declare_clean(lost_circuit, EDGE)
    assert (lost_circuit.edges[EDGE].carried(), lost_circuit.element(EDGE).trouble) == ([], None)


def test_unknown_vlans_stay_on_another_device_with_the_same_name(world: World) -> None:
    world.switches[SWITCH].table = {1: "default"}
    world.put("own", spec("brno-h1"))
    world.settle()
    world.switches[SWITCH].table = {1: "default", 100: "vc-100", 101: "vc-101"}
    world.put_topology(with_address("192.0.2.99"))
    world.settle()
    assert world.switches[SWITCH].table == {1: "default", 100: "vc-100", 101: "vc-101"}
    assert [(use.vlan, use.name) for use in world.site("brno").other_use] == [(101, "vc-101")]


@pytest.mark.parametrize(("name", "hinted"), [("vc-150", True), ("vc-150-2", True), ("vc-200", False), ("vc-x", False)])
def test_the_remedy_is_shown_only_for_names_of_sbf(name: str, *, hinted: bool) -> None:
    assert ("element clean" in ForeignVlan(vlan=VlanId(150), name=name).use) is hinted
