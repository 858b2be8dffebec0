"""Tests of the check of the paths between hosts, with the agents' real listeners and a network that loses frames."""

import queue
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from itertools import product
from pathlib import Path
from typing import cast
from unittest.mock import patch

import pytest
from support.sbf_fakes.session_world import count_session_rows, serve_world
from support.sbf_fakes.world import World, make_world, spec, three_sites

from sbf_service.http.session_relay import SessionRelay
from sbf_service.store.elements.revisions import require_element
from virtcloud.agent.guest_access.guest_channels import GuestChannel
from virtcloud.agent.guest_access.session_listener import SessionListener
from virtcloud.agent.network.frame_exchange import (
    EVERYBODY,
    BridgeSocket,
    CheckFrame,
    FrameCounts,
    FrameKind,
    build_check_frame,
)
from virtcloud.agent.supervision import start_unsupervised
from virtcloud.client.api import Client
from virtcloud.client.sbf import SbfClient
from virtcloud.model.access import Role
from virtcloud.model.errors import BadInput, Conflict, Forbidden, NotFound, Refused, TooManyRequests
from virtcloud.model.guest_sessions import GuestSession
from virtcloud.model.path_check import BridgeEnd, ClusterVerification, FrameExchange, FrameReport, PathResult
from virtcloud.model.values import Mac, Name
from virtcloud.model.wanted import Segment

pytest.importorskip("websockets", reason="NOT TESTED: websockets is not installed")
HOSTS = ("brno-h1", "brno-h2", "praha-h1")
Loses = Callable[[str, str, FrameKind], bool]


@dataclass
class FakeNetwork:
    """The bridges of all hosts. ``loses`` returns whether a frame from one host to another is lost."""

    loses: Loses = lambda _source, _target, _kind: False
    bridges: list["FakeBridge"] = field(default_factory=list)
    exchanges: list[FrameExchange] = field(default_factory=list)
    open: int = 0
    fault: str | None = None
    senders: Counter[str] = field(default_factory=Counter)
    changed: threading.Condition = field(default_factory=threading.Condition)

    def wait_for_senders(self, exchange: FrameExchange) -> None:
        with self.changed:
            self.senders[exchange.check] += 1
            self.changed.notify_all()
            assert self.changed.wait_for(lambda: self.senders[exchange.check] > len(exchange.peers), 10)


@dataclass
class FakeBridge:
    """A bridge that delivers frames to the other bridges of its network."""

    network: FakeNetwork
    host: str
    mac: str
    mtu: int
    arrived: "queue.Queue[bytes]" = field(default_factory=queue.Queue)

    @property
    def end(self) -> BridgeEnd:
        return BridgeEnd(mac=Mac(self.mac), mtu=self.mtu)

    def exchange(self, exchange: FrameExchange, report: Callable[[FrameReport], None], ended: threading.Event) -> None:
        if self.network.fault:
            raise Refused(self.network.fault)
        self.network.exchanges.append(exchange)
        own = bytes.fromhex(self.mac.replace(":", ""))
        for peer, kind in product(exchange.peers, FrameKind):
            receiver = EVERYBODY if kind is FrameKind.BROADCAST else peer.number
            frame = CheckFrame(kind, exchange.number, receiver, 0)
            for other in self.network.bridges:
                if other.mac == peer.mac and not self.network.loses(self.host, other.host, kind):
                    other.arrived.put(build_check_frame(exchange, frame, own, own))
        self.network.wait_for_senders(exchange)
        counts = FrameCounts(exchange, own)
        while not self.arrived.empty():
            counts.add(self.arrived.get())
        report(counts.report(None))
        assert ended.wait(20)


@dataclass
class Served:
    """A world with agents. Its SBF serves HTTP on the loopback interface."""

    world: World
    url: str
    network: FakeNetwork
    relay: SessionRelay
    stack: ExitStack

    def client(self, role: Role = Role.USER, name: str = "alice", *sites: str) -> Client:
        client = Client(self.url, token=self.world.token(role, name, *sites))
        self.stack.callback(client.close)
        return client

    def verify(self, key: str = "demo") -> ClusterVerification:
        return self.client().get(key).verify()

    def start_agent(self, host: str, number: int, mtu: int = 1500, *, earlier: bool = False) -> None:
        """Start an agent's listener, which polls for checks.

        ``earlier``: the agent is of a version that cannot parse checks.
        """
        sbf: SbfClient = self.client(Role.AGENT, host).sbf
        if earlier:
            sbf.waiting_sessions = _drop_kinds(sbf)

        @contextmanager
        def open_bridge(_segment: Segment) -> Iterator[BridgeSocket]:
            bridge = FakeBridge(self.network, host, f"02:00:00:00:00:{number:02x}", mtu)
            self.network.bridges.append(bridge)
            self.network.open += 1
            yield cast("BridgeSocket", bridge)
            self.network.open -= 1

        def connect(session: GuestSession, _segment: Segment) -> GuestChannel:
            raise Refused(f"no guest {session.guest}")

        listener = SessionListener(Name(host), sbf, connect, open_bridge)  # type: ignore[arg-type]
        self.stack.callback(listener.stop)
        listener.start(start_unsupervised)

    @property
    def rows(self) -> int:
        return count_session_rows(self.world)


