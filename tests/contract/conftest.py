"""What contract tests share."""

import socket
from collections.abc import Iterator
from contextlib import ExitStack, suppress

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


@pytest.fixture(autouse=True, scope="session")
def _ssh_connections_end_at_once() -> None:
    """Wake paramiko's reading thread when its connection is closed: it looks ten times a second only."""
    from paramiko.packet import Packetizer  # noqa: PLC0415

    close = Packetizer.close

    def wake_and_close(packetizer: Packetizer) -> None:
        with suppress(OSError):
            packetizer._Packetizer__socket.shutdown(socket.SHUT_RDWR)
        close(packetizer)

    Packetizer.close = wake_and_close
