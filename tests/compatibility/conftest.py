from collections.abc import Iterator

import pytest
from compatibility.installation import Installation, installation
from compatibility.previous import (
    BEFORE_RESTRUCTURING,
    PREVIOUS,
    THIS,
    Version,
    end_command_lines,
    installed,
)


@pytest.fixture(scope="module", autouse=True)
def command_lines() -> Iterator[None]:
    yield
    end_command_lines()


@pytest.fixture(scope="session")
def previous(tmp_path_factory: pytest.TempPathFactory) -> Version:
    return installed(tmp_path_factory.mktemp("previous"), PREVIOUS)


@pytest.fixture(scope="session")
def before_restructuring(tmp_path_factory: pytest.TempPathFactory) -> Version:
    return installed(tmp_path_factory.mktemp("before"), BEFORE_RESTRUCTURING)


@pytest.fixture(params=["previous", "before_restructuring"])
def former(request: pytest.FixtureRequest) -> Version:
    version: Version = request.getfixturevalue(request.param)
    return version


@pytest.fixture(scope="module")
def old_peers(previous: Version) -> Iterator[Installation]:
    with installation(THIS, previous) as running:
        yield running


@pytest.fixture(scope="module")
def old_sbf(previous: Version) -> Iterator[Installation]:
    with installation(previous, THIS) as running:
        yield running