def _drop_kinds(sbf: SbfClient) -> Callable[..., list[GuestSession]]:
    def poll(element: str, after: int = 0, wait: float = 0) -> list[GuestSession]:
        query = {"after": after, "wait": wait}
        answer = sbf._connection.send("GET", f"/v1/elements/{element}/sessions", query=query, wait=wait)
        return sbf._documents(GuestSession, answer)

    return poll


@contextmanager
def serving(folder: Path, *agents: str, mtu: int | None = None) -> Iterator[Served]:
    """Serve a world with clusters "demo" (three hosts) and "solo" (one host). Run agents on the hosts ``agents``."""
    with ExitStack() as stack:
        world = make_world(folder)
        world.clock.stands = False
        stack.callback(world.close)
        transport = {"name": "core", "kind": "qinq", "s_tag": 2000, **({"mtu": mtu} if mtu else {})}
        world.furnish(topology=three_sites(transports=[transport]))
        world.put("demo", spec(*HOSTS))
        world.put("solo", spec("brno-h1"))
        world.settle()
        url, server = serve_world(world, stack)
        made = Served(world, url, FakeNetwork(), server.config.app.app.state.sessions, stack)
        for number, host in enumerate(agents, start=1):
            made.start_agent(host, number)
        await_polls(made, *agents)
        yield made


def await_polls(made: Served, *hosts: str) -> None:
    deadline = time.monotonic() + 10
    while not set(hosts) <= made.relay._known_kinds.keys():
        assert time.monotonic() < deadline
        time.sleep(0.01)


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    with serving(tmp_path_factory.mktemp("verification"), *HOSTS) as made:
        yield made


