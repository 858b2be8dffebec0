import pytest
from support.sbf_fakes.http_calls import ask, body, problem
from support.sbf_fakes.world import World, spec, three_edges

from sbf_service.reconcile.worker import ReconcileOutcome
from virtcloud.model.cluster import ClusterState
from virtcloud.model.edge import Circuit, CircuitRemnant
from virtcloud.model.errors import NoVlanFree
from virtcloud.model.values import Name, PortName, VlanId

TWO_SITES = spec("brno-h1", "praha-h1")


VPLS = {"name": "vpls", "kind": "vpls", "vpn_id": 7, "asn": 65000}


QINQ = {"name": "qinq", "kind": "qinq", "s_tags": "3000-3009"}


@pytest.fixture
def world(edge_world: World) -> World:
    return edge_world


def circuit(vlan: int, service: int, transport: str = "evpn") -> Circuit:
    return Circuit(transport=Name(transport), port=PortName("ac"), vlan=VlanId(vlan), service=service)


# Normal operation, from the request to the removal.


def test_a_cluster_gets_one_service_and_a_circuit_per_site(world: World) -> None:
    world.put("demo", TWO_SITES)
    world.settle()
    view = world.view("demo")
    assert (view.state, view.joined.transport, view.joined.kind, view.joined.service) == (
        ClusterState.ACTIVE,
        "evpn",
        "evpn",
        10100,
    )
    assert world.edges["brno-pe1"].carried() == [("ac", 100, 10100)]
    assert world.edges["praha-pe1"].carried() == [("ac", 100, 10100)]
    assert world.edges["plzen-pe1"].carried() == []
    assert world.switches["brno-sw1"].carried() == {"p1": "100", "uplink": "100"}


def test_an_ended_cluster_is_removed_and_its_service_is_free(world: World) -> None:
    world.put("demo", TWO_SITES)
    world.settle()
    world.delete("demo")
    world.settle()
    view = world.view("demo")
    assert (view.state, view.vlans, view.joined.service) == (ClusterState.RELEASED, {}, None)
    assert world.edges["brno-pe1"].carried() == world.edges["praha-pe1"].carried() == []
    reasons = [row.why for row in world.audit("number_freed")]
    assert reasons == ["VLAN 100 at brno", "VLAN 100 at praha", "service 10100 of evpn"]


def test_two_clusters_have_two_services(world: World) -> None:
    for key in ("a", "b"):
        world.put(key, TWO_SITES)
    world.settle()
    assert world.edges["brno-pe1"].carried() == [("ac", 100, 10100), ("ac", 101, 10101)]


def test_a_cluster_of_one_site_needs_no_service(world: World) -> None:
    world.put("demo", spec("brno-h1"))
    world.settle()
    assert (world.view("demo").state, world.view("demo").joined) == (ClusterState.ACTIVE, None)
    assert world.edges["brno-pe1"].applied == []


def test_a_released_service_is_allocated_last(world: World) -> None:
    world.put("a", TWO_SITES)
    world.settle()
    world.delete("a")
    world.settle()
    assert world.put("b", TWO_SITES).view.joined.service == 10101


def test_a_cluster_without_a_free_service_is_refused(world: World) -> None:
    few = {"name": "evpn", "kind": "evpn", "vnis": "10100-10100", "asn": 65000}
    world.put_topology(three_edges(few))
    world.put("a", TWO_SITES)
    with pytest.raises(NoVlanFree, match="no service ID is free on transport evpn: it has 1 service ID"):
        world.put("b", TWO_SITES)


def test_in_a_shared_instance_all_circuits_have_one_service(world: World) -> None:
    world.put_topology(three_edges(VPLS))
    for key in ("a", "b"):
        world.put(key, TWO_SITES)
    world.settle()
    assert world.edges["brno-pe1"].carried() == [("ac", 100, 7), ("ac", 101, 7)]
    assert world.view("a").joined.service == 7


def test_a_qinq_cluster_has_a_service_vlan(world: World) -> None:
    world.put_topology(three_edges(QINQ))
    world.put("demo", TWO_SITES)
    world.settle()
    assert world.edges["praha-pe1"].carried() == [("ac", 100, 3000)]


# Translation of VLAN IDs at provider edges.


def test_translation_gives_each_site_its_own_vlan_id(world: World) -> None:
    for name, pool in (("brno", "100-109"), ("praha", "200-209"), ("plzen", "300-309")):
        world.put_pool(name, pool)
    world.put("demo", spec("brno-h1", "praha-h1", "plzen-h1"))
    world.settle()
    view = world.view("demo")
    assert (view.state, view.vlans) == (ClusterState.ACTIVE, {"brno": 100, "praha": 200, "plzen": 300})
    carried = {name: world.edges[f"{name}-pe1"].carried() for name in ("brno", "praha", "plzen")}
    assert carried == {"brno": [("ac", 100, 10100)], "praha": [("ac", 200, 10100)], "plzen": [("ac", 300, 10100)]}
    assert world.switches["praha-sw1"].carried() == {"p1": "200", "uplink": "200"}
    assert world.wanted_of_host("plzen-h1").segments[0].vlan == 300


