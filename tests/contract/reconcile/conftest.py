from collections.abc import Iterator
from pathlib import Path

import pytest
from support.sbf_fakes.world import World, make_world, three_edges


@pytest.fixture
def edge_world(tmp_path: Path) -> Iterator[World]:
    """Three sites connected by EVPN at provider edges, on SQLite. ``test_edge_invariants.py`` also uses PostgreSQL."""
    world = make_world(tmp_path)
    world.furnish(topology=three_edges())
    world.settle()
    yield world
    world.close()