@pytest.fixture(scope="module")
def upgrading(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    """A service with an agent of an earlier version, and a transport with an MTU."""
    with serving(tmp_path_factory.mktemp("upgrading"), *HOSTS[:2], mtu=1454) as made:
        made.start_agent("praha-h1", 3, earlier=True)
        await_polls(made, "praha-h1")
        yield made


@contextmanager
def agent_wait(made: Served, seconds: float) -> Iterator[None]:
    settings = made.world.service.settings
    with patch.dict(settings.__dict__, relay=settings.relay.model_copy(update={"agent_wait": seconds})):
        yield


@pytest.fixture
def made(shared: Served) -> Served:
    shared.network.loses = FakeNetwork.loses
    shared.network.fault = None
    return shared


def failed(found: ClusterVerification) -> dict[tuple[str, str], PathResult]:
    return {(path.source, path.target): path.result for path in found.failed}


def test_all_pairs_of_hosts_pass(made: Served) -> None:
    found = made.verify()
    assert (found.passed, len(found.paths), found.mtu, found.unverified) == (True, 6, 1500, ())


def test_nothing_remains_after_the_check(made: Served) -> None:
    made.verify()
    deadline = time.monotonic() + 10
    while made.network.open and time.monotonic() < deadline:
        time.sleep(0.01)
    assert (made.network.open, made.rows) == (0, 0)


def test_a_path_that_loses_full_packets_is_named(made: Served) -> None:
    made.network.loses = lambda source, target, kind: kind is FrameKind.FULL and "praha-h1" in {source, target}
    found = made.verify()
    assert failed(found)["brno-h1", "praha-h1"] is PathResult.ONLY_SMALL
    assert ("brno-h1", "brno-h2") not in failed(found)


def test_only_the_direction_that_loses_packets_is_named(made: Served) -> None:
    made.network.loses = lambda source, target, _kind: (source, target) == ("praha-h1", "brno-h2")
    assert failed(made.verify()) == {("praha-h1", "brno-h2"): PathResult.NOTHING_PASSES}


def test_the_switch_that_lost_the_vlan_is_named(made: Served) -> None:
    made.network.loses = lambda source, target, _kind: "brno-h1" in {source, target}
    switch = made.world.switches["brno-sw1"]
    former = switch.ports["p1"]
    switch.refuses, switch.ports["p1"] = True, set()
    found = made.verify()
    switch.refuses, switch.ports["p1"] = False, former
    assert found.notes == (
        "switch brno-sw1: VLAN 100 is missing on p1; SBF corrects this when it next reads the device",
    )


def test_an_agent_of_an_earlier_version_is_named(upgrading: Served) -> None:
    found = upgrading.verify()
    (missing,) = found.unverified
    assert (missing.host, found.passed, len(found.paths)) == ("praha-h1", False, 2)
    assert missing.reason.startswith("its agent has an earlier version that does not support this check")


def test_an_agent_of_an_earlier_version_is_sent_no_check(upgrading: Served) -> None:
    """The replica does not know the agent's version, as if another replica had received the agent's polls."""
    with patch.dict(upgrading.relay._known_kinds, clear=True), agent_wait(upgrading, 3):
        (missing,) = upgrading.verify().unverified
    assert missing.reason.startswith("its agent did not take up the check within 3 s")


def test_the_packets_have_the_clusters_mtu(upgrading: Served) -> None:
    assert upgrading.verify().mtu == 1450
    assert upgrading.network.exchanges[-1].mtu == 1450


def test_an_agent_that_does_not_answer_is_named(made: Served) -> None:
    made.world.put("more", spec("praha-h2", "plzen-h1"))
    made.world.settle()
    with agent_wait(made, 0.2):
        (missing, *_) = made.verify("more").unverified
    assert missing.reason.startswith("its agent did not take up the check within 0.2 s: check that the agent runs")


def test_an_unreachable_host_is_named_with_its_last_contact(made: Served) -> None:
    with made.world.store.change() as unit:
        require_element(unit, "praha-h1").reachable = False
    (missing,) = made.verify().unverified
    with made.world.store.change() as unit:
        require_element(unit, "praha-h1").reachable = True
    assert missing.seen_at is not None
    assert missing.reason.startswith("its agent is not reachable (last contact ")


def test_a_host_that_cannot_exchange_is_named(made: Served) -> None:
    made.network.fault = "cannot exchange check frames: No such device"
    assert {host.host: host.reason for host in made.verify().unverified} == dict.fromkeys(HOSTS, made.network.fault)


def test_several_checks_of_a_cluster_can_run_simultaneously(made: Served) -> None:
    found: list[ClusterVerification] = []
    threads = [threading.Thread(target=lambda: found.append(made.verify())) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert [one.passed for one in found] == [True] * 3


def test_a_user_runs_a_limited_number_of_checks(made: Served) -> None:
    with patch.dict(made.relay._checks, alice=5), pytest.raises(TooManyRequests, match="alice verifies 5 clusters"):
        made.verify()


def test_other_users_may_not_verify(made: Served) -> None:
    sbf = made.client(Role.USER, "bob").sbf
    with pytest.raises(NotFound):
        sbf.verify_cluster("demo")


def test_administrators_of_the_sites_may_verify(made: Served) -> None:
    assert made.client(Role.SITE_ADMINISTRATOR, "ivo", "praha").sbf.verify_cluster("demo").passed


def test_a_scheduler_may_not_verify(made: Served) -> None:
    with pytest.raises(Forbidden):
        made.client(Role.SCHEDULER, "pbs").sbf.verify_cluster("demo")


def test_a_cluster_that_is_being_configured_is_refused(made: Served) -> None:
    made.world.put("new", spec("plzen-h1", "brno-h1"))
    with pytest.raises(Conflict, match=r"expected an active or degraded cluster; wait for it"):
        made.client().sbf.verify_cluster("new")


def test_nobody_is_advised_to_wait_for_an_ending_cluster(made: Served) -> None:
    made.world.put("ending", spec("plzen-h1", "brno-h1"))
    made.client().sbf.delete_cluster("ending")
    with pytest.raises(Conflict, match=r"is draining: expected an active .*; create the cluster again"):
        made.client().sbf.verify_cluster("ending")


def test_a_cluster_with_one_host_has_no_paths(made: Served) -> None:
    found = made.verify("solo")
    assert (found.passed, found.paths, found.mtu) == (True, (), None)


def test_users_cannot_command_an_agent_to_exchange_frames(made: Served) -> None:
    with pytest.raises(BadInput, match=r"kind: expected .*, got 'frames'"):
        made.client().sbf._connection.open_stream("/v1/clusters/demo/guests/g1/session", {"kind": "frames"}, 5)


def test_the_audit_log_names_the_caller(made: Served) -> None:
    made.verify()
    row = made.world.audit("paths_verified")[-1]
    assert (row.who, row.why) == ("alice", "between 3 hosts")
