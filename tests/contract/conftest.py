"""What contract tests share."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from sbf_fakes.world import World, make_world


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    """The paper's three sites with pools of forty numbers, nothing on them."""
    made = make_world(tmp_path)
    made.furnish()
    yield made
    made.close()
