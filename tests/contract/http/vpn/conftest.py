from collections.abc import Iterator
from pathlib import Path

import pytest
from support.sbf_fakes.vpn_world import furnish
from support.sbf_fakes.world import World, make_world

from virtcloud.model.access import Role


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    installation = furnish(make_world(tmp_path))
    yield installation
    installation.close()


@pytest.fixture
def alice(world: World) -> str:
    return world.token(Role.USER, "alice")
