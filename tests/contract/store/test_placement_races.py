"""Tests of clusters that change between the preparation and the transaction of a new topology."""

from collections.abc import Callable
from typing import Any

import pytest
from sqlalchemy import select
from support.sbf_fakes.world import World, spec, three_sites

from sbf_service.domain.paths import find_elements
from sbf_service.domain.topology_effects import TopologyEffects
from sbf_service.store.clusters.live_clusters import read_live_clusters
from sbf_service.store.tables.cluster_tables import PlacementRow
from sbf_service.store.topology.current_topology import read_topology
from sbf_service.store.topology.topology import change_topology
from virtcloud.model.cluster import ClusterState
from virtcloud.model.topology import Topology


def make_topology(first_hosts_at: str) -> Topology:
    """Return three sites with two switches each. The link of each first host leads to the switch ``first_hosts_at``."""
    document = three_sites().model_dump(mode="json", exclude_unset=True)
    for site in document["sites"]:
        name = site["name"]
        site["switches"][0]["ports"].append("down")
        site["switches"].append({"name": f"{name}-sw2", "platform": "fake", "ports": ["p1", "up"]})
        document["links"].append({"a": f"{name}-sw2:up", "b": f"{name}-sw1:down"})
    for link in document["links"]:
        if link["a"].endswith("-h1:eth0"):
            link["b"] = link["b"].replace("sw1", first_hosts_at)
    return Topology.model_validate(document)


def create(world: World) -> None:
    world.put("new", spec("brno-h1", "plzen-h1"))


def join(world: World) -> None:
    """The network gets its first transport and another VLAN ID, so the stored values of the creating cluster change."""
    world.put("member", spec(hosts=["praha-h1"], joins="local"))


def end(world: World) -> None:
    world.delete("wide")


def replace(world: World) -> None:
    """The new cluster has the former cluster's key and another ID."""
    world.delete("wide")
    world.settle()
    world.put("wide", spec("praha-h1"))


def end_member(world: World) -> None:
    world.delete("guest")
    world.settle()


@pytest.mark.parametrize("meanwhile", [create, join, end, replace, end_member])
@pytest.mark.parametrize("switches", [("sw1", "sw2"), ("sw2", "sw1")], ids=["added", "left"])
def test_placements_follow_clusters_that_change_meanwhile(
    world: World, monkeypatch: pytest.MonkeyPatch, meanwhile: Callable[[World], None], switches: tuple[str, str]
) -> None:
    """Each live cluster is placed on its new path, and must be confirmed again if the path differs."""
    before, after = map(make_topology, switches)
    world.put_topology(before)
    world.put("wide", spec("brno-h2", "praha-h1", "plzen-h1"))
    world.put("local", spec("brno-h1", "brno-h2"))
    world.put("guest", spec(hosts=["praha-h2"], joins="wide"))
    world.settle()
    prepare = TopologyEffects.prepare

    def prepare_slowly(*arguments: Any) -> None:
        prepare(*arguments)
        monkeypatch.undo()
        meanwhile(world)

    monkeypatch.setattr(TopologyEffects, "prepare", prepare_slowly)
    change_topology(world.store, lambda former: former.share_parts(after), who="eva")
    with world.store.read() as unit:
        topology, live = read_topology(unit), read_live_clusters(unit)
        placed = unit.session.scalars(select(PlacementRow).where(PlacementRow.removed_revision.is_(None))).all()
        assert {(one.cluster_id, one.element) for one in placed} == {
            (one.id, name) for one in live for name in find_elements(topology, one)
        }
        keys = {one.key for one in live}
    world.sweep()
    assert {key for key in keys if world.view(key).state is ClusterState.ACTIVE} <= {"guest"}
    world.settle()
    assert {world.view(key).state for key in keys} == {ClusterState.ACTIVE}