def test_a_shared_instance_does_not_translate(world: World) -> None:
    world.put_topology(three_edges(VPLS))
    world.put_pool("brno", "200-209")
    with pytest.raises(NoVlanFree, match="the transport between the sites cannot translate VLAN IDs"):
        world.put("demo", TWO_SITES)


# Failures.


def test_a_cluster_waits_for_an_unreachable_edge(world: World) -> None:
    world.edges["praha-pe1"].cut_off = True
    world.put("demo", TWO_SITES)
    world.settle()
    view = world.view("demo")
    troubles = {part.element: part.trouble for part in view.placements if part.trouble}
    assert view.state is ClusterState.CONFIGURING
    assert troubles == {"praha-pe1": "edge praha-pe1 (fake) does not answer: cut off; SBF tries again"}
    world.edges["praha-pe1"].cut_off = False
    world.settle()
    assert world.view("demo").state is ClusterState.ACTIVE


def test_remnants_of_an_interrupted_change_are_cleared(world: World) -> None:
    edge = world.edges["praha-pe1"]
    edge.breaks = True
    world.put("demo", TWO_SITES)
    world.settle()
    remnant = CircuitRemnant(transport=Name("evpn"), service=10100)
    assert (world.view("demo").state, edge.parts) == (ClusterState.CONFIGURING, {remnant})
    edge.breaks = edge.cut_off = False
    world.settle()
    assert (world.view("demo").state, edge.parts, edge.carried()) == (ClusterState.ACTIVE, set(), [("ac", 100, 10100)])
    assert edge.applied[-1].clear == (remnant,)


def test_a_change_made_before_an_edge_failed_is_not_repeated(world: World) -> None:
    edge = world.edges["brno-pe1"]
    edge.cut_off_after = len(edge.calls) + 2
    world.put("demo", TWO_SITES)
    assert world.converge("brno-pe1") is ReconcileOutcome.FAILED
    edge.cut_off_after, edge.cut_off = None, False
    changes = len(edge.applied)
    assert world.converge("brno-pe1") is ReconcileOutcome.CONFIRMED
    assert len(edge.applied) == changes


def test_a_refusing_edge_fails_the_cluster_with_its_output(world: World) -> None:
    world.edges["praha-pe1"].refuses = True
    world.put("demo", TWO_SITES)
    world.settle()
    world.clock.advance(121)
    world.settle()
    view = world.view("demo")
    assert view.state is ClusterState.FAILED
    assert view.reason == (
        "not set up in time: edge praha-pe1 at praha has not confirmed "
        '(edge praha-pe1: the device answered "% Invalid input")'
    )
    assert world.edges["brno-pe1"].carried() == []


def test_an_edge_that_ignores_commands_is_not_confirmed(world: World) -> None:
    world.edges["brno-pe1"].lies = True
    world.put("demo", TWO_SITES)
    assert world.converge("brno-pe1") is ReconcileOutcome.FAILED
    assert world.element("brno-pe1").trouble == (
        "edge brno-pe1: wanted VLAN 100 on port ac in service 10100 of evpn, found none: "
        "read back after the change; check the device's configuration"
    )


def test_an_edge_with_an_unknown_answer_is_left_unchanged(world: World) -> None:
    edge = world.edges["brno-pe1"]
    edge.unsafe = True
    world.put("demo", TWO_SITES)
    assert world.converge("brno-pe1") is ReconcileOutcome.FAILED
    assert edge.applied == []


def test_circuits_are_restored_after_an_edge_restarts_empty(world: World) -> None:
    world.put("demo", TWO_SITES)
    world.settle()
    world.edges["brno-pe1"].restart()
    world.clock.advance(301)
    world.settle()
    assert world.edges["brno-pe1"].carried() == [("ac", 100, 10100)]
    events = [row.what for row in world.audit()][-5:]
    assert events == ["element_drifted", "cluster_degraded", "edge_change", "element_confirmed", "cluster_active"]


def test_an_outdated_startup_configuration_is_corrected(world: World) -> None:
    world.put("demo", TWO_SITES)
    world.settle()
    world.delete("demo")
    world.settle()
    world.edges["brno-pe1"].circuits = {circuit(100, 10100)}
    world.clock.advance(301)
    world.settle()
    assert world.edges["brno-pe1"].carried() == []


def test_foreign_circuits_on_an_edge_are_left_unchanged(world: World) -> None:
    foreign = {circuit(100, 20000), circuit(999, 10100)}
    world.edges["brno-pe1"].circuits = set(foreign)
    world.put("demo", TWO_SITES)
    world.settle()
    assert world.edges["brno-pe1"].circuits == {*foreign, circuit(100, 10100)}


