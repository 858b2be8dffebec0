from collections.abc import Iterator

import pytest
from compatibility.installation import Installation, installation
from compatibility.previous import THIS, Version, installed


@pytest.fixture(scope="session")
def previous(tmp_path_factory: pytest.TempPathFactory) -> Version:
    return installed(tmp_path_factory.mktemp("previous"))


@pytest.fixture(scope="module")
def old_peers(previous: Version) -> Iterator[Installation]:
    """An SBF of this version, used by a command line and agents of the previous version."""
    with installation(THIS, previous) as made:
        yield made


@pytest.fixture(scope="module")
def old_sbf(previous: Version) -> Iterator[Installation]:
    """An SBF of the previous version, used by a command line and agents of this version."""
    with installation(previous, THIS) as made:
        yield made
