import pytest
from support.sbf_fakes.http_calls import ask, problem
from support.sbf_fakes.vpn_world import devices, gateway, make_profile, put, stop_agents, topology_with_gateways
from support.sbf_fakes.world import World, spec

from virtcloud.model.access import Role
from virtcloud.model.cluster import ClusterState
from virtcloud.model.errors import Conflict, NoGateway
from virtcloud.model.topology import Topology
from virtcloud.model.views import PlacementProgress


def test_a_cluster_with_vpn_has_gateways_from_its_creation(world: World) -> None:
    world.put("demo", spec("brno-h1", "praha-h1", vpn=True))
    world.settle()
    assert [part.element for part in world.view("demo").placements if part.kind == "gateway"] == ["brno-gw", "brno-gw2"]


def test_a_cluster_without_profiles_has_no_gateways(world: World) -> None:
    put(world)
    assert world.wanted_of_host("brno-gw").segments == ()


def test_an_unreachable_gateway_is_not_chosen(world: World) -> None:
    stop_agents(world, "brno-gw")
    put(world, vpn=True)
    assert world.view("demo").state is ClusterState.ACTIVE
    assert [part.element for part in world.view("demo").placements if part.kind == "gateway"] == ["brno-gw2"]


def test_a_cluster_is_active_while_one_of_its_gateways_answers(world: World) -> None:
    put(world, vpn=True)
    stop_agents(world, "brno-gw")
    assert world.view("demo").state is ClusterState.ACTIVE
    stop_agents(world, "brno-gw2")
    assert world.view("demo").state is ClusterState.DEGRADED


def test_a_gateway_that_dies_during_set_up_fails_no_cluster(world: World) -> None:
    world.dead_hosts.add("brno-gw")
    world.put("demo", spec("brno-h1", vpn=True))
    assert "brno-gw" in {part.element for part in world.view("demo").placements}
    world.settle()
    assert world.view("demo").state is ClusterState.ACTIVE


def test_a_new_profile_adds_a_gateway_if_another_died(world: World, alice: str) -> None:
    world.put_topology(topology_with_gateways(brno=tuple(gateway(f"brno-gw{n}") for n in range(3))))
    world.settle()
    put(world, vpn=True)
    stop_agents(world, "brno-gw0")
    assert make_profile(world, alice).json()["gateways"] == ["brno-gw1", "brno-gw2", "brno-gw0"]


def test_a_cluster_without_a_gateway_names_sites_and_gateways(world: World, alice: str) -> None:
    put(world, "demo", "plzen-h1")
    failed = make_profile(world, alice)
    assert problem(failed)[:2] == (409, "no-gateway")
    assert "expected a gateway with an OpenVPN server at plzen, got none" in problem(failed)[2]
    assert "brno-gw at brno, brno-gw2 at brno, praha-gw at praha" in problem(failed)[2]


def test_a_cluster_with_vpn_is_refused_without_a_gateway(world: World) -> None:
    with pytest.raises(NoGateway, match="at plzen"):
        world.put("demo", spec("plzen-h1", vpn=True))


def test_a_member_has_gateways_after_a_former_sites_removal(world: World) -> None:
    """A network keeps its VLAN ID at a site until the network ends, even without members at this site."""
    put(world)
    put(world, "guests", "praha-h1", joins="demo", guests=[], hosts=["praha-h1"])
    world.delete("guests")
    world.settle()
    document = world.topology().model_dump(mode="json")
    sites = [site for site in document["sites"] if site["name"] != "praha"]
    links = [link for link in document["links"] if "praha" not in f"{link}"]
    world.put_topology(Topology.model_validate(document | {"sites": sites, "links": links}))
    put(world, "more", "brno-h2", joins="demo", guests=[], hosts=["brno-h2"], vpn=True)
    assert "brno-gw" in {part.element for part in world.view("more").placements}


def test_a_dry_run_shows_the_gateways(world: World, alice: str) -> None:
    request = {"spec": spec("brno-h1", vpn=True).model_dump(mode="json")}
    answer = ask(world, "PUT", "/v1/clusters/demo?dry_run=true", request, token=alice).json()
    assert "brno-gw" in {element["element"] for element in answer["elements"]}
    assert world.wanted_of_host("brno-gw").segments == ()


def test_a_members_gateway_is_connected_to_the_network(world: World, alice: str) -> None:
    world.put_topology(topology_with_gateways(praha=(gateway("praha-gw"),)))
    world.settle()
    put(world, "demo", "brno-h1", "praha-h1")
    put(world, "more", joins="demo", guests=[], hosts=["brno-h2"])
    assert make_profile(world, alice, "more").json()["gateways"] == ["praha-gw"]
    world.settle()
    assert world.view("more").state is ClusterState.ACTIVE
    assert {part.element for part in world.view("more").placements} >= {"praha-gw", "praha-sw1", "brno-h2"}


def test_only_agents_receive_the_gateways_private_key(world: World) -> None:
    path = "/v1/elements/brno-gw/wanted"
    shown = ask(world, "GET", path, token=world.token(Role.OPERATOR, "eva")).text
    assert ("PRIVATE KEY" in shown, "tls-crypt-v2 server" in shown) == (False, False)
    received = ask(world, "GET", path, token=world.token(Role.AGENT, "brno-gw")).json()
    assert received["wanted"]["vpn"]["private_key"].startswith("-----BEGIN PRIVATE KEY")


def test_a_gateway_without_vpn_loses_its_clusters(world: World, alice: str) -> None:
    put(world)
    make_profile(world, alice)
    world.settle()
    world.put_topology(topology_with_gateways(brno=({"name": "brno-gw", "ports": ["eth0"]}, gateway("brno-gw2"))))
    world.settle()
    placed = {part.element: part.progress for part in world.view("demo").placements}
    assert placed["brno-gw"] is PlacementProgress.REMOVED
    wanted = world.wanted_of_host("brno-gw")
    assert (wanted.segments, wanted.vpn) == ((), None)
    assert devices(world, "brno-gw2") == ["laptop"]
    assert world.view("demo").state is ClusterState.ACTIVE


def test_a_gateway_in_use_cannot_be_removed(world: World, alice: str) -> None:
    used = gateway("brno-gw", ssh={"address": "gw.example.org"})
    world.put_topology(topology_with_gateways(brno=(used, gateway("brno-gw2"))))
    put(world)
    make_profile(world, alice)
    with pytest.raises(Conflict, match=r"cluster demo .* needs brno-gw, .* first remove `vpn`, `ssh` of the gateway"):
        world.put_topology(topology_with_gateways(brno=(gateway("brno-gw2"),)))


def test_a_gateway_can_be_removed_after_its_vpn_server(world: World, alice: str) -> None:
    put(world)
    make_profile(world, alice)
    world.put_topology(topology_with_gateways(brno=({"name": "brno-gw", "ports": ["eth0"]}, gateway("brno-gw2"))))
    world.settle()
    world.put_topology(topology_with_gateways(brno=(gateway("brno-gw2"),)))
    world.settle()
    assert world.view("demo").state is ClusterState.ACTIVE
    assert make_profile(world, alice).json()["gateways"] == ["brno-gw2"]
