"""Fixtures of the tests of the web console."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from sbf_fakes.world import World, make_world


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    """An installation with three sites. SQLite suffices, because the console reads only through the store."""
    installation = make_world(tmp_path)
    installation.furnish()
    yield installation
    installation.close()
