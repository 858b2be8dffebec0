"""Fixtures of the tests of the store."""

import pytest
from network_members import RING
from sbf_fakes.world import World


@pytest.fixture
def ring(world: World) -> World:
    """An active network with one host, brno-h1."""
    world.put("root", RING)
    world.settle()
    return world
