import pytest
from support.sbf_fakes.world import World, spec, three_edges

from sbf_service.store.vlans.quarantine import declare_clean
from virtcloud.model.cluster import ClusterState
from virtcloud.model.errors import Conflict
from virtcloud.model.topology import Topology
from virtcloud.model.values import VlanId

TWO_SITES = spec("brno-h1", "praha-h1")


VPLS = {"name": "vpls", "kind": "vpls", "vpn_id": 7, "asn": 65000}


@pytest.fixture
def world(edge_world: World) -> World:
    return edge_world


def two_edges_at_brno(at: str) -> Topology:
    document = three_edges().model_dump(mode="json")
    brno = document["sites"][0]
    brno["switches"][0]["ports"].append("uplink2")
    brno["edges"].append(brno["edges"][0] | {"name": "brno-pe2", "loopback": "192.0.2.11"})
    brno["attachments"][0]["port"] = f"{at}:ac"
    document["links"].append({"a": "brno-sw1:uplink2", "b": "brno-pe2:ac"})
    return Topology.model_validate(document)


def test_a_cluster_moves_between_edges_of_a_site(world: World) -> None:
    world.put_topology(two_edges_at_brno("brno-pe1"))
    world.put("demo", TWO_SITES)
    world.settle()
    world.put_topology(two_edges_at_brno("brno-pe2"))
    world.settle()
    assert world.edges["brno-pe1"].carried() == []
    assert world.edges["brno-pe2"].carried() == [("ac", 100, 10100)]
    assert world.switches["brno-sw1"].carried() == {"p1": "100", "uplink2": "100"}
    assert world.view("demo").state is ClusterState.ACTIVE


def test_a_new_edge_becomes_a_peer_of_the_other_edges(world: World) -> None:
    world.put_topology(two_edges_at_brno("brno-pe2"))
    world.settle()
    assert world.edges["praha-pe1"].backbones[-1].peers == {"evpn": ("192.0.2.11", "192.0.2.3")}


@pytest.mark.parametrize(
    ("vnis", "why"),
    [("10101-10199", "change its kind or its service IDs"), (None, "vanish")],
    ids=["shrinks", "vanishes"],
)
@pytest.mark.parametrize("when", ["active", "draining", "released"])
def test_a_transport_in_use_keeps_its_ids(world: World, when: str, vnis: str | None, why: str) -> None:
    world.put("demo", TWO_SITES)
    world.settle()
    if when != "active":
        world.edges["praha-pe1"].cut_off = when == "released"
        world.delete("demo")
    remedy = "keep the transport until its users have ended"
    if when == "released":
        world.settle()
        world.clock.advance(61)
        world.settle()
        remedy = (
            "wait until every element has confirmed the removal; if an element will never return, an administrator can "
            "declare the cluster's VLAN ID clean (virtcloud pool clean SITE VLAN --cluster KEY --reason TEXT)"
        )
    replacement = {"name": "evpn", "kind": "evpn", "vnis": vnis, "asn": 65000} if vnis else VPLS
    with pytest.raises(Conflict) as caught:
        world.put_topology(three_edges(replacement))
    assert str(caught.value).splitlines()[0] == (
        f"transport evpn would {why}, and is in use: service ID 10100 by cluster demo ({when}); {remedy}"
    )


def test_a_transport_with_observed_circuits_cannot_be_removed(world: World) -> None:
    """An administrator declared the observed circuit's VLAN ID clean, but SBF has not read the edge since."""
    world.put("demo", TWO_SITES)
    world.settle()
    world.edges["praha-pe1"].cut_off = True
    world.delete("demo")
    for _ in range(2):
        world.clock.advance(61)
        world.settle()
    with world.store.change() as unit:
        declare_clean(unit, "praha", VlanId(100), "looked myself", world.service.settings.timing.drain)
    assert not world.view("demo").quarantined
    with pytest.raises(
        Conflict, match="in use: service ID 10100 by VLAN 100, last seen on praha-pe1; keep the transport until"
    ):
        world.put_topology(three_edges(VPLS))


def test_a_transport_may_grow_and_another_may_be_added(world: World) -> None:
    world.put("demo", TWO_SITES)
    world.settle()
    larger = {"name": "evpn", "kind": "evpn", "vnis": "10000-10299", "asn": 65000}
    world.put_topology(three_edges(VPLS, larger))
    world.settle()
    assert world.view("demo").joined.transport == "evpn"
    assert world.put("next", TWO_SITES).view.joined.transport == "vpls"
    world.settle()
    assert world.edges["brno-pe1"].carried() == [("ac", 100, 10100), ("ac", 101, 7)]


def test_a_site_of_a_running_cluster_stays_on_its_transport(world: World) -> None:
    world.put("demo", TWO_SITES)
    document = world.topology().model_dump(mode="json")
    document["sites"][0]["attachments"] = []
    with pytest.raises(Conflict, match="cluster demo needs brno on transport evpn: end the cluster first"):
        world.put_topology(Topology.model_validate(document))


def test_an_edge_that_carries_a_cluster_cannot_be_removed(world: World) -> None:
    world.put_topology(two_edges_at_brno("brno-pe2"))
    world.put("demo", TWO_SITES)
    world.settle()
    with pytest.raises(Conflict, match="needs brno-pe2, which would vanish"):
        world.put_topology(three_edges())
