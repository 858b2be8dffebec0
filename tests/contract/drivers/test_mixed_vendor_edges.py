"""Tests of a cluster whose transport connects emulated edges of three vendors."""

from collections.abc import Iterator
from dataclasses import dataclass, field

import pytest
from support.emulators.clients import DirectLine
from support.emulators.edge_bench import EDGES
from support.emulators.edge_device import EmulatedEdge as Emulated
from support.sbf_fakes.edges import FakeEdges
from support.sbf_fakes.world import World, spec, three_edges

from sbf_service.drivers.contract import Backbone, DeviceLogin, EdgePlatform
from sbf_service.drivers.edge.command_line_edge import CommandLineEdge
from sbf_service.drivers.edge.dialects import EDGE_DIALECTS
from virtcloud.model.cluster import ClusterState
from virtcloud.model.element import Edge
from virtcloud.model.topology import Topology

ALL = spec("brno-h1", "praha-h1", "plzen-h1")
PLATFORMS = {"brno": "cisco_iosxe", "praha": "juniper_junos", "plzen": "cisco_iosxr"}
POOLS = {"brno": "100-119", "praha": "200-219", "plzen": "300-319"}
VPLS = {"name": "vpls", "kind": "vpls", "vpn_ids": "10100-10199", "asn": 65000}


@dataclass
class EmulatedEdges(FakeEdges):
    """Emulates every edge as a device of the edge's platform, without SSH."""

    devices: dict[str, Emulated] = field(default_factory=dict)

    def platform_of(self, edge: Edge) -> EdgePlatform:
        dialect = EDGE_DIALECTS[edge.platform]

        def driver(login: DeviceLogin, backbone: Backbone) -> CommandLineEdge:
            device = self.devices.setdefault(edge.name, EDGES[edge.platform]())
            return CommandLineEdge(edge, dialect, backbone, DirectLine(device))

        return EdgePlatform(dialect.capabilities, driver)


def mixed_topology() -> Topology:
    document = three_edges(VPLS).model_dump(mode="json")
    for site in document["sites"]:
        (edge,) = site["edges"]
        edge["platform"] = PLATFORMS[site["name"]]
        ports = EDGES[edge["platform"]].port_names
        edge["ports"], edge["core_port"] = [ports[1]], ports[-1]
        site["attachments"][0]["port"] = f"{edge['name']}:{ports[1]}"
        for link in document["links"]:
            link["b"] = link["b"].replace(f"{edge['name']}:ac", f"{edge['name']}:{ports[1]}")
    return Topology.model_validate(document)


@pytest.fixture
def world(database: str) -> Iterator[World]:
    edges = EmulatedEdges()
    world = World(database, edges=edges)
    world.put_topology(mixed_topology())
    for site, pool in POOLS.items():
        world.put_pool(site, pool)
    world.settle()
    yield world
    world.close()


def devices(world: World) -> dict[str, Emulated]:
    assert isinstance(world.edges, EmulatedEdges)
    return world.edges.devices


def test_a_cluster_over_three_vendors_is_set_up_and_removed(world: World) -> None:
    before = {name: device.running_config() for name, device in devices(world).items()}
    world.put("demo", ALL)
    world.settle()
    assert world.view("demo").state == ClusterState.ACTIVE
    assert {name: device.reached() for name, device in devices(world).items()} == {
        "brno-pe1": {10100: {("GigabitEthernet0/0/1", 100)}},
        "praha-pe1": {10100: {("ge-0/0/1", 200)}},
        "plzen-pe1": {10100: {("GigabitEthernet0/0/0/1", 300)}},
    }
    world.delete("demo")
    world.settle()
    assert world.view("demo").state == ClusterState.RELEASED
    assert {name: device.running_config() for name, device in devices(world).items()} == before


def test_every_edge_has_all_others_as_neighbours(world: World) -> None:
    """RFC 4762 requires a full mesh, in which the loopback identifies each edge."""
    world.put("demo", ALL)
    world.settle()
    configurations = {name: device.running_config() for name, device in devices(world).items()}
    assert "neighbor 192.0.2.2 encapsulation mpls\n neighbor 192.0.2.3 encapsulation mpls" in configurations["brno-pe1"]
    assert (
        "protocols vpls neighbor 192.0.2.1\nset routing-instances vc-10100 protocols vpls neighbor 192.0.2.3"
        in (configurations["praha-pe1"])
    )
    assert "neighbor 192.0.2.1 pw-id 10100\n    neighbor 192.0.2.2 pw-id 10100" in configurations["plzen-pe1"]


def test_a_circuit_removed_by_an_administrator_is_restored(world: World) -> None:
    world.put("demo", ALL)
    world.settle()
    device = devices(world)["brno-pe1"]
    device.configure("no l2 vfi vc-10100 manual")
    world.clock.advance(301)
    world.settle()
    assert world.view("demo").state == ClusterState.ACTIVE
    assert device.reached() == {10100: {("GigabitEthernet0/0/1", 100)}}


def test_a_restarted_edge_with_half_a_circuit_is_repaired(world: World) -> None:
    """The session is lost after the command for the VFI. The next session creates the missing service instance."""
    device = devices(world)["brno-pe1"]
    device.fail("disconnect", "^service instance 100 ")
    world.put("demo", ALL)
    world.settle()
    world.clock.advance(60)
    world.settle()
    assert world.view("demo").state == ClusterState.ACTIVE
    assert device.reached() == {10100: {("GigabitEthernet0/0/1", 100)}}
