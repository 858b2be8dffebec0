"""Tests of the invariants (docs/explanation/invariants.md) of provider edges and of the service IDs of transports."""

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from threading import Barrier

import pytest
from sqlalchemy import insert
from sqlalchemy.exc import IntegrityError
from support.sbf_fakes.world import World, spec, three_edges

from sbf_service.store.clusters.cluster_creation import put_cluster
from sbf_service.store.tables.vlan_tables import ServiceClaimRow
from virtcloud.model.cluster import ClusterRequest, ClusterState
from virtcloud.model.edge import Circuit, CircuitRemnant
from virtcloud.model.errors import NoVlanFree
from virtcloud.model.values import Name, PortName, VlanId

TWO_SITES = spec("brno-h1", "praha-h1")


@pytest.fixture
def world(database: str) -> Iterator[World]:
    """Three sites with an EVPN transport that has eight service IDs. Tests run on SQLite and on PostgreSQL."""
    world = World(database)
    world.furnish(topology=three_edges({"name": "evpn", "kind": "evpn", "vnis": "10100-10107", "asn": 65000}))
    yield world
    world.close()


def circuit(vlan: int, service: int, port: str = "ac") -> Circuit:
    return Circuit(transport=Name("evpn"), port=PortName(port), vlan=VlanId(vlan), service=service)


def test_invariant_1_racing_replicas_allocate_each_service_once(world: World) -> None:
    """Two replicas get twelve simultaneous requests for the eight service IDs of a transport."""
    other = world.restarted()
    stores = [world.store, other.store] * 6
    start = Barrier(12)

    def create(number: int) -> object:
        start.wait()
        request = ClusterRequest(spec=TWO_SITES)
        try:
            result = put_cluster(stores[number], f"c{number}", request, world.service.reserved, "alice")
        except NoVlanFree as error:
            return type(error).__name__
        return result.view.joined.service

    with ThreadPoolExecutor(12) as threads:
        answers = sorted(map(str, threads.map(create, range(12))))
    other.store.close()
    assert answers == [*map(str, range(10100, 10108)), *["NoVlanFree"] * 4]


def test_invariant_1_the_database_refuses_a_second_service_claim(world: World) -> None:
    world.put("a", TWO_SITES)
    other = world.put("b", spec("plzen-h1")).view
    twice = insert(ServiceClaimRow).values(transport="evpn", number=10100, cluster_id=other.id)
    with (
        world.store.engine.begin() as connection,
        pytest.raises(IntegrityError, match=r"UNIQUE|unique constraint \"pk_service_claims\""),
    ):
        connection.execute(twice)


def test_invariant_1_without_a_service_id_no_vlan_is_claimed(world: World) -> None:
    for number in range(8):
        world.put(f"c{number}", TWO_SITES)
    with pytest.raises(NoVlanFree):
        world.put("late", TWO_SITES)
    assert str(world.site("brno").claimed) == "100-107"


@pytest.mark.parametrize("last", ["brno-pe1", "praha-sw1", "praha-h1"])
def test_invariant_2_confirmed_removals_free_a_service(world: World, last: str) -> None:
    for number in range(8):
        world.put(f"c{number}", TWO_SITES)
    world.settle()
    world.edges[last].cut_off = world.switches[last].cut_off = True
    world.dead_hosts.add(last)
    world.delete("c0")
    world.settle()
    with pytest.raises(NoVlanFree):
        world.put("next", TWO_SITES)
    world.edges[last].cut_off = world.switches[last].cut_off = False
    world.dead_hosts.clear()
    world.settle()
    assert world.put("next", TWO_SITES).view.joined.service == 10100


@pytest.mark.parametrize("fault", ["cut_off", "refuses", "lies", "unsafe", "breaks"])
def test_invariant_3_an_edge_converges_after_any_failure(world: World, fault: str) -> None:
    edge = world.edges["brno-pe1"]
    setattr(edge, fault, True)
    world.put("demo", TWO_SITES)
    world.settle()
    assert world.view("demo").state is ClusterState.CONFIGURING
    setattr(edge, fault, False)
    edge.cut_off = False
    world.settle()
    assert (world.view("demo").state, edge.carried(), edge.parts) == (ClusterState.ACTIVE, [("ac", 100, 10100)], set())


def test_invariant_4_only_managed_services_are_removed(world: World) -> None:
    managed, foreign = {circuit(105, 10105)}, {circuit(105, 20000), circuit(7, 10106)}
    world.settle()
    world.edges["brno-pe1"].circuits = managed | foreign
    world.edges["brno-pe1"].parts = {CircuitRemnant(transport=Name("evpn"), service=10107)}
    world.clock.advance(world.service.settings.timing.drift_interval)
    world.settle()
    assert (world.edges["brno-pe1"].circuits, world.edges["brno-pe1"].parts) == (foreign, set())


def test_invariant_5_an_edge_that_ignores_commands_activates_no_cluster(world: World) -> None:
    world.edges["praha-pe1"].lies = True
    world.put("demo", TWO_SITES)
    world.settle()
    assert world.view("demo").state is ClusterState.CONFIGURING


def test_invariant_7_a_repeated_request_claims_no_second_service(world: World) -> None:
    world.put("demo", TWO_SITES)
    again = world.put("demo", TWO_SITES)
    assert (again.created, again.view.joined.service) == (False, 10100)
    assert world.put("next", TWO_SITES).view.joined.service == 10101


def test_invariant_8_edge_changes_are_audited_before_they_are_sent(world: World) -> None:
    world.settle()
    audited: list[str] = []
    world.edges["brno-pe1"].before_apply = lambda: audited.extend(
        row.difference or "" for row in world.audit("edge_change") if row.element == "brno-pe1"
    )
    world.put("demo", TWO_SITES)
    world.settle()
    added = '{"transport":"evpn","port":"ac","vlan":100,"service":10100}'
    assert audited == [f'{{"add":[{added}]}}']
    assert world.audit("edge_change")[0].why == "revision 3 for demo"
