"""Tests of connections to guests' ports, with fake relays."""

import array
import socket
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from virtcloud.agent.guest_access.guest_ports import GuestPorts
from virtcloud.agent.job_access.access import JobAccess, guest_subnets, list_host_addresses
from virtcloud.model.errors import Refused
from virtcloud.model.guest_seed import Peer
from virtcloud.model.values import Name
from virtcloud.model.wanted import Segment

Make = Callable[..., Segment]
PORT = 22


class FakeRelays:
    """Relays that answer each request with ``answer`` or, if ``answer`` is empty, with one end of a socket pair."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.ensured: list[JobAccess] = []
        self.removed: list[str] = []
        self.lines: list[str] = []
        self.answer = b""
        self.listeners: dict[str, socket.socket] = {}

    def ensure(self, access: JobAccess, uid: int) -> Path:
        assert uid == 0
        self.ensured.append(access)
        path = self.folder / f".relay-{access.key}"
        listener = self.listeners[access.key] = socket.socket(socket.AF_UNIX)
        listener.bind(str(path))
        listener.listen()
        threading.Thread(target=self._serve, args=(listener,), daemon=True).start()
        return path

    def ensure_none(self, key: str) -> None:
        self.removed.append(key)
        if key in self.listeners:
            listener = self.listeners.pop(key)
            listener.shutdown(socket.SHUT_RDWR)
            listener.close()
            (self.folder / f".relay-{key}").unlink()

    def _serve(self, listener: socket.socket) -> None:
        while True:
            try:
                caller, _ = listener.accept()
            except OSError:
                return
            with caller:
                self.lines.append(caller.recv(300).decode())
                if self.answer:
                    caller.sendall(self.answer)
                    continue
                ours, theirs = socket.socketpair()
                with ours, theirs:
                    rights = array.array("i", [theirs.fileno()])
                    caller.sendmsg([b"ok\n"], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, rights)])


@pytest.fixture
def relays(tmp_path: Path) -> Iterator[FakeRelays]:
    made = FakeRelays(tmp_path)
    yield made
    for key in list(made.listeners):
        made.ensure_none(key)


def test_a_guest_is_reached_at_its_own_address(relays: FakeRelays, make_segment: Make) -> None:
    with GuestPorts(relays).connect(make_segment("a", 100, ("g1",)), Name("g1"), PORT):
        assert relays.lines == ["10.0.0.1 22\n"]


def test_other_programs_do_not_inherit_a_connection(relays: FakeRelays, make_segment: Make) -> None:
    with GuestPorts(relays).connect(make_segment("a", 100, ("g1",)), Name("g1"), PORT) as connection:
        assert not connection.get_inheritable()


def test_the_relay_is_removed_with_its_last_user(relays: FakeRelays, make_segment: Make) -> None:
    ports, segment = GuestPorts(relays), make_segment("a", 100, ("g1",))
    with ports.connect(segment, Name("g1"), PORT):
        with ports.connect(segment, Name("g1"), PORT):
            pass
        assert (len(relays.ensured), relays.removed) == (1, [])
    assert relays.removed == ["guests.a"]


def test_addresses_of_all_guests_are_reserved(relays: FakeRelays, make_segment: Make) -> None:
    """A stopped guest answers no probe, so a probe alone would report its address as free."""
    peer = Peer.model_validate({"name": "g2", "cluster": "demo", "addresses": ["10.0.0.254/24"]})
    segment = make_segment("a", 100, ("g1",)).model_copy(update={"peers": (peer,)})
    with GuestPorts(relays).connect(segment, Name("g1"), PORT):
        reserved = {address for guest in relays.ensured[0].guests for address in guest.addresses}
    assert reserved == {"10.0.0.1/24", "10.0.0.254/24"}


def test_hosts_of_a_network_try_different_addresses_first(relays: FakeRelays, make_segment: Make) -> None:
    """If two hosts probed an address at the same time, neither host would answer, and both would use the address."""
    peers = [
        Peer.model_validate({"name": f"g{n}", "cluster": "demo", "addresses": [f"10.0.0.{n}/24", f"fd00::{n}/64"]})
        for n in range(1, 13)
    ]
    for peer in peers:
        segment = make_segment("a", 100, (peer.name,))
        guest = segment.guests[0].model_copy(update={"addresses": peer.addresses})
        host = segment.model_copy(update={"guests": (guest,), "peers": tuple(peers)})
        with GuestPorts(relays).connect(host, Name(peer.name), PORT):
            pass
    for subnet in guest_subnets(relays.ensured[0].guests):
        tried = [next(list_host_addresses(subnet, access)) for access in relays.ensured]
        assert len(set(tried)) == 12


def test_a_search_from_a_later_address_tries_all_addresses(relays: FakeRelays, make_segment: Make) -> None:
    with GuestPorts(relays).connect(make_segment("a", 100, ("g1",)), Name("g1"), PORT):
        access = relays.ensured[0].model_copy(update={"first_candidate": 7})
    assert len(set(list_host_addresses(guest_subnets(access.guests)[0], access))) == 253


def test_a_closed_port_is_refused_and_leaves_no_relay(relays: FakeRelays, make_segment: Make) -> None:
    relays.answer = b"refused: no process listens at 10.0.0.1 22\n"
    segment = make_segment("a", 100, ("g1",))
    with (
        pytest.raises(
            Refused, match=r"no process of guest g1 listens at port 22 \(10\.0\.0\.1\); the guest may still be"
        ),
        GuestPorts(relays).connect(segment, Name("g1"), PORT),
    ):
        pass
    assert relays.removed == ["guests.a"]


def test_a_guest_without_address_is_refused(relays: FakeRelays, make_segment: Make) -> None:
    segment = make_segment("a", 100, ("g1",))
    without = segment.model_copy(update={"guests": (segment.guests[0].model_copy(update={"addresses": ()}),)})
    with pytest.raises(Refused, match="guest g1 has no address"), GuestPorts(relays).connect(without, Name("g1"), PORT):
        pass
    assert relays.ensured == []


def test_relays_of_a_killed_agent_are_removed(relays: FakeRelays, tmp_path: Path) -> None:
    """The relay of job 12.pbs stays, because a job's connections must survive a restart of the agent."""
    GuestPorts(relays).remove_orphans([tmp_path / ".relay-guests.a", tmp_path / ".relay-12.pbs"])
    assert relays.removed == ["guests.a"]
