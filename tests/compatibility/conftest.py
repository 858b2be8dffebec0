from collections.abc import Iterator

import pytest
from compatibility.installation import Installation, installation
from compatibility.previous import THIS, Version, installed


@pytest.fixture(scope="session")
def previous(tmp_path_factory: pytest.TempPathFactory) -> Version:
    return installed(tmp_path_factory.mktemp("previous"))


@pytest.fixture(scope="module")
def old_peers(previous: Version) -> Iterator[Installation]:
    """Of this version is SBF; the command line and the agents are the previous version's."""
    with installation(THIS, previous) as made:
        yield made


@pytest.fixture(scope="module")
def old_sbf(previous: Version) -> Iterator[Installation]:
    """Of the previous version is SBF; the command line and the agents are this version's."""
    with installation(previous, THIS) as made:
        yield made
