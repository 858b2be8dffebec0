"""Tests that the search for due transitions reads only clusters with a due transition. The search runs every second."""

import pytest
from sbf_fakes.world import World, spec

from sbf_service.store.cluster_queries import find_clusters
from sbf_service.store.leases import record_agent_heartbeat
from sbf_service.store.tables import ElementRow
from sbf_service.store.transitions import has_due_transition
from virtcloud.model.cluster import ClusterState


def read_by_a_sweep(world: World) -> list[str]:
    with world.store.read() as unit:
        return [
            row.key for row in find_clusters(unit, has_due_transition(unit.now, world.service.settings.timing.drain))
        ]


@pytest.fixture
def well(world: World) -> World:
    """Two active clusters at different hosts. The second cluster has a lease of one hour."""
    world.put("a", spec("brno-h1"))
    world.put("b", spec("praha-h1", lease_s=3600))
    world.settle()
    assert {world.view(key).state for key in ("a", "b")} == {ClusterState.ACTIVE}
    return world


def test_clusters_that_are_well_are_not_read(well: World) -> None:
    assert read_by_a_sweep(well) == []


def test_a_cluster_whose_lease_is_over_is_read(well: World) -> None:
    well.clock.advance(3600)
    assert read_by_a_sweep(well) == ["b"]


@pytest.mark.parametrize("change", [{"reachable": False}, {"confirmed_revision": 0}])
def test_an_active_cluster_that_lost_an_element_is_read(well: World, change: dict[str, object]) -> None:
    with well.store.change() as unit:
        row = unit.session.get_one(ElementRow, "brno-h1")
        for name, value in change.items():
            setattr(row, name, value)
    assert read_by_a_sweep(well) == ["a"]


def test_a_configuring_cluster_is_read_at_its_deadline(well: World) -> None:
    well.put("c", spec("plzen-h1"))
    assert read_by_a_sweep(well) == []
    well.clock.advance(120)
    assert read_by_a_sweep(well) == ["c"]


def test_a_heartbeat_during_the_sweep_is_respected(world: World) -> None:
    world.settle()
    world.service.scheduler.sweep.clock = lambda: 1e12
    world.clock.advance(151)
    heartbeats = iter([lambda: record_agent_heartbeat(world.store, "praha-h1")])
    world.service.change_feed.add_listener(lambda _changed: next(heartbeats, lambda: None)())
    world.sweep()
    assert world.element("brno-h1").trouble == "its agent has not asked for 150 s: look whether it runs"
    assert world.element("praha-h1").trouble is None