def test_an_unconfirmed_edge_quarantines_vlan_and_service(world: World) -> None:
    few = {"name": "evpn", "kind": "evpn", "vnis": "10100-10100", "asn": 65000}
    world.put_topology(three_edges(few))
    world.put("demo", TWO_SITES)
    world.settle()
    world.edges["praha-pe1"].cut_off = True
    world.delete("demo")
    world.clock.advance(61)
    world.settle()
    world.clock.advance(61)
    world.settle()
    view = world.view("demo")
    assert (view.state, view.quarantined, view.joined.service) == (ClusterState.RELEASED, True, 10100)
    with pytest.raises(NoVlanFree, match="all in use, 1 of them in quarantine"):
        world.put("next", TWO_SITES)
    world.edges["praha-pe1"].cut_off = False
    world.settle()
    assert world.put("next", TWO_SITES).view.joined.service == 10100


def test_a_session_is_reused(world: World) -> None:
    for key in ("a", "b", "c"):
        world.put(key, TWO_SITES)
        world.settle()
    assert len(world.edges["brno-pe1"].backbones) == 1


def test_an_edges_backbone_lists_transports_and_peers(world: World) -> None:
    (backbone,) = world.edges["brno-pe1"].backbones
    assert [transport.name for transport in backbone.transports] == ["evpn"]
    assert backbone.peers == {"evpn": ("192.0.2.2", "192.0.2.3")}


def test_a_hundred_new_clusters_are_one_change(world: World) -> None:
    for name in ("brno", "praha"):
        world.put_pool(name, "100-299")
    world.settle()
    for number in range(100):
        world.put(f"c{number}", TWO_SITES)
    changes = len(world.edges["brno-pe1"].applied)
    world.converge_switches()
    assert len(world.edges["brno-pe1"].applied) == changes + 1
    assert len(world.edges["brno-pe1"].circuits) == 100


# Dry runs, and differences read on demand.


def test_a_dry_run_lists_service_and_circuits(world: World) -> None:
    answer = ask(world, "PUT", "/v1/clusters/demo?dry_run=true", body("brno-h1", "praha-h1")).json()
    assert answer["joined"] == {"transport": "evpn", "kind": "evpn", "service": 10100, "mtu": None}
    edge = next(element for element in answer["elements"] if element["element"] == "brno-pe1")
    added = {"transport": "evpn", "port": "ac", "vlan": 100, "service": 10100}
    assert edge["edge"] == {"clear": [], "remove": [], "add": [added]}
    assert world.edges["brno-pe1"].applied == []


def test_a_difference_can_be_read_from_the_edge(world: World) -> None:
    world.edges["brno-pe1"].circuits = {circuit(100, 10150)}
    stored = ask(world, "GET", "/v1/elements/brno-pe1/difference").json()
    read = ask(world, "GET", "/v1/elements/brno-pe1/difference?read=true").json()
    assert stored["edge"]["remove"] == []
    assert read["edge"]["remove"] == [{"transport": "evpn", "port": "ac", "vlan": 100, "service": 10150}]
    assert world.edges["brno-pe1"].applied == []


def test_reconciling_an_edge_on_demand_returns_the_change(world: World) -> None:
    world.edges["brno-pe1"].parts = {CircuitRemnant(transport=Name("evpn"), service=10150)}
    answer = ask(world, "POST", "/v1/elements/brno-pe1/reconcile").json()
    assert answer["mended"]["clear"] == [{"transport": "evpn", "service": 10150, "port": None, "vlan": None}]
    assert world.edges["brno-pe1"].parts == set()
    assert ask(world, "GET", "/v1/audit?element=brno-pe1").json()[-2]["what"] == "edge_change"


def test_the_circuits_of_an_edge_are_shown(world: World) -> None:
    world.put("demo", TWO_SITES)
    world.settle()
    answer = ask(world, "GET", "/v1/elements/brno-pe1").json()
    assert (answer["kind"], answer["carried"]) == ("edge", None)
    assert answer["circuits"] == [{"transport": "evpn", "port": "ac", "vlan": 100, "service": 10100}]


def test_an_edge_has_no_agent(world: World) -> None:
    answer = ask(world, "GET", "/v1/elements/brno-pe1/wanted")
    assert (
        problem(answer)[2]
        == "edge brno-pe1 has no agent, because SBF itself configures the edge: only agents of hosts and gateways "
        "make this call"
    )


def test_a_shut_port_of_an_edge_degrades_its_cluster(world: World) -> None:
    world.put("demo", spec("brno-h1", "praha-h1", lease_s=86400))
    world.settle()
    world.edges["brno-pe1"].shut = True
    world.clock.advance(3600)
    world.converge("brno-pe1")
    world.sweep()
    assert world.view("demo").state is ClusterState.DEGRADED
    expected = "VLAN 100 on port ac in service 10100 of evpn: expected an enabled circuit"
    assert expected in world.element("brno-pe1").trouble
    world.edges["brno-pe1"].shut = False
    world.clock.advance(3600)
    world.converge("brno-pe1")
    world.sweep()
    assert (world.view("demo").state, world.element("brno-pe1").trouble) == (ClusterState.ACTIVE, None)
