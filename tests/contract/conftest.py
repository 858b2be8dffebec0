"""What contract tests share."""

from collections.abc import Iterator

import pytest
from sbf_fakes.world import World


@pytest.fixture
def world(database: str) -> Iterator[World]:
    """The paper's three sites with pools of forty numbers, nothing on them; on SQLite and on PostgreSQL."""
    made = World(database)
    made.furnish()
    yield made
    made.close()
