"""Tests that SQL finds exactly the clusters for which ``find_transition`` returns a transition."""

from datetime import timedelta
from random import Random

import pytest
from sqlalchemy import insert, select
from support.sbf_fakes.world import STARTED, World, spec

from sbf_service.domain.lifecycle import find_transition
from sbf_service.store.clusters.cluster_queries import find_clusters
from sbf_service.store.clusters.cluster_statuses import read_cluster_statuses
from sbf_service.store.clusters.due_transitions import HAS_DUE_TRANSITION, make_due_parameters
from sbf_service.store.clusters.transitions import find_due_clusters
from sbf_service.store.tables.cluster_tables import ClusterRow, PlacementRow
from sbf_service.store.tables.tables import ElementRow
from sbf_service.store.unit_of_work import Unit
from virtcloud.model.cluster import ENDED_STATES, ClusterState

DRAIN = timedelta(seconds=60)
SPEC = spec("brno-h1").model_dump_json()
NEWEST = 6


def randomise_rows(unit: Unit, random: Random) -> None:
    """Set random states of the elements, and create clusters in random states that the tables allow.

    About a third of the clusters are members of another cluster's network.
    """
    elements = unit.session.scalars(select(ElementRow)).all()
    for row in elements:
        row.wanted_revision, row.reachable = NEWEST, random.random() < 0.8
        row.confirmed_revision = random.choice([0, 3, NEWEST - 1, NEWEST, NEWEST, NEWEST])
    unit.session.flush()
    networks: list[str] = []
    for number in range(150):
        network = random.choice(networks) if networks and random.random() < 1 / 3 else None
        networks += [f"c{number}"] if network is None else []
        parts = random.sample([row.name for row in elements], random.randint(0, 3))
        add_cluster(unit, f"c{number}", random, parts, network)


def add_cluster(unit: Unit, name: str, random: Random, elements: list[str], network: str | None) -> None:
    def random_time() -> object:
        return STARTED + timedelta(seconds=random.choice([-120, -60, -1, 0, 1, 60]))

    state = random.choice(list(ClusterState))
    row = {"id": name, "key": name, "attempt": 0, "owner": "alice", "spec": SPEC, "version": 1, "state": state}
    row |= {"network": network, "created_at": STARTED, "deadline": random_time(), "lease_ends": random_time()}
    row |= {
        "leaving_since": random.choice([None, random_time()]),
        "quarantined": state in ENDED_STATES and random.random() < 0.5,
    }
    unit.session.execute(insert(ClusterRow).values(row))
    for element in elements:
        added = random.randint(1, 4)
        removed = random.choice([None, random.randint(added + 1, NEWEST)])
        part = {"cluster_id": name, "element": element, "added_revision": added, "removed_revision": removed}
        part["blocked"] = removed is None and random.random() < 0.2
        unit.session.execute(insert(PlacementRow).values(part))


@pytest.mark.parametrize("with_deadlines", [True, False])
@pytest.mark.parametrize("seed", range(3))
def test_sql_finds_exactly_the_clusters_with_a_due_transition(world: World, seed: int, with_deadlines: bool) -> None:
    with world.store.change() as unit:
        randomise_rows(unit, Random(seed))
    with world.store.read() as unit:
        rows = find_clusters(unit, ClusterRow.state != ClusterState.REQUESTED)
        expected = {
            status.id
            for status in read_cluster_statuses(unit, rows)
            if find_transition(status, unit.now, DRAIN, with_deadlines=with_deadlines) is not None
        }
        due = make_due_parameters(unit.now, DRAIN, with_deadlines=with_deadlines)
        found = {row.id for row in find_clusters(unit, HAS_DUE_TRANSITION, **due)}
        found_by_indexes = set(find_due_clusters(unit, DRAIN, with_deadlines=with_deadlines))
    assert expected
    assert found == expected
    assert found_by_indexes == expected
