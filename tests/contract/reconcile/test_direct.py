"""Tests of sites that dedicated circuits connect (transport ``direct``). SBF configures only the switches."""

from collections.abc import Iterator

import pytest
from support.sbf_fakes.world import World, spec, three_sites

from virtcloud.model.cluster import ClusterState
from virtcloud.model.errors import NoVlanFree


@pytest.fixture
def world(database: str) -> Iterator[World]:
    world = World(database)
    world.furnish(topology=three_sites(transports=[{"name": "core", "kind": "direct"}]))
    world.settle()
    yield world
    world.close()


def test_a_direct_cluster_is_tagged_on_both_uplinks(world: World) -> None:
    world.put("demo", spec("brno-h1", "praha-h1"))
    world.settle()
    view = world.view("demo")
    assert (view.state, view.joined.kind, view.joined.service) == (ClusterState.ACTIVE, "direct", None)
    for name in ("brno-sw1", "praha-sw1"):
        assert world.switches[name].carried() == {"p1": "100", "uplink": "100"}
    assert world.switches["plzen-sw1"].carried() == {}


def test_an_ended_direct_cluster_leaves_no_configuration(world: World) -> None:
    world.put("demo", spec("brno-h1", "praha-h1"))
    world.settle()
    world.delete("demo")
    world.settle()
    assert world.view("demo").state is ClusterState.RELEASED
    assert world.switches["brno-sw1"].carried() == {}


def test_dedicated_circuits_use_one_vlan_id(world: World) -> None:
    world.put_pool("praha", "200-209")
    with pytest.raises(NoVlanFree, match="the transport between the sites cannot translate VLAN IDs"):
        world.put("demo", spec("brno-h1", "praha-h1"))
