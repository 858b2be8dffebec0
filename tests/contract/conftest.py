"""What contract tests share."""

from collections.abc import Iterator
from contextlib import ExitStack

import pytest
from emulators.switch_bench import MakeBench, make_bench_in
from sbf_fakes.world import World


@pytest.fixture
def world(database: str) -> Iterator[World]:
    """The paper's three sites with pools of forty numbers, nothing on them; on SQLite and on PostgreSQL."""
    made = World(database)
    made.furnish()
    yield made
    made.close()


@pytest.fixture
def make_bench() -> Iterator[MakeBench]:
    """What makes an emulated switch with its driver."""
    with ExitStack() as stack:
        yield make_bench_in(stack)


@pytest.fixture(autouse=True, scope="session")
def _netconf_without_naps() -> None:
    """Let ncclient look at once for something to send: it does so ten times a second only."""
    from ncclient.transport import session  # noqa: PLC0415

    session.TICK = 0.002
