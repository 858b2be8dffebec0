import pytest
from support.network_members import RING
from support.sbf_fakes.world import World


@pytest.fixture
def ring(world: World) -> World:
    world.put("root", RING)
    world.settle()
    return world
