from pathlib import Path

import pytest
from support.sbf_fakes.world import World

from sbf_service.bootstrap import SbfService
from sbf_service.domain.image_rules import ImageLimits
from virtcloud.model.access import Role


@pytest.fixture
def database(sqlite_database: str) -> str:
    return sqlite_database


@pytest.fixture
def folder(world: World, tmp_path: Path) -> Path:
    limits = ImageLimits(folder=str(tmp_path / "catalogue"), size=1 << 20)
    settings = world.service.settings.model_copy(update={"images": limits})
    world.service = SbfService(**(vars(world.service) | {"settings": settings}))
    return tmp_path / "catalogue"


@pytest.fixture
def alice(world: World) -> str:
    return world.token(Role.USER, "alice")
