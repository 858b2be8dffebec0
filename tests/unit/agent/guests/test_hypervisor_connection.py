"""Tests of the connection with libvirtd that several threads use."""

import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import libvirt
import pytest

from virtcloud.agent.guests.hypervisor import LibvirtHypervisor


class LostConnection(libvirt.libvirtError):
    """The error of a call whose connection was lost."""

    def __init__(self) -> None:
        Exception.__init__(self, "End of file while reading data")
        self.err = (libvirt.VIR_ERR_SYSTEM_ERROR, libvirt.VIR_FROM_RPC, "", 0, "", "", "", 0, 0)


class ScriptedConnection:
    """A connection with a daemon without domains. The first call of each thread waits for ``lost``, if it is set."""

    def __init__(self, lost: Callable[[], object] | None) -> None:
        self._lost = lost
        self.closed = False

    def listAllDomains(self, _flags: int) -> list[object]:  # noqa: N802 - libvirt's name
        if self._lost is not None:
            self._lost()
            raise LostConnection
        assert not self.closed
        return []

    def close(self) -> None:
        self.closed = True


def test_a_lost_connection_is_replaced_once_for_all_threads(monkeypatch: pytest.MonkeyPatch) -> None:
    all_called = threading.Barrier(3)
    connections = [ScriptedConnection(lambda: all_called.wait(10)), ScriptedConnection(None)]
    opened: list[str] = []

    def open_next(uri: str) -> ScriptedConnection:
        opened.append(uri)
        return connections[len(opened) - 1]

    monkeypatch.setattr(libvirt, "open", open_next)
    hypervisor = LibvirtHypervisor("test:///default")
    hypervisor._connection = open_next("test:///default")
    with ThreadPoolExecutor(3) as pool:
        assert list(pool.map(lambda _: hypervisor.list_domains(), range(3))) == [[], [], []]
    assert (len(opened), connections[1].closed) == (2, False)
