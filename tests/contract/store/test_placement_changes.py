"""Tests of changes of clusters' placements by a new topology."""

from collections import Counter
from collections.abc import Sequence
from typing import Any

import pytest
from sqlalchemy import select
from support.sbf_fakes.poll_calls import counted_statements
from support.sbf_fakes.world import World, spec

from sbf_service.domain.paths import LiveCluster
from sbf_service.domain.topology_effects import TopologyEffects
from sbf_service.domain.wanted import WantedState, compute_wanted
from sbf_service.store.elements.revisions import increment_revisions
from sbf_service.store.tables.cluster_tables import ClusterRow, PlacementRow
from sbf_service.store.topology.current_topology import read_topology
from sbf_service.store.topology.topology import change_topology, put_topology
from sbf_service.store.topology.topology_placements import change_placements
from sbf_service.store.unit_of_work import Unit
from virtcloud.model.cluster import ClusterState
from virtcloud.model.topology import Topology
from virtcloud.model.values import Name

HOST, OTHER = Name("brno-h1"), Name("plzen-h1")


@pytest.fixture
def cluster(world: World) -> str:
    """Create an active cluster on ``HOST``. Return the cluster's ID."""
    world.put("demo", spec(HOST))
    world.settle()
    with world.store.read() as unit:
        return unit.session.scalars(select(ClusterRow.id)).one()


def read_revisions(unit: Unit, cluster: str, element: Name) -> tuple[int, int | None] | None:
    row = unit.session.get(PlacementRow, (cluster, element))
    return None if row is None else (row.added_revision, row.removed_revision)


def increment(unit: Unit, element: Name) -> int:
    return increment_revisions(unit, [element])[element].revision


def test_a_missing_placement_is_added(world: World, cluster: str) -> None:
    with world.store.change() as unit:
        assert read_revisions(unit, cluster, OTHER) is None
        revision = increment(unit, OTHER)
        change_placements(unit, added=[(cluster, OTHER)], left=[])
        assert read_revisions(unit, cluster, OTHER) == (revision, None)


def test_an_existing_placement_must_be_confirmed_again(world: World, cluster: str) -> None:
    with world.store.change() as unit:
        before = read_revisions(unit, cluster, HOST)
        revision = increment(unit, HOST)
        change_placements(unit, added=[(cluster, HOST)], left=[])
        assert before != read_revisions(unit, cluster, HOST) == (revision, None)


def test_loaded_rows_are_read_again(world: World, cluster: str) -> None:
    with world.store.change() as unit:
        row = unit.session.get_one(PlacementRow, (cluster, HOST))
        revision = increment(unit, HOST)
        change_placements(unit, added=[(cluster, HOST)], left=[])
        assert row.added_revision == revision


def test_a_left_placement_ends(world: World, cluster: str) -> None:
    with world.store.change() as unit:
        revision = increment(unit, HOST)
        change_placements(unit, added=[], left=[(cluster, HOST)])
        found = read_revisions(unit, cluster, HOST)
        assert found is not None
        assert found[1] == revision


def test_an_ended_placement_keeps_its_end(world: World, cluster: str) -> None:
    with world.store.change() as unit:
        increment(unit, HOST)
        change_placements(unit, added=[], left=[(cluster, HOST)])
        before = read_revisions(unit, cluster, HOST)
        increment(unit, HOST)
        change_placements(unit, added=[], left=[(cluster, HOST)])
        assert read_revisions(unit, cluster, HOST) == before


def test_a_cluster_returns_to_an_element(world: World, cluster: str) -> None:
    with world.store.change() as unit:
        increment(unit, HOST)
        change_placements(unit, added=[], left=[(cluster, HOST)])
        revision = increment(unit, HOST)
        change_placements(unit, added=[(cluster, HOST)], left=[])
        assert read_revisions(unit, cluster, HOST) == (revision, None)


def test_other_placements_stay(world: World, cluster: str) -> None:
    """Both texts of a pair are compared: another cluster on the same element keeps its placement."""
    world.put("other", spec(HOST))
    world.settle()
    with world.store.change() as unit:
        (other,) = unit.session.scalars(select(ClusterRow.id).where(ClusterRow.id != cluster))
        before = read_revisions(unit, other, HOST)
        increment(unit, HOST)
        change_placements(unit, added=[(cluster, HOST)], left=[(other, OTHER)])
        assert read_revisions(unit, other, HOST) == before


def move_uplinks(topology: Topology, port: str) -> Topology:
    """Return ``topology`` with the link of every host at ``port``."""
    document = topology.model_dump(mode="json")
    for site in document["sites"]:
        for host in site["hosts"]:
            host["ports"] = ["eth0", "eth9"]
    for link in document["links"]:
        element, _, former = link["a"].partition(":")
        link["a"] = f"{element}:{port if former in {'eth0', 'eth9'} else former}"
    return Topology.model_validate(document)


def count_statements(world: World, port: str) -> int:
    with counted_statements(world.service) as statements, world.store.change() as unit:
        put_topology(unit, move_uplinks(read_topology(unit), port))
    return len(statements)


def test_statements_do_not_grow_with_the_clusters(world: World, cluster: str) -> None:
    """Other calls wait for this transaction. A query for each cluster took ten seconds for 10,000 clusters."""
    of_one = count_statements(world, "eth9")
    for number in range(3):
        world.put(f"other{number}", spec("plzen-h1", "plzen-h2"))
    world.settle()
    assert count_statements(world, "eth0") == of_one
    world.sweep()
    assert {world.view(key).state for key in ("demo", "other0", "other2")} == {ClusterState.DEGRADED}
    world.settle()
    assert {world.view(key).state for key in ("demo", "other0", "other2")} == {ClusterState.ACTIVE}


def test_one_statement_increments_all_revisions(world: World, cluster: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The statement has one parameter for all elements, also if a statement may contain only one name."""
    world.put("other", spec("plzen-h1", "plzen-h2"))
    monkeypatch.setattr("sbf_service.store.tables.columns.MAX_PARAMETERS", 1)
    with counted_statements(world.service) as statements, world.store.change() as unit:
        put_topology(unit, move_uplinks(read_topology(unit), "eth9"))
        changed = {"cluster:demo", "cluster:other", "element:brno-h1", "element:plzen-h1", "element:plzen-h2"}
        assert {topic for topic in unit.changed if ":" in topic} == changed
    assert len([one for one in statements if one.startswith("UPDATE elements")]) == 1


def test_each_wanted_state_is_computed_once(world: World, cluster: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The transaction computes neither wanted states nor the moves of clusters."""
    calls, before, prepare = Counter[tuple[Name, int]](), Counter[tuple[Name, int]](), TopologyEffects.prepare

    def compute(element: Name, topology: Topology, clusters: Sequence[LiveCluster]) -> WantedState:
        assert [one.id for one in clusters] in ([], [cluster])
        calls[element, id(topology)] += 1
        return compute_wanted(element, topology, clusters)

    def record_prepared(effects: TopologyEffects, *arguments: Any) -> None:
        prepare(effects, *arguments)
        before.update(calls)
        assert effects.moves is not None

    monkeypatch.setattr("sbf_service.domain.topology_effects.compute_wanted", compute)
    monkeypatch.setattr(TopologyEffects, "prepare", record_prepared)
    change_topology(world.store, lambda former: former.share_parts(move_uplinks(former.require(), "eth9")), who="eva")
    assert {element for element, _ in calls} >= {HOST, "brno-sw1"}
    assert calls == before
    assert set(calls.values()) == {1}
