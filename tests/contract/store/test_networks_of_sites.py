"""Tests of networks that are created without hosts, and retain their VLAN IDs when hosts join and leave."""

import pytest
from support.sbf_fakes.world import EVPN, World, three_edges, three_sites

from virtcloud.model.cluster import ClusterSpec, ClusterState
from virtcloud.model.errors import Conflict, NoVlanFree
from virtcloud.model.topology import Topology


def network(*sites: str) -> ClusterSpec:
    return ClusterSpec.model_validate({"owner": "pbs", "sites": sites})


def member(host: str) -> ClusterSpec:
    return ClusterSpec.model_validate({"owner": "pbs", "joins": "lab", "hosts": [host]})


def test_a_network_without_hosts_claims_its_vlan_id(world: World) -> None:
    world.put("lab", network("brno", "praha"))
    world.settle()
    view = world.view("lab")
    assert (view.state, view.vlans) == (ClusterState.ACTIVE, {"brno": 100, "praha": 100})
    assert {str(part.kind) for part in view.placements} == {"switch"}


def test_a_one_site_network_without_hosts_is_active(world: World) -> None:
    world.put("lab", network("brno"))
    world.settle()
    assert (world.view("lab").state, world.view("lab").placements) == (ClusterState.ACTIVE, ())


def test_the_vlan_id_stays_while_hosts_change(world: World) -> None:
    world.put("lab", network("brno"))
    world.put("lab_brno-h1", member("brno-h1"))
    world.put("lab_brno-h2", member("brno-h2"))
    world.settle()
    assert world.switches["brno-sw1"].carried() == {"p1": "100", "p2": "100"}
    world.delete("lab_brno-h1")
    world.settle()
    assert world.switches["brno-sw1"].carried() == {"p2": "100"}
    assert (world.view("lab").state, world.view("lab_brno-h1").state) == (ClusterState.ACTIVE, ClusterState.RELEASED)


def test_a_host_at_another_site_extends_the_network(world: World) -> None:
    world.put("lab", network("brno"))
    world.put("lab_praha-h1", member("praha-h1"))
    world.settle()
    assert world.view("lab").vlans == {"brno": 100, "praha": 100}
    assert world.view("lab_praha-h1").state is ClusterState.ACTIVE


def test_the_end_of_a_network_releases_its_vlan_id(world: World) -> None:
    world.put("lab", network("brno", "praha"))
    world.put("lab_brno-h1", member("brno-h1"))
    world.settle()
    world.delete("lab")
    world.settle()
    assert (world.view("lab").state, world.view("lab_brno-h1").state) == (ClusterState.RELEASED, ClusterState.RELEASED)
    assert str(world.site("brno").claimed) == ""
    assert world.switches["brno-sw1"].carried() == {}


def test_no_other_cluster_gets_the_vlan_id(world: World) -> None:
    world.put("lab", network("brno"))
    world.settle()
    other = ClusterSpec.model_validate({"owner": "bob", "hosts": ["brno-h1"], "vlan": 100})
    with pytest.raises(NoVlanFree):
        world.put("other", other)


def test_edges_connect_a_networks_sites_before_any_host_joins(world: World) -> None:
    world.furnish(topology=three_edges(EVPN))
    world.put("lab", network("brno", "praha"))
    world.put("lab_praha-h1", member("praha-h1"))
    world.settle()
    assert [part.element for part in world.view("lab").placements] == ["brno-pe1", "brno-sw1", "praha-pe1", "praha-sw1"]
    assert world.view("lab_praha-h1").state is ClusterState.ACTIVE
    world.delete("lab")
    world.settle()
    assert world.view("lab").state is ClusterState.RELEASED


def test_a_site_of_a_network_cannot_be_removed(world: World) -> None:
    world.put("lab", network("praha"))
    world.settle()
    left = three_sites().model_dump(mode="json")
    left["sites"] = [one for one in left["sites"] if one["name"] != "praha"]
    left["links"] = [one for one in left["links"] if "praha" not in str(one)]
    with pytest.raises(Conflict, match="cluster lab names site praha, which would vanish: end the cluster first"):
        world.put_topology(Topology.model_validate(left))
