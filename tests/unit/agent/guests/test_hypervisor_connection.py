"""Tests of several threads that share the connections with libvirtd."""

import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing

import libvirt
import pytest

from virtcloud.agent.guests.domains import NAMESPACE, DomainOwnership, GuestDomain
from virtcloud.agent.guests.hypervisor import CALLS_AT_ONCE, LibvirtConnection, LibvirtHypervisor


class LostConnection(libvirt.libvirtError):
    """The error of a call whose connection was lost."""

    def __init__(self) -> None:
        Exception.__init__(self, "End of file while reading data")
        self.err = (libvirt.VIR_ERR_SYSTEM_ERROR, libvirt.VIR_FROM_RPC, "", 0, "", "", "", 0, 0)


class DomainNotRunning(libvirt.libvirtError):
    """The error of libvirt's LXC driver for the metadata of a transient domain that does not run."""

    def __init__(self) -> None:
        Exception.__init__(self, "transient domains do not have any persistent config")
        self.err = (libvirt.VIR_ERR_OPERATION_INVALID, libvirt.VIR_FROM_DOMAIN, "", 0, "", "", "", 0, 0)


class EndedContainer:
    """The domain of a container that ended while libvirtd did not run."""

    def __init__(self, metadata: str) -> None:
        self._metadata = metadata

    def name(self) -> str:
        return "vc-4c1f-g1"

    def state(self) -> list[int]:
        return [libvirt.VIR_DOMAIN_SHUTOFF, 0]

    def metadata(self, _kind: int, _namespace: str, _flags: int) -> str:
        raise DomainNotRunning

    def XMLDesc(self, _flags: int) -> str:  # noqa: N802 - libvirt's name
        return f"<domain type='lxc'><metadata>{self._metadata}</metadata></domain>"


class ScriptedConnection:
    """A connection with a libvirtd that has no domains.

    If ``lost`` is set, `listAllDomains` first calls ``lost``, and then raises LostConnection.
    """

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
    hypervisor._connections.append(LibvirtConnection(open_next("test:///default")))
    with ThreadPoolExecutor(3) as pool:
        assert list(pool.map(lambda _: hypervisor.list_domains(), range(3))) == [[], [], []]
    assert (len(opened), connections[1].closed) == (2, False)


def test_a_reading_does_not_wait_behind_starts(monkeypatch: pytest.MonkeyPatch) -> None:
    """The daemon executes five calls of a client at the same time, and queues further calls."""
    opened: list[ScriptedConnection] = []

    def open_next(_uri: str) -> ScriptedConnection:
        opened.append(ScriptedConnection(None))
        return opened[-1]

    monkeypatch.setattr(libvirt, "open", open_next)
    hypervisor = LibvirtHypervisor("test:///default")
    hypervisor.list_domains()
    starting, finish = threading.Barrier(CALLS_AT_ONCE + 1), threading.Event()

    def start(_xml: str, _flags: int) -> None:
        starting.wait(10)
        finish.wait(10)

    monkeypatch.setattr(opened[0], "createXML", start, raising=False)
    monkeypatch.setattr(opened[0], "listAllDomains", lambda _flags: pytest.fail("waits behind the starts"))
    with ThreadPoolExecutor(CALLS_AT_ONCE) as pool:
        starts = [pool.submit(hypervisor.start, "<domain><name>g</name></domain>") for _ in range(CALLS_AT_ONCE)]
        starting.wait(10)
        try:
            assert hypervisor.list_domains() == []
        finally:
            finish.set()
        for one in starts:
            one.result()
    assert len(opened) == 2
    hypervisor.close()
    assert all(connection.closed for connection in opened)


def test_after_a_daemons_restart_no_old_connection_is_used(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(libvirt, "open", lambda _uri: ScriptedConnection(None))
    hypervisor = LibvirtHypervisor("test:///default")
    hypervisor._connections += [LibvirtConnection(ScriptedConnection(lambda: None)) for _ in range(3)]
    assert hypervisor.list_domains() == []


def test_a_paused_domain_is_running() -> None:
    """Otherwise the agent would stop a guest that an administrator has suspended."""
    hypervisor = LibvirtHypervisor("test:///default")
    with closing(libvirt.open("test:///default")) as connection, closing(hypervisor):
        domain = connection.lookupByName("test")
        domain.suspend()
        try:
            found = hypervisor.find_domain("test")
        finally:
            domain.resume()
    assert (found is not None and found.running) is True


@pytest.mark.parametrize(
    ("metadata", "owner"),
    [
        (f"<v:guest xmlns:v='{NAMESPACE}' cluster='4c1f' guest='g1' digest='d'/>", DomainOwnership("4c1f", "g1", "d")),
        ("", None),
    ],
)
def test_a_container_that_ended_without_libvirtd_keeps_its_owner(
    monkeypatch: pytest.MonkeyPatch, metadata: str, owner: DomainOwnership | None
) -> None:
    """Otherwise the agent could read no domain of the host, and could not remove this domain."""
    connection = ScriptedConnection(None)
    monkeypatch.setattr(connection, "listAllDomains", lambda _flags: [EndedContainer(metadata)])
    monkeypatch.setattr(libvirt, "open", lambda _uri: connection)
    assert LibvirtHypervisor("lxc:///system").list_domains() == [GuestDomain("vc-4c1f-g1", running=False, owner=owner)]
