from support.sbf_fakes.world import World, spec

from sbf_service.store.clusters.transitions import fail_refused_clusters
from virtcloud.model.cluster import ClusterState


def test_a_cluster_becomes_active_when_every_element_confirmed(world: World) -> None:
    world.settle()
    world.put("demo", spec("brno-h1", "praha-h2"))
    assert world.view("demo").state is ClusterState.CONFIGURING
    world.converge_switches()
    assert world.view("demo").state is ClusterState.CONFIGURING
    world.confirm_hosts()
    view = world.view("demo")
    assert view.state is ClusterState.ACTIVE
    assert view.vlans == {"brno": 100, "praha": 100}
    assert world.switches["brno-sw1"].carried() == {"p1": "100", "uplink": "100"}
    assert world.switches["praha-sw1"].carried() == {"p2": "100", "uplink": "100"}
    assert world.switches["plzen-sw1"].carried() == {}


def test_deletion_removes_everything_and_releases_the_vlan_ids(world: World) -> None:
    world.put("demo", spec("brno-h1", "praha-h2"))
    world.settle()
    assert world.delete("demo").state is ClusterState.DRAINING
    world.settle()
    view = world.view("demo")
    assert view.state is ClusterState.RELEASED
    assert view.vlans == {}
    assert not view.quarantined
    assert world.switches["brno-sw1"].carried() == {}
    assert str(world.site("brno").claimed) == ""
    assert str(world.site("brno").free) == "100-139"


def test_an_active_cluster_is_not_ended_by_a_refusal(world: World) -> None:
    cluster = world.put("a", spec("brno-h1")).view
    world.settle()
    assert world.view("a").state is ClusterState.ACTIVE
    with world.store.change(who="brno-h1") as unit:
        fail_refused_clusters(unit, "brno-h1", {cluster.id: "image x not found"}, world.service.settings.timing.drain)
    assert world.view("a").state is ClusterState.ACTIVE
