import socket
from collections.abc import Iterator
from contextlib import ExitStack, suppress

import pytest
from support.emulators.switch_bench import MakeBench, make_bench_in
from support.sbf_fakes.world import World


@pytest.fixture
def world(database: str) -> Iterator[World]:
    """An installation with three sites, as in the VirtCloud paper. Each site has a pool of 40 VLAN IDs."""
    made = World(database)
    made.furnish()
    yield made
    made.close()


@pytest.fixture
def make_bench() -> Iterator[MakeBench]:
    with ExitStack() as stack:
        yield make_bench_in(stack)


@pytest.fixture(autouse=True, scope="session")
def _netconf_without_naps() -> None:
    """Make ncclient check for pending output every 2 ms instead of every 100 ms."""
    from ncclient.transport import session  # noqa: PLC0415

    session.TICK = 0.002


@pytest.fixture(autouse=True, scope="session")
def _ssh_connections_end_at_once() -> None:
    """Make paramiko's reading thread end as soon as its connection is closed, not up to 100 ms later."""
    from paramiko.packet import Packetizer  # noqa: PLC0415

    close = Packetizer.close

    def wake_and_close(packetizer: Packetizer) -> None:
        with suppress(OSError):
            packetizer._Packetizer__socket.shutdown(socket.SHUT_RDWR)
        close(packetizer)

    Packetizer.close = wake_and_close
